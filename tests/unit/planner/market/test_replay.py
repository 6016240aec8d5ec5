from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.planner.market.modes import Mode, ModeSet, Move, reshaped
from airflow_llmsched.planner.market.rental import Holding, RentalChoice, RentalView
from airflow_llmsched.planner.market.replay import Replay, replay
from airflow_llmsched.planner.market.values import SpotTerms
from tests.support.modes import elsewhere, mixed

TERMS = SpotTerms(time_s=1000.0, work_s=300.0, changeover_s=50.0, spot_ratio=0.5)


class Script:
    """Chooses by the tick: (what to hold, in which pool, and in which mode if there are several)."""

    def __init__(self, *choices: tuple[Holding, int] | tuple[Holding, int, int]) -> None:
        self._choices = choices
        self.views: list[RentalView] = []

    def begin(self, terms: SpotTerms, *, num_runs: int, num_pools: int) -> None:
        self.views.clear()

    def choose(self, view: RentalView) -> RentalChoice:
        holding, pool, *mode = self._choices[min(len(self.views), len(self._choices) - 1)]
        self.views.append(view)
        num_runs = len(view.work_s_N)
        return RentalChoice(
            holding_N=np.full(num_runs, holding),
            pool_N=np.full(num_runs, pool),
            mode_N=np.full(num_runs, mode[0]) if mode else None,
        )


def played(
    script: Script, *up_T: str, start: int = 0, stock: str | None = None, modes: ModeSet | None = None
) -> Replay:
    up_ZT = np.array([[mark == "#" for mark in line] for line in up_T])
    return replay(
        up_ZT,
        tick_s=100.0,
        starts_N=np.array([start]),
        terms=TERMS,
        policy=script,
        in_stock_T=None if stock is None else np.array([mark == "#" for mark in stock]),
        modes=modes,
    )


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


def test_on_demand_capacity_that_is_out_of_stock_is_refused_and_what_is_held_stays() -> None:
    orders = Script((Holding.SPOT, 0), (Holding.ON_DEMAND, 0))
    done = played(orders, "#" * 10, stock="..#" + "." * 7)
    assert [int(view.holding_N[0]) for view in orders.views[:4]] == [
        0,
        1,
        1,
        2,
    ]  # had in tick 2, and kept though it ran out
    assert done.in_time_N.item()
    assert done.cost_s_N.item() == pytest.approx(0.5 * 200 + 100 + 100)
    nothing = Script((Holding.ON_DEMAND, 0))
    late = played(nothing, "#" * 10, stock="." * 10)
    assert (late.in_time_N.item(), late.cost_s_N.item()) == (False, 0.0)


def test_policy_is_told_whether_on_demand_capacity_is_in_stock_and_what_time_it_is() -> None:
    script = Script((Holding.NOTHING, 0))
    replay(
        np.ones((1, 20), dtype=bool),
        tick_s=100.0,
        starts_N=np.array([3]),
        terms=TERMS,
        policy=script,
        trace_start_s=5000.0,
        in_stock_T=np.arange(20) % 2 == 0,
    )
    assert [bool(view.in_stock_N[0]) for view in script.views[:3]] == [False, True, False]
    assert [float(view.at_s_N[0]) for view in script.views[:2]] == [5300.0, 5400.0]


def with_modes(*modes: SpotTerms, moves: dict[tuple[int, int], Move] | None = None) -> ModeSet:
    named = tuple(Mode(name=str(number), terms=terms, pools=(0,)) for number, terms in enumerate((TERMS, *modes)))
    return ModeSet(modes=named, moves=moves or {})


def test_move_to_another_region_takes_its_time_and_its_egress_once() -> None:
    away = elsewhere(TERMS, demand_ratio=0.8, spot_ratio=0.2)
    moves = {(0, 1): Move(duration_s=120.0, cost_s=40.0)}
    done = played(
        Script((Holding.ON_DEMAND, 0, 0), (Holding.ON_DEMAND, 0, 1)), "." * 10, modes=with_modes(away, moves=moves)
    )
    # 50 of 100 s work in tick 0; then 120 s of moving and 250 s of work at the other price
    assert done.cost_s_N.item() == pytest.approx(100 + 40 + 0.8 * 370)
    assert (done.num_moves_N.item(), done.num_changeovers_N.item()) == (1, 2)


def test_slower_mode_does_less_and_faster_one_more() -> None:
    for speed in (0.5, 2.0):
        modes = with_modes(reshaped(TERMS, speed_ratio=speed, demand_ratio=0.9, spot_ratio=0.1))
        done = played(Script((Holding.ON_DEMAND, 0, 1)), "." * 10, modes=modes)
        assert done.cost_s_N.item() == pytest.approx(0.9 * (50 + 300 / speed))


def test_mix_works_on_at_its_base_while_its_spot_nodes_are_away_and_restarts_at_each_change() -> None:
    mix = mixed(TERMS, demand_nodes_ratio=0.5, demand_nodes_speed_ratio=0.5)
    done = played(Script((Holding.SPOT, 0, 1)), "#.########", modes=with_modes(mix))
    # 50 s of work in tick 0; lost: 50 s of restart and 25 of work in tick 1; back: 50 in tick 2, then 175 more
    assert done.in_time_N.item()
    assert done.cost_s_N.item() == pytest.approx(0.75 * 100 + 0.5 * 100 + 0.75 * (50 + 50 + 175))


def test_finished_run_pays_nothing_more_in_any_mode() -> None:
    mix = mixed(TERMS, demand_nodes_ratio=0.5, demand_nodes_speed_ratio=0.5)
    short, long = Script((Holding.SPOT, 0, 1)), Script(*[(Holding.SPOT, 0, 1)] * 4, (Holding.NOTHING, 0, 0))
    costs = {played(each, "#" * 10, modes=with_modes(mix)).cost_s_N.item() for each in (short, long)}
    assert costs == {0.75 * 350}
