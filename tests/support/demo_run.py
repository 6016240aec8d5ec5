"""A small run on disk, as the demo's watcher finds it, and the same as a value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airflow_llmsched import codec
from airflow_llmsched.cli.demo_watch import AttemptView, RunView
from airflow_llmsched.control.closing import SPEC_FILE
from airflow_llmsched.control.journal import Journal, RunSummary
from airflow_llmsched.control.task_files import task_file_key
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.progress import CheckpointMark, NodeReport, RankProgress, StepRecord
from airflow_llmsched.domain.workload import (
    BatchPhase,
    BudgetSpec,
    DatasetKind,
    DatasetSpec,
    TrainingStage,
    WorkloadSpec,
)
from airflow_llmsched.objects.open import open_store

RUN = RunKey("ls-abcdefghij2345abcdef")


def node_report(
    node: str, seq: int, *, ranks: Sequence[int], steps: Sequence[int] = (), saved: Sequence[int] = ()
) -> NodeReport:
    """One report; each step takes a second and has a loss of 4 - step / 100."""
    return NodeReport(
        node=NodeId(node),
        seq=seq,
        at_s=float(seq),
        ranks=tuple(RankProgress(rank=rank, step=None, heartbeat_s=float(seq), pid=100 + rank) for rank in ranks),
        steps=tuple(
            StepRecord(step=step, start_s=step - 1.0, end_s=float(step), loss=4 - step / 100, num_tokens=8)
            for step in steps
        ),
        marks=tuple(CheckpointMark(step=step, path=f"/checkpoints/{step}", at_s=float(step)) for step in saved),
    )


def view(*reports: NodeReport, attempt: int = 1, num_steps: int = 100, phase: str = "watching") -> RunView:
    """A run whose only attempt has made ``reports``."""
    seen = AttemptView(generation=0, attempt=attempt)
    seen.take(reports)
    return RunView(phase=phase, num_steps=num_steps, attempts=(seen,))


class RunOnDisk:
    """The files that tasks and agents write."""

    def __init__(self, state_root: Path, *, num_steps: int | None = 100) -> None:
        self.state_root = str(state_root)
        self.directory = state_root / "runs" / RUN
        self.directory.mkdir(parents=True)
        spec = WorkloadSpec(
            name="tiny",
            stage=TrainingStage.PRETRAIN,
            model=None,
            data=DatasetSpec(kind=DatasetKind.PYTHON_STDLIB),
            batch=(BatchPhase(from_tokens=0, sequence_length_tokens=8, num_sequences=4),),
            budget=BudgetSpec(num_steps=num_steps, num_tokens=None if num_steps else 1000),
        )
        open_store(self.state_root).put(task_file_key(RUN, SPEC_FILE, try_number=1), codec.to_json(spec))

    def report(self, *reports: NodeReport, attempt: int = 1, generation: int = 0) -> None:
        """Append reports to the channel of an attempt."""
        up = self.directory / "channel" / f"{RUN}-g{generation}-a{attempt}" / "up"
        up.mkdir(parents=True, exist_ok=True)
        for each in reports:
            with (up / f"{each.node}.jsonl").open("ab") as file:
                file.write(codec.to_json(each) + b"\n")

    def summarise(self, phase: str) -> None:
        """Write the run's summary."""
        summary = RunSummary(run_key=RUN, phase=phase, generation=0, attempt=1, updated_at_s=1.0)
        Journal(open_store(self.state_root), RUN).write_summary(summary)
