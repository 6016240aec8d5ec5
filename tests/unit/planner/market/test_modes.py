from __future__ import annotations

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.modes import (
    Mode,
    ModeSet,
    Move,
    reshaped,
    seconds_of,
)
from airflow_llmsched.planner.market.rental import Holding
from airflow_llmsched.planner.market.values import SpotTerms
from tests.support.modes import elsewhere, mixed, scaled_down

TERMS = SpotTerms(time_s=1000.0, work_s=600.0, changeover_s=10.0, spot_ratio=0.3)
HERE = Mode(name="here", terms=TERMS, pools=(0, 1))
THERE = Mode(name="there", terms=elsewhere(TERMS, demand_ratio=0.9, spot_ratio=0.2, changeover_s=20.0), pools=(2,))


def test_plan_itself_is_one_mode_that_every_pool_serves() -> None:
    only = ModeSet.only(TERMS, num_pools=3)
    assert only.modes[0].pools == (0, 1, 2)
    assert only.price_MH().tolist() == [[0.0, 0.3, 1.0]]
    assert only.speed_MH().tolist() == [[0.0, 1.0, 1.0]]


def test_way_that_is_not_named_takes_the_targets_changeover() -> None:
    modes = ModeSet(modes=(HERE, THERE), moves={(0, 1): Move(duration_s=300.0, cost_s=50.0)})
    assert modes.duration_s_MM().tolist() == [[10.0, 300.0], [10.0, 20.0]]
    assert modes.cost_s_MM().tolist() == [[0.0, 50.0], [0.0, 0.0]]


def test_fewer_nodes_cost_their_share_and_do_less() -> None:
    half = scaled_down(TERMS, nodes_ratio=0.5, speed_ratio=0.52)
    assert half.price_H == pytest.approx((0.0, 0.15, 0.5))
    assert half.speed_H == pytest.approx((0.0, 0.52, 0.52))


def test_other_shape_has_its_own_speed_and_prices() -> None:
    other = reshaped(TERMS, speed_ratio=1.8, demand_ratio=1.5, spot_ratio=0.9)
    assert (other.price_H, other.speed_H) == ((0.0, 0.9, 1.5), (0.0, 1.8, 1.8))


def test_mix_keeps_its_on_demand_nodes_and_pays_both_for_the_whole() -> None:
    mix = mixed(TERMS, demand_nodes_ratio=0.25, demand_nodes_speed_ratio=0.24)
    assert mix.price_H == pytest.approx((0.25, 0.25 + 0.75 * 0.3, 1.0))
    assert mix.speed_H == pytest.approx((0.24, 1.0, 1.0))
    assert mix.price_H[Holding.SPOT] < mix.price_H[Holding.ON_DEMAND]


def test_dollars_become_seconds_of_the_plans_own_gang() -> None:
    assert seconds_of(100.0, gang_usd_per_hour=360.0) == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("moves", "hint"),
    [
        ({(0, 2): Move(duration_s=1.0)}, "two of 2 modes"),
        ({(1, 1): Move(duration_s=1.0)}, "two of 2 modes"),
        ({(0, 1): Move(duration_s=-1.0)}, "negative"),
        ({(0, 1): Move(duration_s=1.0, cost_s=float("nan"))}, "negative"),
    ],
)
def test_moves_between_what_is_not_there_are_refused(moves: dict[tuple[int, int], Move], hint: str) -> None:
    with pytest.raises(SpecError, match=hint):
        ModeSet(modes=(HERE, THERE), moves=moves)


def test_modes_must_be_of_one_run() -> None:
    with pytest.raises(SpecError, match="at least the plan"):
        ModeSet(modes=())
    other = SpotTerms(time_s=1000.0, work_s=500.0, changeover_s=10.0, spot_ratio=0.3)
    with pytest.raises(SpecError, match="the run's own"):
        ModeSet(modes=(HERE, Mode(name="other", terms=other)))
