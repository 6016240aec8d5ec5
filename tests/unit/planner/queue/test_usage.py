from __future__ import annotations

import math

import numpy as np
import pytest

from airflow_llmsched.domain.queue import Amounts, Limits, TeamUsage
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.queue.usage import (
    UNLIMITED,
    accrued,
    asked_Q,
    decayed,
    history_TQ,
    limits_Q,
    teams_of,
    that_goes_with,
)
from tests.support.queues import gang, quota, racks, runs_on, state_of, waits

DAY_S = 86400.0


def test_what_was_used_a_half_life_ago_counts_half():
    usage = TeamUsage(team="red", accelerator_s=8.0, host_byte_s=4.0, network_bytes=2.0, at_s=0.0)
    later = decayed(usage, at_s=2 * DAY_S, half_life_s=DAY_S)
    assert (later.accelerator_s, later.host_byte_s, later.network_bytes, later.at_s) == (2.0, 1.0, 0.5, 2 * DAY_S)


def test_accelerators_come_with_their_part_of_a_nodes_memory_and_network():
    shape = node_shape("dgx-h100")
    whole, half = that_goes_with(shape, 8), that_goes_with(shape, 4)
    assert (whole.num_accelerators, whole.host_bytes) == (8.0, shape.host.memory_bytes)
    assert whole.network_bytes_per_s == pytest.approx(8 * shape.inter_node_bandwidth_bytes_per_s)
    assert half == Amounts(
        num_accelerators=4.0, host_bytes=whole.host_bytes / 2, network_bytes_per_s=whole.network_bytes_per_s / 2
    )
    assert that_goes_with(None, 3) == Amounts(num_accelerators=3.0)


def test_usage_of_the_future_is_not_blown_up():
    usage = TeamUsage(team="red", accelerator_s=8.0, at_s=100.0)
    assert decayed(usage, at_s=0.0, half_life_s=DAY_S) == usage


def test_usage_that_is_counted_in_one_go_is_what_it_comes_to_second_by_second():
    usage = TeamUsage(team="red", accelerator_s=100.0, at_s=0.0)
    held = Amounts(num_accelerators=3.0)
    at_once = accrued(usage, held, until_s=50.0, half_life_s=40.0)
    piecewise = usage
    for second in range(50):
        piecewise = accrued(piecewise, held, until_s=second + 1.0, half_life_s=40.0)
    summed = 100.0 * 0.5 ** (50 / 40) + sum(3.0 * 0.5 ** ((50 - at_s / 100) / 40) / 100 for at_s in range(5000))
    assert at_once.accelerator_s == pytest.approx(piecewise.accelerator_s)
    assert at_once.accelerator_s == pytest.approx(summed, rel=1e-3)


def test_what_is_held_for_ever_comes_to_itself_in_the_history():
    half_life_s = 100.0
    usage = accrued(
        TeamUsage(team="red", accelerator_s=0.0, at_s=-1e5), Amounts(num_accelerators=6.0), until_s=0.0,
        half_life_s=half_life_s,
    )  # fmt: skip
    state = state_of(racks(1), usage=(usage,), policy={"half_life_s": half_life_s})
    assert usage.accelerator_s == pytest.approx(6.0 * half_life_s / math.log(2))
    assert history_TQ(state, ("blue", "red")) == pytest.approx(np.array([[0.0, 0.0, 0.0], [6.0, 0.0, 0.0]]))


def test_all_teams_count_whoever_names_them():
    state = state_of(
        racks(1),
        waits(gang("a", team="d")),
        runs_on(gang("b", 1, team="c"), {"r0n0": 1}),
        quotas=(quota("b", 1),),
        usage=(TeamUsage(team="a", accelerator_s=1.0, at_s=0.0),),
    )
    assert teams_of(state) == ("a", "b", "c", "d")


def test_no_limit_is_a_number_that_can_be_subtracted_from_itself():
    limits = limits_Q(Limits(num_accelerators=4.0))
    assert limits.tolist() == [4.0, UNLIMITED, UNLIMITED]
    assert (limits - limits).tolist() == [0.0, 0.0, 0.0]


def test_a_gang_on_slices_uses_a_part_of_an_accelerator():
    assert asked_Q(gang("a", 4, host_bytes=2.0), num_accelerators=0.25).tolist() == [0.25, 2.0, 0.0]
    assert asked_Q(gang("a", 4)).tolist() == [4.0, 0.0, 0.0]
