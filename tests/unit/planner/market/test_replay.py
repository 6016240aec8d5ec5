from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.planner.market.rental import Holding, RentalChoice, RentalView
from airflow_llmsched.planner.market.replay import Replay, replay
from airflow_llmsched.planner.market.values import SpotTerms

TERMS = SpotTerms(time_s=1000.0, work_s=300.0, changeover_s=50.0, spot_ratio=0.5)


class Script:
    """Chooses by the tick: (what to hold, in which pool)."""

    def __init__(self, *choices: tuple[Holding, int]) -> None:
        self._choices = choices
        self.views: list[RentalView] = []

    def begin(self, terms: SpotTerms, *, num_runs: int, num_pools: int) -> None:
        self.views.clear()

    def choose(self, view: RentalView) -> RentalChoice:
        holding, pool = self._choices[min(len(self.views), len(self._choices) - 1)]
        self.views.append(view)
        num_runs = len(view.work_s_N)
        return RentalChoice(holding_N=np.full(num_runs, holding), pool_N=np.full(num_runs, pool))


def played(script: Script, *up_T: str, start: int = 0) -> Replay:
    up_ZT = np.array([[mark == "#" for mark in line] for line in up_T])
    return replay(up_ZT, tick_s=100.0, starts_N=np.array([start]), terms=TERMS, policy=script)


def test_on_demand_costs_the_work_and_one_changeover() -> None:
    done = played(Script((Holding.ON_DEMAND, 0)), "." * 10)
    assert (done.cost_s_N.item(), done.in_time_N.item(), done.num_changeovers_N.item()) == (350.0, True, 1)


def test_spot_costs_its_share() -> None:
    assert played(Script((Holding.SPOT, 0)), "#" * 10).cost_s_N.item() == pytest.approx(175.0)


def test_spot_that_is_not_there_is_not_had() -> None:
    done = played(Script((Holding.SPOT, 0)), "." * 10)
    assert (done.cost_s_N.item(), done.in_time_N.item()) == (0.0, False)


def test_interruption_costs_the_changeover_again() -> None:
    # 50 of 100 s work in tick 0, 100 in tick 1, lost in tick 2, 50 in tick 3, 100 in tick 4
    done = played(Script((Holding.SPOT, 0)), "##.#######")
    assert (done.cost_s_N.item(), done.num_changeovers_N.item()) == (200.0, 2)


def test_moving_to_another_pool_is_a_changeover() -> None:
    moves = Script((Holding.SPOT, 0), (Holding.SPOT, 1), (Holding.SPOT, 1))
    done = played(moves, "#" * 10, "#" * 10)
    assert done.num_changeovers_N.item() == 2
    assert done.cost_s_N.item() == pytest.approx(0.5 * (300 + 2 * 50))


def test_policy_sees_a_lost_pool_as_nothing_held() -> None:
    script = Script((Holding.SPOT, 0))
    played(script, "##.#######")
    assert [int(view.holding_N[0]) for view in script.views[:4]] == [0, 1, 0, 0]
    assert [view.left_s for view in script.views[:3]] == [1000.0, 900.0, 800.0]
    assert script.views[2].overhead_s_N[0] == 0.0


def test_last_tick_ends_with_the_deadline() -> None:
    terms = SpotTerms(time_s=250.0, work_s=240.0, changeover_s=0.0, spot_ratio=0.5)
    script = Script((Holding.ON_DEMAND, 0))
    done = replay(np.zeros((1, 3), dtype=bool), tick_s=100.0, starts_N=np.array([0]), terms=terms, policy=script)
    assert done.in_time_N.item()
    assert [view.tick_s for view in script.views] == [100.0, 100.0, 50.0]


def test_runs_start_where_they_are_told_to() -> None:
    up_ZT = np.array([[mark == "#" for mark in "#####" + "." * 15]])
    done = replay(up_ZT, tick_s=100.0, starts_N=np.array([0, 10]), terms=TERMS, policy=Script((Holding.SPOT, 0)))
    assert list(done.in_time_N) == [True, False]
