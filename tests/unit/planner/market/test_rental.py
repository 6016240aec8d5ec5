from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.market.rental import Holding, RentalView, first_up_pool_N


def view_of(up_ZN: list[list[bool]], *, pool: int = 0, left_s: float = 100.0) -> RentalView:
    num_runs = len(up_ZN[0])
    return RentalView(
        left_s=left_s,
        tick_s=5.0,
        work_s_N=np.full(num_runs, 80.0),
        overhead_s_N=np.zeros(num_runs),
        holding_N=np.full(num_runs, Holding.NOTHING),
        pool_N=np.full(num_runs, pool),
        up_ZN=np.array(up_ZN),
    )


def test_pool_that_is_held_is_kept_while_it_is_up() -> None:
    up_ZN = [[True, True, False], [True, False, False], [False, True, True]]
    assert list(first_up_pool_N(view_of(up_ZN, pool=1))) == [1, 0, 2]


def test_any_pool_will_do() -> None:
    assert list(view_of([[True, False], [False, False]]).any_up_N) == [True, False]


def test_safety_counts_the_changeover_and_the_tick_until_asked_again() -> None:
    assert not view_of([[True]], left_s=95.0).must_be_safe_N(10.0)[0]
    assert view_of([[True]], left_s=94.9).must_be_safe_N(10.0)[0]
