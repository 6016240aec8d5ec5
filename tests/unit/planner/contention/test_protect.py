from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.planner.contention.protect import RECOVERED_RATIO, Background, protect, step_beside_s
from tests.unit.planner.contention.test_slowdown import UP, gang

GANG = gang("a", step_s=4, active_s=1, rate=8.0)
STAGING = Background(bytes_per_s=10.0)


def test_traffic_of_the_same_class_takes_its_fair_share() -> None:
    assert step_beside_s(GANG, UP, STAGING, capacity_bytes_per_s=10.0) == pytest.approx(3 + 8 / 5)


def test_a_lower_class_takes_what_is_left() -> None:
    lower = Background(bytes_per_s=10.0, is_lower_class=True)
    assert step_beside_s(GANG, UP, lower, capacity_bytes_per_s=10.0) == GANG.step_s


def test_a_limit_takes_most_of_the_harm_away_and_leaves_more_than_what_is_spare() -> None:
    found = protect(GANG, UP, STAGING, capacity_bytes_per_s=10.0)
    assert 2.0 < found.limit_bytes_per_s < 5.0
    assert found.unprotected_s > found.protected_s > GANG.step_s
    assert found.recovered_ratio == pytest.approx(RECOVERED_RATIO)


@pytest.mark.parametrize(("duty", "needed"), [(0.2, 0.0), (0.5, 2.5), (1.0, 3.0), (1.0, 0.0)])
def test_at_least_half_of_an_injected_slowdown_is_recovered(duty, needed) -> None:
    background = Background(bytes_per_s=10.0, duty_ratio=duty)
    found = protect(GANG, UP, background, capacity_bytes_per_s=10.0, needed_bytes_per_s=needed)
    assert found.unprotected_s > GANG.step_s
    assert found.limit_bytes_per_s >= needed
    assert found.recovered_ratio >= 0.5


def test_what_must_be_done_in_time_is_not_starved() -> None:
    found = protect(GANG, UP, STAGING, capacity_bytes_per_s=10.0, needed_bytes_per_s=10.0)
    assert found.limit_bytes_per_s == 10.0
    assert found.recovered_ratio == 0.0


def test_beside_a_gang_that_fills_the_link_something_is_left_for_others() -> None:
    full = gang("a", step_s=4, active_s=1, rate=10.0)
    found = protect(full, UP, STAGING, capacity_bytes_per_s=10.0)
    assert found.limit_bytes_per_s == pytest.approx(10 - 10 / 1.2)
    assert found.recovered_ratio == pytest.approx(RECOVERED_RATIO)


def test_traffic_of_a_lower_class_needs_no_limit_beside_a_gang_that_fills_the_link() -> None:
    full = gang("a", step_s=4, active_s=1, rate=10.0)
    found = protect(full, UP, Background(bytes_per_s=10.0, is_lower_class=True), capacity_bytes_per_s=10.0)
    assert (found.limit_bytes_per_s, found.protected_s) == (10.0, full.step_s)


@given(
    rate=st.floats(1e-3, 1.0),
    background=st.floats(1e-12, 2.0),
    duty=st.floats(0.01, 1.0),
    needed=st.floats(0.0, 1.0),
    is_lower_class=st.booleans(),
)
def test_a_limit_is_never_nothing_and_never_makes_it_worse(rate, background, duty, needed, is_lower_class) -> None:
    beside = Background(bytes_per_s=background, duty_ratio=duty, is_lower_class=is_lower_class)
    own = gang("a", step_s=4, active_s=1, rate=rate)
    found = protect(own, UP, beside, capacity_bytes_per_s=1.0, needed_bytes_per_s=min(needed, background * duty))
    assert 0 < found.limit_bytes_per_s <= background
    assert found.protected_s <= found.unprotected_s * (1 + 1e-9)
    assert found.protected_s >= own.step_s


def test_traffic_that_harms_nobody_needs_no_limit() -> None:
    lower = Background(bytes_per_s=1.0)
    assert protect(GANG, UP, lower, capacity_bytes_per_s=10.0).limit_bytes_per_s == 1.0
    assert protect(GANG, UP, lower, capacity_bytes_per_s=10.0).recovered_ratio == 1.0
