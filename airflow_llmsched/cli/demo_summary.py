"""The demo's last screen: what the run's report proves and what it does not. Pure."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.domain.run_report import AttemptRow, RunOutcome, RunReport


def shortfalls(report: RunReport) -> list[str]:
    """Return what the demo promises and this run did not show; empty when it showed everything."""
    found = []
    if report.outcome is not RunOutcome.SUCCEEDED:
        found.append(f"the run {report.outcome}: {report.reason}")
    if not any(_preempted(attempt) for attempt in report.attempts):
        found.append("no attempt was preempted")
    elif not any(_resumed_smaller(before, after) for before, after in _pairs(report)):
        found.append("no attempt resumed from a checkpoint on fewer ranks after the preemption")
    if not report.retrained_only_lost:
        found.append(f"steps {report.steps_trained_twice} were trained twice, but lost were {report.lost_steps}")
    if report.evaluation is None:
        found.append("there was no evaluation")
    elif not report.evaluation.passed:
        found.append(f"held-out loss {_number(report.evaluation.loss)} is above the gate {report.evaluation.max_loss}")
    return found


def summary(report: RunReport) -> RenderableType:
    """Return one screen: attempts, evaluation, cost, ledger, and whether it is what the demo promises."""
    found = shortfalls(report)
    verdict = Text("everything the demo promises happened", style="bold green")
    if found:
        verdict = Text("\n".join(["not as promised:", *(f"  {each}" for each in found)]), style="bold red")
    parts: list[RenderableType] = [_attempts(report), Text(), *_facts(report), Text(), _ledger(report), Text(), verdict]
    return Panel(Group(*parts), title=f"run {report.names.run_key}", border_style="red" if found else "green")


def _pairs(report: RunReport) -> list[tuple[AttemptRow, AttemptRow]]:
    return list(zip(report.attempts, report.attempts[1:], strict=False))


def _preempted(attempt: AttemptRow) -> bool:
    return attempt.phase is GangPhase.PREEMPTED or (
        attempt.fault is not None and attempt.fault.kind is FaultKind.PREEMPTED
    )


def _resumed_smaller(before: AttemptRow, after: AttemptRow) -> bool:
    fewer = after.placement.world_size < before.placement.world_size
    same_batch = after.layout.global_batch_size == before.layout.global_batch_size
    return _preempted(before) and fewer and same_batch and after.resumed_from_step is not None


def _attempts(report: RunReport) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("#", "ranks", "layout", "from", "kept", "lost", "s/step", "end"):
        table.add_column(name, no_wrap=True)
    for attempt in report.attempts:
        table.add_row(
            str(attempt.attempt),
            str(attempt.placement.world_size),
            attempt.layout.describe(),
            "start" if attempt.resumed_from_step is None else str(attempt.resumed_from_step),
            str(attempt.num_steps_kept),
            str(attempt.num_steps_lost),
            _number(attempt.step_s_median),
            str(attempt.phase or "unknown"),
        )
    return table


def _facts(report: RunReport) -> list[Text]:
    facts = []
    if report.evaluation is not None:
        gate = "no gate" if report.evaluation.max_loss is None else f"gate {report.evaluation.max_loss}"
        word = "passed" if report.evaluation.passed else "FAILED"
        at = f"held-out loss at step {report.evaluation.checkpoint_step}"
        facts.append(Text(f"{at}: {_number(report.evaluation.loss)} nats/byte ({gate}: {word})"))
    facts.append(Text(f"training loss at the end: {_number(report.final_loss)}"))
    cost = "unknown, a node shape has no list price" if report.usd is None else f"{report.usd:.4f} USD"
    facts.append(Text(f"cost at list price: {cost}"))
    return facts


def _ledger(report: RunReport) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in (f"of {report.ledger.wall_s:.1f} s", "s", "%"):
        table.add_column(name, justify="left" if name.startswith("of") else "right")
    for bucket in Bucket:
        spent_s = report.ledger.totals_s.get(bucket, 0.0)
        if spent_s > 0:
            table.add_row(bucket.value, f"{spent_s:.1f}", f"{100 * report.ledger.ratio(bucket):.1f}")
    return table


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
