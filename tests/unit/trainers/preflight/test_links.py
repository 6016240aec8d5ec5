from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from airflow_llmsched.trainers.preflight.links import judge_node, pairs_of

NODES = [f"n{number}" for number in range(8)]


@given(st.integers(min_value=0, max_value=65))
def test_every_node_meets_both_its_neighbours_and_has_one_partner_at_a_time(num_nodes: int) -> None:
    rounds = pairs_of(num_nodes)
    for pairs in rounds:
        ends = [node for pair in pairs for node in pair]
        assert len(ends) == len(set(ends))
    met = {frozenset(pair) for pairs in rounds for pair in pairs}
    ring = {frozenset((node, (node + 1) % num_nodes)) for node in range(num_nodes)} if num_nodes > 1 else set()
    assert met == ring


@given(st.integers(min_value=3, max_value=8), st.data())
def test_one_bad_node_is_told_from_its_partners(num_nodes: int, data: st.DataObject) -> None:
    broken = data.draw(st.integers(min_value=0, max_value=num_nodes - 1))
    results = {pair: "timed out" if broken in pair else 1e9 for pairs in pairs_of(num_nodes) for pair in pairs}
    found = [judge_node(node, results, NODES)["outcome"] for node in range(num_nodes)]
    assert [node for node, outcome in enumerate(found) if outcome == "bad"] == [broken]


def test_a_node_tells_with_whom_it_failed_and_its_best_rate() -> None:
    results = {(0, 1): "timed out", (1, 2): 2e9, (2, 0): 3e9}
    found = judge_node(1, results, NODES)
    assert (found["outcome"], found["detail"], found["value"]) == ("ok", "with n0: timed out", 2e9)


def test_a_lone_node_has_no_links_to_check() -> None:
    assert judge_node(0, {}, NODES[:1])["outcome"] == "skipped"
