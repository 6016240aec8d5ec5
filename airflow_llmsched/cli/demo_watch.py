"""What a run looks like from outside Airflow: its files under the state root, read only, as far as they exist yet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_llmsched import codec
from airflow_llmsched.control.closing import SPEC_FILE
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.task_files import newest_task_file
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport, StepRecord
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.telemetry.channel import DirectoryChannel

_ATTEMPT_NAME = re.compile(r"-g(\d+)-a(\d+)$")


@dataclass(slots=True, kw_only=True)
class AttemptView:
    """One attempt, as its agents report it. ``saved`` are the steps of the checkpoints its trainer calls durable."""

    generation: int
    attempt: int
    ranks: set[int] = field(default_factory=set)
    nodes: dict[NodeId, int] = field(default_factory=dict)
    first_step: int | None = None
    last: StepRecord | None = None
    saved: set[int] = field(default_factory=set)

    def take(self, reports: Sequence[NodeReport]) -> None:
        """Add what new reports say."""
        for report in reports:
            self.ranks.update(each.rank for each in report.ranks)
            for each in report.ranks:
                self.nodes[report.node] = min(each.rank, self.nodes.get(report.node, each.rank))
            self.saved.update(mark.step for mark in report.marks)
            for step in report.steps:
                self.first_step = step.step if self.first_step is None else min(self.first_step, step.step)
                if self.last is None or step.step >= self.last.step:
                    self.last = step

    @property
    def name(self) -> str:
        """Short name: the number of the launch, and of the generation once there is more than one."""
        return str(self.attempt) if self.generation <= 1 else f"{self.generation}.{self.attempt}"

    @property
    def last_node(self) -> NodeId | None:
        """The node with the highest ranks, None before any has reported."""
        return max(self.nodes, key=self.nodes.__getitem__) if self.nodes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run now. ``num_steps`` is what it is to train."""

    phase: str
    num_steps: int
    attempts: tuple[AttemptView, ...]

    @property
    def current(self) -> AttemptView | None:
        """The newest attempt of which an agent has reported."""
        return self.attempts[-1] if self.attempts else None

    @property
    def saved(self) -> set[int]:
        """Steps of all checkpoints that a trainer calls durable."""
        return {step for each in self.attempts for step in each.saved}

    @property
    def done_ratio(self) -> float | None:
        """Share of the steps that the current attempt has behind it, None before its first."""
        if self.current is None or self.current.last is None:
            return None
        return self.current.last.step / self.num_steps


class RunWatcher:
    """Reads one run, each report once. Raises ``CouldNotLookError`` or ``StoreError`` when its files cannot be read."""

    def __init__(self, state_root: str, run_key: RunKey) -> None:
        self.directory = Path(state_root) / "runs" / run_key
        store = open_store(state_root)
        self._journal = Journal(store, run_key)
        self._num_steps = codec.from_json(WorkloadSpec, newest_task_file(store, run_key, SPEC_FILE)).num_steps
        self._attempts: dict[str, AttemptView] = {}
        self._cursors: dict[str, ChannelCursor] = {}

    def look(self) -> RunView:
        """Return the run as it is now."""
        for name, generation, attempt in self._attempt_names():
            view = self._attempts.setdefault(name, AttemptView(generation=generation, attempt=attempt))
            cursor = self._cursors.get(name, ChannelCursor(positions={}))
            reports, self._cursors[name] = DirectoryChannel(str(self.directory / "channel" / name)).read(cursor)
            view.take(reports)
        reported = [each for each in self._attempts.values() if each.ranks]
        summary = self._journal.read_summary()
        return RunView(
            phase="new" if summary is None else summary.phase,
            num_steps=self._num_steps,
            attempts=tuple(sorted(reported, key=lambda each: (each.generation, each.attempt))),
        )

    def _attempt_names(self) -> list[tuple[str, int, int]]:
        channels = self.directory / "channel"
        names = sorted(path.name for path in channels.iterdir()) if channels.exists() else []
        matches = [(name, _ATTEMPT_NAME.search(name)) for name in names]
        return [(name, int(match[1]), int(match[2])) for name, match in matches if match is not None]
