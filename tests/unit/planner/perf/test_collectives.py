"""Alpha-beta costs: textbook values on one level, the slower level on two, and what may never happen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.planner.perf.collectives import (
    Link,
    Span,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    point_to_point_s,
    reduce_scatter_s,
)

LINK = Link(bytes_per_s=1e9, latency_s=1e-3)
SLOW = Link(bytes_per_s=1e8, latency_s=1e-2)


def span(size: int, members: int | None = None, *, inner: Link = LINK, outer: Link = SLOW) -> Span:
    inside = size if members is None else members
    return Span(
        size_C=np.array([size]), members_C=np.array([inside]), domains_C=np.array([-(-size // inside)]), inner=inner,
        outer=outer,
    )  # fmt: skip


def test_a_large_all_reduce_over_four_ranks_takes_six_hops_and_three_halves_of_the_buffer() -> None:
    assert all_reduce_s(num_bytes=1e9, span=span(4)) == pytest.approx(6e-3 + 1.5)


def test_an_all_gather_over_four_ranks_takes_three_hops_and_three_quarters_of_the_buffer() -> None:
    assert all_gather_s(num_bytes=1e9, span=span(4)) == pytest.approx(3e-3 + 0.75)


def test_an_all_gather_over_two_domains_shares_the_links_between_them() -> None:
    """Half of the buffer crosses, over four links of a tenth of the rate, longer than 7/8 over each inner link."""
    hops_s = 6 * 1e-3 + 1e-2
    assert all_gather_s(num_bytes=1e9, span=span(8, 4)) == pytest.approx(hops_s + 0.5 * 1e9 / (4 * 1e8))


def test_a_small_all_reduce_over_many_domains_takes_a_tree() -> None:
    far = span(64, 1)
    assert all_reduce_s(num_bytes=8, span=far) == pytest.approx(2 * 6 * 1e-2, rel=1e-3)
    assert all_reduce_s(num_bytes=8, span=far) < 2 * all_gather_s(num_bytes=8, span=far)


def test_switches_that_add_up_halve_what_a_network_moves() -> None:
    far = span(64, 8, inner=Link(bytes_per_s=1e12, latency_s=1e-3))
    reducing = replace(far, outer=replace(SLOW, reduces=True))
    saved = float(all_reduce_s(num_bytes=1e12, span=reducing)[0] / all_reduce_s(num_bytes=1e12, span=far)[0])
    assert saved == pytest.approx(0.5, rel=0.01)


def test_switches_of_a_network_do_nothing_for_a_group_inside_a_node_nor_for_one_way() -> None:
    inside, outside = span(8), span(64, 8)
    for collective, where in ((all_reduce_s, inside), (all_gather_s, outside), (reduce_scatter_s, outside)):
        reducing = replace(where, outer=replace(SLOW, reduces=True))
        for num_bytes in (8, 1e12):
            assert collective(num_bytes=num_bytes, span=reducing) == collective(num_bytes=num_bytes, span=where)


def test_a_small_all_reduce_goes_up_and_down_a_tree_of_switches_once() -> None:
    reducing = span(64, 1, outer=replace(SLOW, reduces=True))
    assert all_reduce_s(num_bytes=8, span=reducing) == pytest.approx(2 * 1e-2, rel=1e-3)


def test_switches_inside_a_node_save_eight_ranks_more_than_a_third() -> None:
    """(1 + 1/8) of the buffer on each link instead of 2 * 7/8."""
    reducing = span(8, inner=replace(LINK, reduces=True))
    ratio = float(all_reduce_s(num_bytes=1e12, span=reducing)[0] / all_reduce_s(num_bytes=1e12, span=span(8))[0])
    assert ratio == pytest.approx((1 + 1 / 8) / (2 * 7 / 8), rel=0.01)


def test_an_all_to_all_is_bound_by_the_side_that_is_slower() -> None:
    assert all_to_all_s(num_bytes=1e9, span=span(8)) == pytest.approx(1e-3 + 7 / 8)
    assert all_to_all_s(num_bytes=1e9, span=span(8, 4)) == pytest.approx(1e-2 + 0.5 * 10)


def test_tokens_that_go_once_to_each_domain_spare_the_links_between_them() -> None:
    """Of 8 copies over 2 domains nearly one crosses instead of four."""
    every = all_to_all_s(num_bytes=1e9, span=span(16, 8))
    once = all_to_all_s(num_bytes=1e9, span=span(16, 8), num_copies=8)
    assert every == pytest.approx(2e-2 + 0.5 * 10)
    assert once == pytest.approx(2e-2 + (1 - 0.5**8) / 8 * 10)
    assert all_to_all_s(num_bytes=1e9, span=span(8), num_copies=8) == all_to_all_s(num_bytes=1e9, span=span(8))


def test_a_message_takes_one_hop_over_the_link_it_needs() -> None:
    assert point_to_point_s(num_bytes=1e9, link=LINK) == pytest.approx(1.001)
    assert point_to_point_s(num_bytes=1e9, link=span(8, 4).farthest) == pytest.approx(10.01)
    one_of_four = replace(LINK, pair_ratio=0.25)
    assert point_to_point_s(num_bytes=1e9, link=span(8, inner=one_of_four).farthest) == pytest.approx(4.001)


@pytest.mark.parametrize("collective", [all_gather_s, reduce_scatter_s, all_reduce_s, all_to_all_s])
def test_a_group_of_one_costs_nothing(collective) -> None:  # type: ignore[no-untyped-def]
    assert collective(num_bytes=1e12, span=span(1)) == 0


@given(
    num_bytes=st.integers(0, 10**12), members=st.sampled_from([1, 2, 8]), domains=st.sampled_from([1, 3, 64]),
    reduces=st.booleans(),
)  # fmt: skip
def test_more_bandwidth_never_hurts_and_an_all_reduce_is_at_most_its_two_halves(
    num_bytes: int, members: int, domains: int, reduces: bool
) -> None:
    link, faster = replace(LINK, reduces=reduces), Link(bytes_per_s=2e9, latency_s=1e-3, reduces=reduces)
    slow = span(members * domains, members, inner=link)
    fast = replace(slow, inner=faster, outer=replace(SLOW, bytes_per_s=2e8))
    halves = reduce_scatter_s(num_bytes=num_bytes, span=slow) + all_gather_s(num_bytes=num_bytes, span=slow)
    assert all_reduce_s(num_bytes=num_bytes, span=slow) <= halves * (1 + 1e-9)
    assert all_reduce_s(num_bytes=num_bytes, span=fast) <= all_reduce_s(num_bytes=num_bytes, span=slow)
    assert all_to_all_s(num_bytes=num_bytes, span=fast) <= all_to_all_s(num_bytes=num_bytes, span=slow)
