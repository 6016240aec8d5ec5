"""What of one attempt never changes once it is there, remembered: a poll of many gangs reads only the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmsched.agent.gangdir import GangDir, NodeDir
from airflow_llmsched.agent.proc import Process
from airflow_llmsched.agent.spool import read_json


class AttemptFiles:
    """One attempt's directory. Raises ``OSError`` or ``ValueError`` for what is there but cannot be read."""

    def __init__(self, gang: GangDir) -> None:
        self.gang = gang
        self._nodes: dict[str, NodeDir] = {}
        self._request: dict[str, Any] | None = None
        self._supervisors: dict[str, Process] = {}
        self._started: dict[str, Mapping[str, Any]] = {}

    def request(self) -> dict[str, Any] | None:
        """Return what was submitted; None while it is not there."""
        if self._request is None:
            self._request = read_json(self.gang.request)
        return self._request

    def node(self, node: str) -> NodeDir:
        """Return one node's part."""
        if node not in self._nodes:
            self._nodes[node] = self.gang.node(node)
        return self._nodes[node]

    def supervisor(self, node: str) -> Process | None:
        """Return who claimed the node, or None."""
        if node not in self._supervisors:
            supervisor = self.node(node).supervisor()
            if supervisor is None:
                return None
            self._supervisors[node] = supervisor
        return self._supervisors[node]

    def started(self, node: str) -> Mapping[str, Any] | None:
        """Return the record that all ranks of the node have started, or None."""
        if node not in self._started:
            started = read_json(self.node(node).started)
            if started is None:
                return None
            self._started[node] = started
        return self._started[node]
