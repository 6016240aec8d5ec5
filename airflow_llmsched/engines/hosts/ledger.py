"""What the engine itself writes down of each attempt, in a folder that all processes of a deployment see.

The hosts cannot keep it: one that is cut off must neither hold up the giving up of an attempt nor let it start twice.
So the name of an attempt is given away here, once, as the local engine does it (``engines.attempts``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.agent import wire
from airflow_llmsched.agent.peer_open import new_token
from airflow_llmsched.agent.spool import create_json, read_json
from airflow_llmsched.domain.gang import GangStatus
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.agent_request import held_slots
from airflow_llmsched.engines.attempts import Attempts, locked
from airflow_llmsched.engines.hosts.states import Asked

_TOKEN = EffectPoint("hosts.ledger.token")
_GOING = EffectPoint("hosts.ledger.going")
_GONE = EffectPoint("hosts.ledger.gone")
_ABORT = EffectPoint("hosts.ledger.abort")
_STOP = EffectPoint("hosts.ledger.stop")
_END = EffectPoint("hosts.ledger.end")
_OFF = EffectPoint("hosts.ledger.off")


class Ledger(Attempts):
    """Records below one root; no node of any attempt is on this machine."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, node="")
        self._fences = root / "fences"

    def token(self, name: str) -> str:
        """Return what the attempt's supervisors know one another by: the same for whoever asks."""
        gang = self.gang(name)
        with _TOKEN:
            create_json(gang.token, {"v": wire.VERSION, "token": new_token()})
        return str((read_json(gang.token) or {})["token"])

    def asked(self, name: str) -> Asked:
        """Return what is known here. Raises ``CouldNotLookError``, ``OSError``, ``ValueError``."""
        gang, request = self.gang(name), self.request(name)
        body = request["body"]
        stop = read_json(gang.stop)
        return Asked(
            nodes=self.nodes(name),
            submitted_at_s=request["submitted_at_s"],
            start_limit_s=body["start_limit_s"],
            grace_s=body["grace_s"],
            stop_at_s=None if stop is None else stop["at_s"],
            abort=read_json(gang.abort),
            is_gone_to=self._going(name).exists(),
        )

    def nodes(self, name: str) -> tuple[NodeId, ...]:
        """Return an attempt's nodes, in order of their first rank."""
        return tuple(NodeId(part["node"]) for part in self.request(name)["body"]["nodes"])

    def is_decided(self, name: str) -> bool:
        """Whether all hosts were told to go, or the attempt has been given up: there is nothing left to launch."""
        gang = self.gang(name)
        return gang.go.exists() or gang.abort.exists() or gang.stop.exists()

    def is_given_up(self, name: str) -> bool:
        """Whether nothing may be started any more."""
        gang = self.gang(name)
        return gang.abort.exists() or gang.stop.exists()

    def going(self, name: str) -> None:
        """Note that hosts are about to be told to go: from now on there may be ranks."""
        with _GOING:
            create_json(self._going(name), {"v": wire.VERSION, "at_s": time.time()})

    def gone(self, name: str, where: Mapping[str, Any]) -> None:
        """Note that all hosts have been told to go."""
        with _GONE:
            create_json(self.gang(name).go, {"v": wire.VERSION, "at_s": time.time(), **where})

    def give_up(self, name: str, *, node: NodeId, reason: str) -> None:
        """Note that the launch failed. Who said so first is kept."""
        abort = {"v": wire.VERSION, "node": node, "at_s": time.time(), "fault": "start_failed", "rank": None}
        with _ABORT:
            create_json(self.gang(name).abort, {**abort, "reason": reason})

    def note_stop(self, name: str, *, grace_s: float) -> None:
        """Note that the attempt was told to stop, before any host is."""
        with _STOP:
            create_json(self.gang(name).stop, {"v": wire.VERSION, "at_s": time.time(), "grace_s": grace_s})

    def end(self, name: str) -> GangStatus | None:
        """Return how an attempt ended, once nothing of it can be alive; None before that."""
        record = read_json(self._end(name))
        return None if record is None else codec.from_plain(GangStatus, record["status"])

    def note_end(self, name: str, status: GangStatus) -> None:
        """Remember it: its hosts may be given back, and must not be asked for ever."""
        with _END:
            create_json(self._end(name), {"v": wire.VERSION, "status": codec.to_plain(status)})

    def has_gone(self, name: str) -> bool:
        """Whether all of an attempt's hosts answered that they went: nothing of it can start any more."""
        return self.gang(name).go.exists()

    @contextlib.contextmanager
    def fencing(self, node: NodeId) -> Iterator[None]:
        """Keep everybody else from fencing a host. Raises ``CouldNotLookError``."""
        with _OFF:
            self._fences.mkdir(exist_ok=True)
        with locked(self._fences / f"{node}.lock"):
            yield

    def note_off(self, names: Iterable[str], node: NodeId) -> None:
        """Note of attempts that one of their hosts is proven off, now, whatever becomes of it later."""
        for name in names:
            with _OFF:
                self._off(name, node).parent.mkdir(exist_ok=True)
                create_json(self._off(name, node), {"v": wire.VERSION, "at_s": time.time()})

    def off_at_s(self, name: str, node: NodeId) -> float | None:
        """Return when a host of an attempt was proven off, None if it was not."""
        record = read_json(self._off(name, node))
        return None if record is None else float(record["at_s"])

    def pending_slots(self) -> dict[NodeId, frozenset[int]]:
        """Return the slots of attempts whose hosts may not know of them yet. Raises ``CouldNotLookError``.

        Whoever submits one and dies keeps them for as long as its start may take.
        """
        pending: dict[NodeId, frozenset[int]] = {}
        for name in self.names():
            if self.abandoned(name) or self.is_decided(name):
                continue
            request = self.request(name)
            if time.time() >= request["submitted_at_s"] + request["body"]["start_limit_s"]:
                continue
            for part in request["body"]["nodes"]:
                node = NodeId(part["node"])
                pending[node] = pending.get(node, frozenset()) | set(held_slots(part))
        return pending

    def _going(self, name: str) -> Path:
        return self.gang(name).path / "going.json"

    def _off(self, name: str, node: NodeId) -> Path:
        return self.gang(name).path / "off" / f"{node}.json"

    def _end(self, name: str) -> Path:
        return self.gang(name).path / "end.json"
