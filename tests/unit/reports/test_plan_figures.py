from __future__ import annotations

import math

import pytest

from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from airflow_llmsched.reports.plan_figures import MAX_BARS, figures
from airflow_llmsched.units import GIB
from tests.support.fleets import fleet, workload
from tests.support.models import LLAMA31_8B


@pytest.fixture(scope="module")
def found() -> PlanSearch:
    return search(workload(LLAMA31_8B, num_sequences=64), fleet(2), node_shapes(), solver=BestFitSolver())


def test_bars_are_as_long_as_steps_and_as_memory(found: PlanSearch) -> None:
    drawn = figures(found)
    for index, plan in enumerate(found.plans[:MAX_BARS]):
        assert math.fsum(bar.x[index] for bar in drawn["step"].data) == pytest.approx(plan.prediction.step_s)
        gib = math.fsum(bar.x[index] for bar in drawn["memory"].data)
        assert gib == pytest.approx(plan.prediction.memory_bytes_per_rank / GIB)


def test_the_largest_term_comes_first(found: PlanSearch) -> None:
    sums = [sum(bar.x) for bar in figures(found)["step"].data]
    assert sums == sorted(sums, reverse=True)


def test_every_plan_is_a_mark_by_its_number(found: PlanSearch) -> None:
    (marks,) = figures(found)["trade"].data
    assert list(marks.text) == [str(number) for number in range(1, len(found.plans) + 1)]
    assert marks.x[0] == found.plans[0].prediction.step_s


def test_without_plans_nothing_is_drawn() -> None:
    assert figures(PlanSearch(plans=())) == {}
