from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.planner.market.offline import optimum_s
from airflow_llmsched.planner.market.values import SpotTerms

TICK_S = 100.0


def brute_force_s(up_ZT: np.ndarray, terms: SpotTerms) -> float:
    """Try everything: hold nothing, on-demand or any pool in each tick."""
    num_ticks = up_ZT.shape[1]
    best = float("inf")
    for plan in itertools.product(range(-2, len(up_ZT)), repeat=num_ticks):  # -2 nothing, -1 on-demand, else a pool
        if any(held >= 0 and not up_ZT[held, tick] for tick, held in enumerate(plan)):
            continue
        work_s, overhead_s, cost_s, before = terms.work_s, 0.0, 0.0, -2
        for held in plan:
            if work_s <= 1e-9:
                break
            if held != before:
                overhead_s, before = terms.changeover_s, held
            if held == -2:
                continue
            cost_s += TICK_S * (1.0 if held == -1 else terms.spot_ratio)
            work_s -= max(0.0, TICK_S - overhead_s)
            overhead_s = max(0.0, overhead_s - TICK_S)
        if work_s <= 1e-9:
            best = min(best, cost_s)
    return best


@settings(max_examples=60, deadline=None)
@given(
    ups=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=2),
    work=st.sampled_from([100.0, 200.0, 260.0, 380.0]),
    changeover=st.sampled_from([0.0, 20.0, 40.0, 100.0]),
    ratio=st.sampled_from([0.3, 1.5]),
)
def test_optimum_is_what_trying_everything_finds(
    ups: list[list[bool]], work: float, changeover: float, ratio: float
) -> None:
    terms = SpotTerms(time_s=600.0, work_s=work, changeover_s=changeover, spot_ratio=ratio)
    up_ZT = np.array(ups)
    found = optimum_s(up_ZT, tick_s=TICK_S, start=0, terms=terms)
    assert found == pytest.approx(brute_force_s(up_ZT, terms))


def test_what_cannot_be_done_in_time_has_no_price() -> None:
    terms = SpotTerms(time_s=300.0, work_s=300.0, changeover_s=20.0, spot_ratio=0.3)
    assert optimum_s(np.ones((1, 3), dtype=bool), tick_s=TICK_S, start=0, terms=terms) > 1e9


def test_optimum_starts_where_it_is_told_to() -> None:
    terms = SpotTerms(time_s=200.0, work_s=200.0, changeover_s=0.0, spot_ratio=0.5)
    up_ZT = np.array([[False, False, True, True]])
    assert optimum_s(up_ZT, tick_s=TICK_S, start=0, terms=terms) == pytest.approx(200.0)
    assert optimum_s(up_ZT, tick_s=TICK_S, start=2, terms=terms) == pytest.approx(100.0)
