from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.planner.market.modes import Mode, ModeSet, Move, reshaped
from airflow_llmsched.planner.market.promise import Promise
from airflow_llmsched.planner.market.rental import Holding, RentalView
from airflow_llmsched.planner.market.values import SpotTerms

TERMS = SpotTerms(time_s=1000.0, work_s=600.0, changeover_s=10.0, spot_ratio=0.3)
FAST = reshaped(TERMS, speed_ratio=2.0, demand_ratio=3.0, spot_ratio=0.9)
MODES = ModeSet(
    modes=(Mode(name="plan", terms=TERMS), Mode(name="fast", terms=FAST)), moves={(0, 1): Move(duration_s=100.0)}
)


def view_of(*, left_s: float, work_s: float, tick_s: float = 5.0) -> RentalView:
    return RentalView(
        left_s=left_s,
        tick_s=tick_s,
        work_s_N=np.array([work_s]),
        overhead_s_N=np.zeros(1),
        holding_N=np.zeros(1, dtype=np.int64),
        pool_N=np.zeros(1, dtype=np.int64),
        up_ZN=np.zeros((0, 1), dtype=bool),
    )


def safe(*, left_s: float, work_s: float, margin_s: float = 0.0) -> dict[tuple[int, Holding], bool]:
    view = view_of(left_s=left_s, work_s=work_s)
    safe_MHN = Promise(MODES, margin_s=margin_s).safe_MHN(view, MODES.duration_s_MM()[0][:, None])
    return {(mode, holding): bool(safe_MHN[mode, holding, 0]) for mode in (0, 1) for holding in Holding}


def test_fastest_way_to_the_end_may_lead_through_another_mode() -> None:
    need_s = Promise(MODES).need_s_MN(np.array([100.0, 400.0]))
    assert need_s[0] == pytest.approx([110.0, 300.0])  # by staying, by moving
    assert need_s[1] == pytest.approx([60.0, 210.0])


def test_waiting_is_safe_as_long_as_a_way_is_left_one_tick_later() -> None:
    assert all(safe(left_s=305.0, work_s=400.0)[mode, Holding.NOTHING] for mode in (0, 1))
    late = safe(left_s=304.9, work_s=400.0)
    assert not late[0, Holding.NOTHING]
    assert not late[0, Holding.SPOT]
    assert not late[0, Holding.ON_DEMAND]  # the plan's own nodes are too slow by now
    assert late[1, Holding.ON_DEMAND]
    assert late[1, Holding.NOTHING]  # whoever is there already has time


def test_margin_is_kept_besides() -> None:
    assert safe(left_s=355.0, work_s=400.0, margin_s=50.0)[0, Holding.NOTHING]
    assert not safe(left_s=354.9, work_s=400.0, margin_s=50.0)[0, Holding.NOTHING]


def test_slack_is_the_time_until_on_demand_capacity_is_due() -> None:
    slack_s = Promise(MODES).slack_s_N(view_of(left_s=400.0, work_s=400.0), np.array([0]))
    assert slack_s == pytest.approx([95.0])


@given(work_s=st.floats(1.0, 600.0), spare_s=st.floats(0.001, 300.0), progress=st.floats(0.0, 1.0))
def test_after_a_safe_choice_there_is_a_safe_one_again(work_s: float, spare_s: float, progress: float) -> None:
    left_s = 5.0 + work_s + 10.0 + spare_s
    now = safe(left_s=left_s, work_s=work_s)
    assert now[0, Holding.NOTHING]
    later = safe(left_s=left_s - 5.0, work_s=max(0.0, work_s - 5.0 * progress))
    assert later[0, Holding.ON_DEMAND] or later[1, Holding.ON_DEMAND]
