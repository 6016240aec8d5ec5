"""Spend at list price, and when a budget ends a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control.context import Failed, Succeeded
from airflow_llmsched.control.spending import Spend, spent_usd, used_up_at_s
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.domain.workload import WorkloadSpec
from tests.support.sim_house import ROOT, RUN, SimHouse, plan_of, workload_of


def launch(number: int, *, at_s: float | None, ended_at_s: float | None = None, usd_per_hour: float = 36.0):
    plan = plan_of(("n0", 2))
    return AttemptRecord(
        key=AttemptKey(run=RUN, generation=1, attempt=number),
        plan=replace(plan, prediction=replace(plan.prediction, usd_per_hour=usd_per_hour)),
        channel_root="",
        intended_at_s=0.0,
        launched_at_s=at_s,
        status=None
        if ended_at_s is None
        else GangStatus(phase=GangPhase.PREEMPTED, observed_at_s=ended_at_s, ended_at_s=ended_at_s),
    )


def test_each_launch_costs_its_plans_price_while_it_lasts() -> None:
    launches = [launch(1, at_s=100.0, ended_at_s=200.0), launch(2, at_s=250.0, usd_per_hour=18.0)]
    assert spent_usd(launches, now_s=350.0) == pytest.approx(1.0 + 0.5)


def test_a_launch_that_never_was_costs_nothing() -> None:
    assert spent_usd([launch(1, at_s=None)], now_s=1e6) == 0.0
    assert used_up_at_s([launch(1, at_s=None)], max_usd=1.0, now_s=1e6) is None


def test_a_budget_is_used_up_when_what_runs_has_cost_what_is_left() -> None:
    launches = [launch(1, at_s=100.0, ended_at_s=200.0), launch(2, at_s=250.0)]
    # 1 USD for the first; the second costs 0.01 USD a second
    assert used_up_at_s(launches, max_usd=3.0, now_s=300.0) == pytest.approx(450.0)


def test_an_overdrawn_budget_is_used_up_now() -> None:
    assert used_up_at_s([launch(1, at_s=0.0)], max_usd=1.0, now_s=500.0) == 500.0


def with_budget(max_usd: float) -> WorkloadSpec:
    workload = workload_of()
    return replace(workload, budget=replace(workload.budget, max_usd=max_usd))


def test_run_saves_and_ends_when_its_money_is_used_up() -> None:
    house = SimHouse(workload=with_budget(25.0 / 3600.0))  # 25 s at the plan's 1 USD an hour
    outcome = house.run()
    assert isinstance(outcome, Failed)
    assert "budget used up at step" in outcome.reason
    assert "budget.max_usd" in outcome.reason
    assert house.live() == ()
    newest = max(ref.step for ref in house.checkpoints.scan(ROOT) if ref.complete)
    assert newest % 10 != 0  # saved because it was asked to
    assert spent_usd(house.driver().attempts(), now_s=house.clock.now_s()) <= (25.0 + 3.0) / 3600.0


def test_run_within_its_budget_is_not_stopped() -> None:
    assert isinstance(SimHouse(workload=with_budget(1.0)).run(), Succeeded)


def test_used_up_budget_launches_nothing_more() -> None:
    house = SimHouse(workload=with_budget(25.0 / 3600.0))
    assert isinstance(house.run(), Failed)
    launches = house.driver().attempts()
    outcome = house.run(generation=1)
    assert isinstance(outcome, Failed)
    assert "budget used up" in outcome.reason
    assert house.driver().attempts() == launches


def test_gang_that_a_clear_stopped_is_charged_no_longer() -> None:
    house = SimHouse()
    house.driver().start()
    house.clock.sleep(20.0)
    house.driver(generation=1).start()
    first, second = house.driver().attempts()
    later_s = house.clock.now_s() + 3600.0
    assert spent_usd([first], now_s=later_s) == pytest.approx(20.0 / 3600.0, rel=0.5)
    assert spent_usd([second], now_s=later_s) == pytest.approx(1.0, rel=0.01)


def test_what_is_rented_uses_a_budget_up_by_the_hour() -> None:
    assert Spend(usd=1.0, usd_per_hour=36.0).used_up_at_s(max_usd=3.0, now_s=300.0) == pytest.approx(500.0)
    assert Spend(usd=3.0, usd_per_hour=36.0).used_up_at_s(max_usd=3.0, now_s=300.0) == 300.0
    assert Spend(usd=1.0).used_up_at_s(max_usd=3.0, now_s=300.0) is None


def test_a_run_is_stopped_when_what_it_has_rented_has_used_up_its_budget() -> None:
    house = SimHouse(workload=with_budget(1.0))
    began_s = house.clock.now_s()
    house.rented = lambda: Spend(usd=(house.clock.now_s() - began_s) / 25.0, usd_per_hour=3600.0 / 25.0)
    outcome = house.run()
    assert isinstance(outcome, Failed)
    assert "budget used up at step" in outcome.reason
    assert house.clock.now_s() - began_s < 25.0 + 5.0


def test_a_budget_that_rentals_have_used_up_launches_nothing() -> None:
    house = SimHouse(workload=with_budget(1.0))
    house.rented = lambda: Spend(usd=1.0)
    outcome = house.run()
    assert isinstance(outcome, Failed)
    assert "budget used up" in outcome.reason
    assert house.driver().attempts() == ()
