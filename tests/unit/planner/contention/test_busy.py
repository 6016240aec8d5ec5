from __future__ import annotations

import pytest

from airflow_llmsched.planner.contention.busy import busy_network_ratios
from airflow_llmsched.planner.contention.loads import GangLoad
from tests.unit.planner.contention.test_advice import THIN, load


def test_nodes_below_a_link_that_gangs_fill_are_busy_for_as_long() -> None:
    one, other = load("A", 0, 4), load("B", 1, 5)
    alone = busy_network_ratios([one], THIN)
    assert alone["n0"] == alone["n3"] == pytest.approx(8 / 32)  # 8 GB a second through 32 GB/s of its block
    both = busy_network_ratios([one, other], THIN)
    assert both["n2"] == pytest.approx(16 / 32)


def test_no_link_is_busy_for_more_than_all_the_time() -> None:
    gangs = [load(str(number), 0, 4) for number in range(9)]
    assert max(busy_network_ratios(gangs, THIN).values()) == 1.0


def test_nodes_that_share_nothing_are_not_named() -> None:
    inside = load("A", 0, 1)
    found = busy_network_ratios([inside, GangLoad(name="B", step_s=1.0, uses={})], THIN)
    assert set(found) == {"n0", "n1"}
