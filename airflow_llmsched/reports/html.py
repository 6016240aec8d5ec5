"""The report as one HTML file that needs nothing from anywhere else."""

from __future__ import annotations

from airflow_llmsched.domain.run_report import AttemptRow, CheckpointState, RunOutcome, RunReport
from airflow_llmsched.reports import words
from airflow_llmsched.reports.page import render_page
from airflow_llmsched.reports.palette import BUCKET_COLOUR, BUCKET_MEANING

MAX_CHECKPOINT_ROWS = 200
NUM_PLACEMENTS_OPEN = 4
MAX_NODES_SHOWN = 128

OUTCOME_CLASS = {RunOutcome.SUCCEEDED: "good", RunOutcome.UNFINISHED: "plain"}


def render(report: RunReport) -> str:
    """Return the page. It shows whatever is known; what is missing says so."""
    from airflow_llmsched.reports.figures import figures  # noqa: PLC0415 - loads Plotly

    return render_page(
        "report.html.j2",
        figures(report),
        report=report,
        words=words,
        cards=_cards(report),
        outcome_class=OUTCOME_CLASS.get(report.outcome, "bad"),
        ledger_rows=[
            (bucket.value, BUCKET_COLOUR[bucket], BUCKET_MEANING[bucket], report.ledger.totals_s[bucket])
            for bucket in BUCKET_COLOUR
            if report.ledger.totals_s.get(bucket, 0.0) > 0
        ],
        checkpoints=report.checkpoints[-MAX_CHECKPOINT_ROWS:],
        placements=[(attempt, _grid(report, attempt)) for attempt in report.attempts],
        num_placements_open=NUM_PLACEMENTS_OPEN,
        max_nodes_shown=MAX_NODES_SHOWN,
    )


def _cards(report: RunReport) -> list[tuple[str, str, str]]:
    """Title, value and a line below it, most asked for first."""
    num_kept = sum(row.kept for row in report.steps)
    result = report.evaluation
    gate = "no gate" if result is None or result.max_loss is None else f"gate {words.loss(result.max_loss)}"
    verdict = "" if result is None else f"{gate}, {'passed' if result.passed else 'not passed'}"
    twice = "only these were trained twice" if report.retrained_only_lost else "NOT the steps trained twice"
    lost = f"lost: {words.steps(report.lost_steps)}; {twice}" if report.lost_steps else "none lost, none trained twice"
    if not report.lost_steps and report.steps_trained_twice:
        lost = f"trained twice without being lost: {words.steps(report.steps_trained_twice)}"
    return [
        ("Training time ratio (ETTR)", words.percent(report.ledger.ettr_ratio), "useful seconds over wall seconds"),
        ("Wall time", words.duration(report.ledger.wall_s), f"from {words.moment(report.ledger.start_s)}"),
        ("Steps kept", words.count(num_kept), lost),
        ("Training loss", words.loss(report.final_loss), "of the last step kept"),
        ("Held-out loss", words.loss(result.loss if result else None), verdict or "not evaluated"),
        (
            "Step time",
            words.duration(report.step_s_median),
            f"median; 95% within {words.duration(report.step_s_p95)}; MFU {words.percent(report.mfu_ratio)}",
        ),
        ("Tokens", words.count(report.num_tokens_kept), f"kept; {words.count(report.num_tokens_lost)} lost"),
        ("Cost of launches" if report.num_rentals else "Cost", words.money(report.usd), _cost_words(report)),
        *_rented(report),
        ("Attempts", words.count(len(report.attempts)), _fault_words(report.num_faults)),
        ("Newest checkpoint", *_newest_checkpoint(report)),
    ]


def _rented(report: RunReport) -> list[tuple[str, str, str]]:
    if not report.num_rentals:
        return []
    return [("Cost of rented capacity", words.money(report.rented_usd), words.rented(report))]


def _cost_words(report: RunReport) -> str:
    source = f"at {report.price_source}" if report.price_source else "no price list"
    return "; ".join(filter(None, (words.earlier(report), source)))


def _fault_words(num_faults: int) -> str:
    return {0: "no fault", 1: "one fault"}.get(num_faults, f"{num_faults} faults")


def _newest_checkpoint(report: RunReport) -> tuple[str, str]:
    whole = [row for row in report.checkpoints if row.state in (CheckpointState.VERIFIED, CheckpointState.COMPLETE)]
    if not whole:
        return words.UNKNOWN, "no complete one is known"
    newest = whole[-1]
    return f"step {newest.step}", f"{newest.state.value}; {len(report.checkpoints)} known"


def _grid(report: RunReport, attempt: AttemptRow) -> list[tuple[str, list[int | None]]]:
    """Nodes of the whole run, each with the rank on every slot in this attempt; None: nothing of ours there."""
    slots = [slot for row in report.attempts for slot in row.placement.slots]
    width = max((slot.slot for slot in slots), default=-1) + 1
    rank_at = {(slot.node, slot.slot): slot.rank for slot in attempt.placement.slots}
    nodes = sorted({slot.node for slot in slots})
    return [(node, [rank_at.get((node, index)) for index in range(width)]) for node in nodes]
