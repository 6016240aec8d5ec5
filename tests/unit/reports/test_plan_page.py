from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from airflow_llmsched.reports import plan_page, words
from tests.support.fleets import fleet, workload
from tests.support.models import LLAMA31_8B

RUN = workload(LLAMA31_8B, num_sequences=64, name="tokens & <more>")


@pytest.fixture(scope="module")
def found() -> PlanSearch:
    return search(RUN, fleet(1), node_shapes(), solver=BestFitSolver())


def test_a_page_has_every_plan_every_reason_and_the_words(found: PlanSearch) -> None:
    text = plan_page.render(RUN, found, "Chosen: this.\n\nBecause:\n  of <that>")
    assert "tokens &amp; &lt;more&gt;" in text
    assert '<p class="words">Chosen: this.</p>' in text
    assert "Because:\n  of &lt;that&gt;" in text
    for plan in found.plans:
        assert plan.layout.describe() in text
    for reason, number in found.rejections.items():
        assert f'<td class="number">{number:,}</td><td class="long">{reason}</td>' in text
    assert text.count('class="plot"') == 3


def test_cards_are_of_the_first_plan_and_of_the_whole_run(found: PlanSearch) -> None:
    prediction = found.plans[0].prediction
    text = plan_page.render(RUN, found, "")
    for value in (
        words.duration(prediction.step_s),
        words.percent(prediction.mfu_ratio),
        words.duration(prediction.run_s),
        words.money(prediction.run_usd),
    ):
        assert f'<div class="value">{value}</div>' in text


def test_millions_fit_into_a_card(found: PlanSearch) -> None:
    (best, *_) = found.plans
    dear = replace(best, prediction=replace(best.prediction, run_usd=1_947_038.8))
    assert '<div class="value">$1.95 M</div>' in plan_page.render(RUN, PlanSearch(plans=(dear,)), "")


def test_energy_has_a_card_where_it_is_known(found: PlanSearch) -> None:
    (best, *_) = found.plans
    known = replace(best.prediction, run_energy_j=7.2e9, run_s=72_000.0)
    text = plan_page.render(RUN, PlanSearch(plans=(replace(best, prediction=known),)), "")
    assert '<div class="value">2,000 kWh</div><div class="below">100 kW</div>' in text
    silent = replace(best, prediction=replace(known, run_energy_j=None))
    assert "kWh" not in plan_page.render(RUN, PlanSearch(plans=(silent,)), "")


def test_a_machine_whose_power_nobody_states_has_a_card_that_says_so(found: PlanSearch) -> None:
    best = found.plans[0]
    silent = replace(
        best.prediction, step_energy_j=None, run_energy_j=None, energy_unknown="nobody states what a tpu-v5e draws"
    )
    said = replace(found, plans=(replace(best, prediction=silent), *found.plans[1:]))
    text = plan_page.render(RUN, said, "")
    assert "not known" in text
    assert "nobody states what a tpu-v5e draws" in text


def test_without_a_plan_the_page_says_why() -> None:
    text = plan_page.render(RUN, PlanSearch(plans=(), rejections={"too large": 3}), "No plan: of 3.")
    assert "Why there is none" in text
    assert "too large" in text
    assert "<script" not in text


def test_a_page_that_cannot_be_written_is_an_error(found: PlanSearch, tmp_path: Path) -> None:
    plan_page.write(RUN, found, "", tmp_path / "new" / "plan.html")
    assert (tmp_path / "new" / "plan.html").read_text().startswith("<!doctype html>")
    with pytest.raises(SpecError, match="cannot be written"):
        plan_page.write(RUN, found, "", tmp_path / "new" / "plan.html" / "below")
