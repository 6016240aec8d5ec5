"""From a gang to what the agent needs to know of it, for every engine whose nodes run the agent. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from airflow_llmsched.agent.launchers import devices
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.errors import SpecError

VERSION = 1

_ATTEMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}-g[0-9]{1,9}-a[0-9]{1,9}")
_SHOWN = (devices.NVIDIA, devices.AMD, devices.TPU)
_RESERVED = "LLMSCHED_"
_AGENT_SETS = frozenset(
    f"{_RESERVED}{name}"
    for name in (
        *("RUN_KEY", "GENERATION", "ATTEMPT", "ATTEMPT_NAME", "NODE", "SPOOL", "LAYOUT", "GRACE_S", "SUPERVISOR"),
        *("CHANNEL", "ORIGIN", "ROLE", "MEMBER", "ADDRESSES"),
    )
)


def is_attempt_name(name: str) -> bool:
    """Whether ``name`` has the form ``<run>-g<generation>-a<attempt>`` and is one path component, no surprises."""
    return _ATTEMPT_NAME.fullmatch(name) is not None


def key_of(name: str) -> AttemptKey:
    """Return the key whose name this is. Raises ``ValueError`` for what is no attempt's name."""
    if not is_attempt_name(name):
        raise ValueError(f"{name[:120]!r} is no attempt's name")
    run, generation, attempt = name.rsplit("-", 2)
    return AttemptKey(run=RunKey(run), generation=int(generation[1:]), attempt=int(attempt[1:]))


def agent_body(
    gang: GangSpec,
    *,
    addresses: Mapping[NodeId, str] | None = None,
    binds_devices: bool = False,
    slices: Mapping[NodeId, Mapping[int, str]] | None = None,
) -> dict[str, Any]:
    """Return the body of a launch request, JSON-safe, nodes in order of their first rank.

    ``addresses`` are what other nodes reach a node by; without them all nodes are on one machine. ``binds_devices``:
    the engine itself shows processes their accelerators, and the agent keeps out of it. ``slices`` are the slots of
    each node that stand for a part of an accelerator, and what processes are shown of it.
    """
    placement = gang.placement
    layout = {
        name: value
        for name, value in dataclasses.asdict(gang.layout).items()
        if name in ("dp", "tp", "pp", "cp", "ep", "zero_stage", "micro_batch_size", "num_micro_batches")
    }
    return {
        "v": VERSION,
        "attempt_name": gang.key.name,
        "run_key": str(gang.key.run),
        "generation": gang.key.generation,
        "attempt": gang.key.attempt,
        "launcher": gang.launcher.value,
        "command": list(gang.command),
        "environment": dict(sorted(gang.environment.items())),
        "layout": layout,
        "world_size": placement.world_size,
        "nodes": [_part(placement, node, addresses, (slices or {}).get(node, {})) for node in placement.nodes],
        **_roles(gang),
        **_devices(gang, binds_devices=binds_devices),
        "channel_root": gang.channel_root,
        "channel_links": gang.channel_links,
        "start_limit_s": gang.start_limit_s,
        "grace_s": gang.grace_s,
        "exit_grace_s": gang.exit_grace_s,
        "flush_interval_s": gang.flush_interval_s,
        "lease_s": gang.lease_s,
        "origin": None if gang.origin is None else dataclasses.asdict(gang.origin),
    }


def held_slots(part: Mapping[str, Any]) -> list[int]:
    """Return the accelerators that a gang holds of one node, an entry of its body's ``nodes``."""
    return [*part["slots"], *(slot for helper in part.get("helpers", ()) for slot in helper["slots"])]


def members_on(part: Mapping[str, Any]) -> list[int]:
    """Return the numbers of a gang's members on one node: ranks, and helpers from the world size on."""
    return [*part["ranks"], *(helper["member"] for helper in part.get("helpers", ()))]


def _part(
    placement: Placement, node: NodeId, addresses: Mapping[NodeId, str] | None, slices: Mapping[int, str]
) -> dict[str, Any]:
    slots = [slot.slot for slot in placement.on(node)]
    helpers = [
        {
            "role": helper.role.value,
            "index": helper.index,
            "member": placement.world_size + position,
            "slots": list(helper.slots),
        }
        for position, helper in enumerate(placement.helpers)
        if helper.node == node
    ]
    return {
        "node": str(node),
        "ranks": [slot.rank for slot in placement.on(node)],
        "slots": slots,
        **({"shown": [slices.get(slot, str(slot)) for slot in slots]} if slices.keys() & set(slots) else {}),
        **({"helpers": helpers} if helpers else {}),
        **({} if addresses is None else {"address": addresses[node]}),
    }


def _roles(gang: GangSpec) -> dict[str, Any]:
    counts = Counter(helper.role for helper in gang.placement.helpers)
    roles = {
        role.kind.value: {"command": list(role.command), "num_ranks": counts[role.kind]}
        for role in gang.roles
        if role.kind in counts
    }
    return {"roles": roles} if roles else {}


def _devices(gang: GangSpec, *, binds_devices: bool) -> dict[str, Any]:
    if binds_devices or gang.accelerator_vendor not in _SHOWN:
        return {}
    return {"devices": {"vendor": gang.accelerator_vendor}}


def check_gang(
    gang: GangSpec, *, slots: Mapping[NodeId, int], slices: Mapping[NodeId, Mapping[int, str]] | None = None
) -> None:
    """Refuse what no agent can launch. ``slots`` counts the accelerators of each node that the engine has.

    ``slices`` as for :func:`agent_body`. Raises ``SpecError``.
    """
    if not is_attempt_name(gang.key.name):
        raise SpecError(
            path="key.run", value=gang.key.run, hint="must be a short name of letters, digits, '.', '_', '-'"
        )
    _check_command("command", gang.command)
    for index, role in enumerate(gang.roles):
        _check_command(f"roles[{index}].command", role.command)
    name = "channel_root" if gang.channel_links is None else "channel_links"
    if not str(getattr(gang, name)).startswith("/"):
        raise SpecError(path=name, value=getattr(gang, name), hint="must be an absolute path on every node")
    _check_environment(gang)
    _check_placement(gang, slots=slots, slices=slices or {})
    for name in ("start_limit_s", "flush_interval_s"):
        if not getattr(gang, name) > 0:
            raise SpecError(path=name, value=getattr(gang, name), hint="must be above 0 s")
    for name in ("grace_s", "exit_grace_s"):
        if not getattr(gang, name) >= 0:
            raise SpecError(path=name, value=getattr(gang, name), hint="must be 0 s or more")


def _check_command(path: str, command: tuple[str, ...]) -> None:
    if not command or not command[0]:
        raise SpecError(path=path, value=command, hint="must name a program to run for each rank")
    if any("\0" in part for part in command):
        raise SpecError(path=path, hint="must not contain a NUL character: no program can be given one")


def _check_environment(gang: GangSpec) -> None:
    for name, value in gang.environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            # The value is not shown: it may be one that nobody should read in a log.
            raise SpecError(path="environment", value=name, hint="is no legal environment entry (empty, '=' or NUL)")
        if name in _AGENT_SETS:
            raise SpecError(path="environment", value=name, hint="is set by the agent; choose another name")


def _check_placement(
    gang: GangSpec, *, slots: Mapping[NodeId, int], slices: Mapping[NodeId, Mapping[int, str]]
) -> None:
    placement = gang.placement
    if placement.world_size != gang.layout.world_size:
        hint = f"must place as many ranks as the layout has: {gang.layout.world_size}"
        raise SpecError(path="placement", value=placement.world_size, hint=hint)
    if [slot.rank for slot in placement.slots] != list(range(placement.world_size)):
        raise SpecError(path="placement", hint="must list ranks 0, 1, 2, ... in order")
    _check_helpers(gang)
    taken: set[tuple[NodeId, int]] = set()
    for node in placement.nodes:
        if node not in slots:
            raise SpecError(path="placement", value=node, hint=f"must use the engine's nodes: {', '.join(slots)}")
        for slot in placement.held_on(node):
            is_there = 0 <= slot < slots[node] or slot in slices.get(node, {})
            if not is_there or (node, slot) in taken:
                parts = "".join(f", {part}" for part in slices.get(node, {}))
                hint = f"must use each of slots 0 to {slots[node] - 1}{parts} of node {node} at most once"
                raise SpecError(path="placement", value=slot, hint=hint)
            taken.add((node, slot))
    if gang.launcher in (Launcher.TORCHRUN, Launcher.DEEPSPEED):
        _check_order(gang)


def _check_order(gang: GangSpec) -> None:
    """These launchers count ranks through, node after node: any other order they would silently put right."""
    placement = gang.placement
    in_order = [slot.rank for node in placement.nodes for slot in placement.on(node)]
    if in_order != sorted(in_order):
        name = gang.launcher.value
        hint = (
            f"must give each node a row of ranks of its own for {name}, which counts them through: use launcher plain"
        )
        raise SpecError(path="placement", value=in_order, hint=hint)


def _check_helpers(gang: GangSpec) -> None:
    """Refuse helpers that run nothing, or are not counted 0, 1, 2, ... within their role."""
    commands = {role.kind for role in gang.roles}
    counted: Counter[RoleKind] = Counter()
    for helper in gang.placement.helpers:
        if helper.role not in commands or helper.role is RoleKind.TRAINER:
            raise SpecError(path="roles", value=helper.role.value, hint="has a place in the gang but nothing to run")
        if helper.index != counted[helper.role]:
            raise SpecError(path="placement", value=helper.index, hint=f"must list each {helper.role.value} in order")
        counted[helper.role] += 1
