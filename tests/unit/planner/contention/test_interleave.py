from __future__ import annotations

import pytest

from airflow_llmsched.planner.contention.interleave import interleave
from tests.unit.planner.contention.test_slowdown import OTHER, UP, gang

FULL = {UP: 10.0}


def test_two_that_fit_one_after_the_other_never_send_at_once() -> None:
    found = interleave([gang("a", step_s=4, active_s=1), gang("b", step_s=4, active_s=1)], FULL)
    assert found is not None
    assert (found.together_peak_ratio, found.peak_ratio) == (2.0, 1.0)
    assert (found.together_excess_ratio, found.excess_ratio) == (0.5, 0.0)
    assert found.offset_s["a"] == 0.0
    assert 1.0 <= found.offset_s["b"] <= 3.0


def test_steps_that_take_twice_anothers_have_a_circle_of_two() -> None:
    found = interleave([gang("a", step_s=4, active_s=1), gang("b", step_s=2, active_s=0.5)], FULL)
    assert found is not None
    assert found.excess_ratio == 0.0
    assert found.offset_s["b"] < 2.0


def test_three_take_turns() -> None:
    gangs = [gang(name, step_s=3, active_s=1) for name in "abc"]
    found = interleave(gangs, FULL)
    assert found is not None
    assert found.together_peak_ratio == 3.0
    assert found.peak_ratio == 1.0


def test_what_cannot_fit_overlaps_as_little_as_it_can() -> None:
    found = interleave([gang("a", step_s=4, active_s=3), gang("b", step_s=4, active_s=3)], FULL)
    assert found is not None
    assert found.excess_ratio == pytest.approx(2 / 6, abs=0.02)
    assert found.together_excess_ratio == pytest.approx(1 / 2)


def test_more_gangs_than_can_be_tried_out_are_moved_one_at_a_time() -> None:
    gangs = [gang(f"g{number}", step_s=5, active_s=1) for number in range(5)]
    found = interleave(gangs, FULL)
    assert found is not None
    assert found.excess_ratio < found.together_excess_ratio / 2


@pytest.mark.parametrize("step_s", [3.1, 4.3, 40.0])
def test_paces_without_a_common_circle_have_no_offsets_that_last(step_s) -> None:
    assert interleave([gang("a", step_s=4, active_s=1), gang("b", step_s=step_s, active_s=1)], FULL) is None


def test_gangs_that_share_no_link_need_none() -> None:
    assert interleave([gang("a", step_s=4, active_s=1), gang("b", step_s=4, active_s=1, link=OTHER)], FULL) is None
