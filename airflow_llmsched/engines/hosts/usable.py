"""Whether hosts can be used: seen, on time, with what is free, with healthy GPUs, and with a way to control."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from airflow_llmsched.domain.gang import LaunchRequest
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.slots import taken_of
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.agent_request import held_slots
from airflow_llmsched.engines.hosts.inventory import Host
from airflow_llmsched.engines.hosts.ledger import Ledger
from airflow_llmsched.engines.hosts.looking import Looking, parts_of
from airflow_llmsched.engines.hosts.words import Off, Seen, Survey, Unseen
from airflow_llmsched.errors import CapacityError, SpecError

_SIGN = EffectPoint("hosts.submit.sign")

CLOCK_LIMIT_S = 5.0
"""How far a host's clock may be from ours: leases are told in Unix seconds, and control allows for so much."""


class Usable:
    """Judges hosts. ``check_gpus``: whether each slot must be a healthy GPU."""

    def __init__(self, looking: Looking, ledger: Ledger, *, check_gpus: bool) -> None:
        self._looking = looking
        self._ledger = ledger
        self._check_gpus = check_gpus

    def look(self, hosts: Sequence[Host]) -> dict[NodeId, tuple[frozenset[int], str | None]]:
        """Return, by host, the slots in use and why it cannot be used (None: it can). Raises ``CouldNotLookError``."""
        sent_at_s = time.time()
        pending = self._ledger.pending_slots()
        seen = self._looking.survey(dict.fromkeys(hosts, ()), slots=True, gpus=self._check_gpus)
        return {host.name: self._judged(host, seen[host.name], pending, sent_at_s=sent_at_s) for host in hosts}

    def admit(self, request: LaunchRequest, hosts: Sequence[Host]) -> bool:
        """Return whether the attempt may start; False when a host has one of which there is no record here.

        Raises ``CapacityError`` for a host or slot that cannot be used now, ``SpecError`` when a host does not see the
        folder through which its agent is to talk to control.
        """
        name, body = request.key.name, request.body
        pending = self._ledger.pending_slots()
        channel = Path(body["channel_root"]) if body["channel_links"] is None else None
        with _sign_in(channel) as sign:
            sent_at_s = time.time()
            told = {"slots": True, "gpus": self._check_gpus, "folder_seen": sign}
            seen = self._looking.survey(dict.fromkeys(hosts, (name,)), **told)
        if parts_of(name, seen):
            return False
        for part in body["nodes"]:
            host = next(host for host in hosts if host.name == part["node"])
            used, unusable = self._judged(host, seen[host.name], pending, sent_at_s=sent_at_s)
            if unusable is not None:
                raise CapacityError(f"host {host.name} cannot be used: {unusable}; wait, or use another")
            taken = sorted(taken_of(held_slots(part), used))
            if taken:
                raise CapacityError(f"slots {taken} of host {host.name} are in use; wait, or use others")
        if channel is not None:
            _refuse_unshared(channel, seen)
        return True

    def _judged(
        self, host: Host, seen: Seen, pending: dict[NodeId, frozenset[int]], *, sent_at_s: float
    ) -> tuple[frozenset[int], str | None]:
        mine = pending.get(host.name, frozenset())
        if isinstance(seen, Unseen | Off):
            return mine, seen.reason
        return seen.used_slots | mine, _clock_trouble(seen, sent_at_s=sent_at_s) or self._gpu_trouble(host, seen)

    def _gpu_trouble(self, host: Host, seen: Survey) -> str | None:
        if not self._check_gpus:
            return None
        gpus = seen.gpus or {}
        num_healthy = gpus.get("num_healthy")
        if isinstance(num_healthy, int) and num_healthy >= host.num_slots:
            return None
        trouble = gpus.get("trouble") or f"it has {num_healthy} healthy GPUs"
        return f"it does not show {host.num_slots} healthy GPUs: {trouble}"


def _refuse_unshared(channel: Path, seen: Mapping[NodeId, Seen]) -> None:
    blind = [node for node, each in seen.items() if isinstance(each, Survey) and not each.folder_seen]
    if blind:
        raise SpecError(
            path="channel_root",
            value=str(channel),
            hint=f"must be a folder that all hosts share, and {', '.join(blind)} does not see it: mount it there, "
            "or have agents report into a bucket ([llmsched] channel_uri)",
        )


def _clock_trouble(seen: Survey, *, sent_at_s: float) -> str | None:
    """Say how far a host's clock is from ours, when that is too far; None when it is not.

    It told its time after it was asked and before now.
    """
    off_s = max(seen.at_s - time.time(), sent_at_s - seen.at_s)
    if off_s <= CLOCK_LIMIT_S:
        return None
    return f"its clock is {off_s:.0f} s off: leases rest on clocks that agree; run NTP there"


@contextlib.contextmanager
def _sign_in(folder: Path | None) -> Iterator[str | None]:
    """Put up a file that only those see who see this very folder, and yield its path; None for no folder."""
    if folder is None:
        yield None
        return
    sign = folder / f".seen-{uuid.uuid4().hex}"
    with _SIGN:
        folder.mkdir(parents=True, exist_ok=True)
        sign.touch()
    try:
        yield str(sign)
    finally:
        with _SIGN:
            sign.unlink(missing_ok=True)
