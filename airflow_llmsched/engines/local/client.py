"""The local engine's only I/O: attempts on this machine, and which of the nodes it plays are down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.agent.spool import read_json, write_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.attempts import Attempts

_TAKE_DOWN = EffectPoint("local.preempt.take_down")


class LocalClient(Attempts):
    """Files and processes under one root, of every node."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._nodes = root / "nodes"

    def downtime(self, node: NodeId, *, now_s: float) -> dict[str, Any] | None:
        """Return why and until when (``return_at_s``) a node is down, or None when it is up."""
        down = read_json(self._nodes / f"{node}.json")
        return down if down is not None and now_s < down["return_at_s"] else None

    def take_down(self, node: NodeId, down: Mapping[str, Any]) -> None:
        """Record that a node is down, or about to be."""
        with _TAKE_DOWN:
            self._nodes.mkdir(exist_ok=True)
            write_json(self._nodes / f"{node}.json", dict(down))
