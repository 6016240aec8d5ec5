from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.planner.perf.collectives import (
    Link,
    all_to_all_s,
    point_to_point_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_reduce_scatter_s,
)

LINK = Link(bytes_per_s=1e9, latency_s=1e-3)


def test_an_all_reduce_over_four_ranks_takes_six_hops_and_three_halves_of_the_buffer() -> None:
    seconds = float(ring_all_reduce_s(num_bytes=1e9, group_size=4, link=LINK))
    assert seconds == pytest.approx(6e-3 + 1.5)


def test_an_all_gather_over_four_ranks_takes_three_hops_and_three_quarters_of_the_buffer() -> None:
    assert float(ring_all_gather_s(num_bytes=1e9, group_size=4, link=LINK)) == pytest.approx(3e-3 + 0.75)
    assert float(all_to_all_s(num_bytes=1e9, group_size=4, link=LINK)) == pytest.approx(3e-3 + 0.75)


def test_a_message_takes_one_hop() -> None:
    assert float(point_to_point_s(num_bytes=1e9, link=LINK)) == pytest.approx(1.001)


@given(num_bytes=st.integers(0, 10**12), group_size=st.integers(1, 4096), rate=st.floats(1e6, 1e12))
def test_reduce_scatter_and_all_gather_make_an_all_reduce_and_more_bandwidth_never_hurts(
    num_bytes: int, group_size: int, rate: float
) -> None:
    slow, fast = Link(bytes_per_s=rate, latency_s=1e-5), Link(bytes_per_s=2 * rate, latency_s=1e-5)
    parts = ring_reduce_scatter_s(num_bytes=num_bytes, group_size=group_size, link=slow) + ring_all_gather_s(
        num_bytes=num_bytes, group_size=group_size, link=slow
    )
    whole = ring_all_reduce_s(num_bytes=num_bytes, group_size=group_size, link=slow)
    assert float(parts) == pytest.approx(float(whole))
    assert ring_all_reduce_s(num_bytes=num_bytes, group_size=group_size, link=fast) <= whole


def test_a_group_of_one_costs_nothing() -> None:
    assert ring_all_reduce_s(num_bytes=10**12, group_size=1, link=LINK) == 0
