"""Which hosts there are: from options as JSON to values, with errors that name the field. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import NO_TERMS, NodeTerms
from airflow_llmsched.engines.divided import Divided, parse_divided
from airflow_llmsched.engines.ssh import Machine
from airflow_llmsched.engines.terms import TERMS, terms_of
from airflow_llmsched.errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:%_-]{0,252}")
_KNOWN = (
    "name", "address", "login_address", "port", "slots", "path", "shape", "cloud", "off", "joins_until_s",
    *TERMS, "divided",
)  # fmt: skip
_MAX_SLOTS = 1024

CLOUDS = ("aws", "azure", "gcp")
"""Whose metadata services the agent can ask when they will take a machine (``agent.metadata``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine: ``address`` is where the other hosts reach it, ``machine`` where we log in.

    ``path`` is where it hangs, from the outermost level to the innermost, as ``domain.topology.TopologyNode`` has it.
    ``cloud`` is whose machine it is, None where no cloud announces that it takes it. ``is_off``: whoever lists it knows
    that it is off for good, as a cloud does of a machine that it took: nothing on it can be alive. Until
    ``joins_until_s`` (Unix seconds) it may still come up: where it is silent, it is not there yet.
    """

    name: NodeId
    address: str
    machine: Machine
    num_slots: int
    path: tuple[str, ...]
    shape: str
    cloud: str | None = None
    is_off: bool = False
    joins_until_s: float = -math.inf
    terms: NodeTerms = NO_TERMS
    divided: tuple[Divided, ...] = ()


def parse_hosts(plain: Sequence[Mapping[str, Any]], *, levels: Sequence[str]) -> tuple[Host, ...]:
    """Return the hosts of an engine's options, in their order. Raises ``SpecError``.

    Each has ``name``, ``address`` and ``slots``, and may have ``login_address`` (default: ``address``), ``port`` (22),
    ``path`` (one part per level; default: its name, where there is one level), ``shape``, ``cloud``, ``off``,
    ``joins_until_s``, and as terms ``usd_per_hour``, ``failures_per_hour`` and ``data``, a list of folders.
    ``divided`` are accelerators that are given out in slices (``engines.divided``).
    """
    hosts: dict[NodeId, Host] = {}
    logins: dict[tuple[str, int], NodeId] = {}
    for index, each in enumerate(plain):
        host = _host(each, at=f"hosts[{index}]", levels=levels)
        if host.name in hosts:
            raise SpecError(path=f"hosts[{index}].name", value=host.name, hint="is another host's name as well")
        if _is_stated(host):
            # One machine under two names would give each of its accelerators to two ranks, or to two runs.
            other = logins.setdefault((host.machine.address.lower(), host.machine.port), host.name)
            if other != host.name:
                hint = f"is where host {other} is logged in to as well: list a machine once, with all of its slots"
                field = "login_address" if "login_address" in each else "address"
                raise SpecError(path=f"hosts[{index}].{field}", value=host.machine.address, hint=hint)
        hosts[host.name] = host
    return tuple(hosts.values())


def _is_stated(host: Host) -> bool:
    """Whether whoever lists a host has it for good: a cloud may give a machine the address of one that it took."""
    return not host.is_off and host.joins_until_s == -math.inf


def _host(plain: Mapping[str, Any], *, at: str, levels: Sequence[str]) -> Host:
    unknown = sorted(set(plain) - set(_KNOWN))
    if unknown:
        raise SpecError(path=f"{at}.{unknown[0]}", hint=f"is not known; known: {', '.join(_KNOWN)}")
    name = _text(plain, "name", at=at, form=_NAME, hint="must be a short name of letters, digits, '.', '_', '-'")
    address = _address(plain, "address", at=at)
    login = _address({"login_address": address, **plain}, "login_address", at=at)
    path = plain.get("path", [name] if len(levels) == 1 else None)
    if not isinstance(path, list) or len(path) != len(levels) or not all(type(each) is str for each in path):
        raise SpecError(path=f"{at}.path", value=path, hint=f"must have one part for each level: {', '.join(levels)}")
    cloud = plain.get("cloud")
    if cloud is not None and cloud not in CLOUDS:
        raise SpecError(path=f"{at}.cloud", value=cloud, hint=f"must be one of {', '.join(CLOUDS)}, or left out")
    is_off = plain.get("off", False)
    if type(is_off) is not bool:
        raise SpecError(path=f"{at}.off", value=is_off, hint="must be true or false")
    joins_until_s = plain.get("joins_until_s", -math.inf)
    if type(joins_until_s) not in (int, float) or math.isnan(joins_until_s):
        raise SpecError(path=f"{at}.joins_until_s", value=joins_until_s, hint="must be a time in Unix seconds")
    num_slots = _number(plain, "slots", None, at=at, limit=_MAX_SLOTS)
    return Host(
        name=NodeId(name),
        address=address,
        machine=Machine(name=name, address=login, port=_number(plain, "port", 22, at=at, limit=65535)),
        num_slots=num_slots,
        divided=parse_divided(plain.get("divided", []), num_slots=num_slots, at=f"{at}.divided"),
        path=tuple(path),
        shape=str(plain.get("shape", "host")),
        cloud=cloud,
        is_off=is_off,
        joins_until_s=float(joins_until_s),
        terms=terms_of(plain, at=at),
    )


def _address(plain: Mapping[str, Any], name: str, *, at: str) -> str:
    return _text(plain, name, at=at, form=_ADDRESS, hint="must be a host name or an IP address, without a port")


def _text(plain: Mapping[str, Any], name: str, *, at: str, form: re.Pattern[str], hint: str) -> str:
    value = plain.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise SpecError(path=f"{at}.{name}", value=value, hint=hint)
    return value


def _number(plain: Mapping[str, Any], name: str, default: int | None, *, at: str, limit: int) -> int:
    value = plain.get(name, default)
    if type(value) is not int or not 1 <= value <= limit:
        raise SpecError(path=f"{at}.{name}", value=value, hint=f"must be a whole number from 1 to {limit}")
    return value
