"""A plan search as one HTML file that needs nothing from anywhere else: the plans, their costs, and why."""

from __future__ import annotations

from pathlib import Path

from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.reports import words
from airflow_llmsched.reports.files import replace_file
from airflow_llmsched.reports.page import render_page
from airflow_llmsched.units import KWH_J


def write(workload: WorkloadSpec, found: PlanSearch, explanation: str, path: Path) -> None:
    """Write the page to ``path``. Raises ``SpecError`` when that is not possible."""
    try:
        replace_file(path, render(workload, found, explanation).encode())
    except OSError as error:
        raise SpecError(path=str(path), hint=f"cannot be written: {error.strerror}") from None


def render(workload: WorkloadSpec, found: PlanSearch, explanation: str) -> str:
    """Return the page. ``explanation`` is the search in words, its paragraphs apart by empty lines."""
    from airflow_llmsched.reports.plan_figures import figures  # noqa: PLC0415 - loads Plotly

    return render_page(
        "plan.html.j2",
        figures(found),
        words=words,
        name=workload.name,
        model=workload.model.name if workload.model else None,
        cards=_cards(workload, found.plans[0]) if found.plans else [],
        paragraphs=explanation.split("\n\n"),
        plans=[_row(plan) for plan in found.plans],
        rejections=found.rejections,
        num_candidates=found.num_candidates,
    )


def _cards(workload: WorkloadSpec, best: Plan) -> list[tuple[str, str, str]]:
    """Title, value and a line below it, most asked for first."""
    prediction = best.prediction
    low, high = map(words.duration, prediction.step_band_s)
    num_nodes = len(best.placement.nodes)
    cards = [
        ("Step time", words.duration(prediction.step_s), f"{low} to {high}"),
        ("MFU", words.percent(prediction.mfu_ratio), f"{words.count(prediction.tokens_per_s)} tokens a second"),
        ("Memory of the fullest rank", words.size(prediction.memory_bytes_per_rank), best.node_shape),
        ("Ranks", words.count(best.layout.world_size), f"on {num_nodes} node{'s' * (num_nodes > 1)}"),
        ("Run", words.duration(prediction.run_s), f"{words.count(workload.num_steps)} steps, nothing going wrong"),
        (
            "Cost of the run",
            _usd(prediction.run_usd),
            f"{words.money(prediction.usd_per_hour)} an hour",
        ),
    ]
    if prediction.run_energy_j is not None and prediction.run_s:
        power_kw = prediction.run_energy_j / prediction.run_s / 1000
        cards.append(
            ("Energy of the run", f"{words.count(prediction.run_energy_j / KWH_J)} kWh", f"{power_kw:,.3g} kW")
        )
    elif prediction.energy_unknown:
        cards.append(("Energy of the run", "not known", prediction.energy_unknown))
    return cards


def _usd(amount_usd: float) -> str:
    """Millions in three digits: a card has room for no more."""
    return words.money(amount_usd) if amount_usd < 1e6 else f"${words.count(amount_usd)}"


def _row(plan: Plan) -> tuple[str, ...]:
    prediction = plan.prediction
    return (
        f"{plan.layout.describe()} {plan.layout.describe_recompute()}",
        f"{plan.layout.world_size}/{len(plan.placement.nodes)}",
        words.duration(prediction.step_s),
        words.percent(prediction.mfu_ratio),
        words.size(prediction.memory_bytes_per_rank),
        words.money(prediction.usd_per_hour),
    )
