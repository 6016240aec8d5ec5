from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.preflight import Check, CheckOutcome, NodeChecks
from airflow_llmsched.planner.policies.preflight import judge


def checks(node: str, *, rate: float = 100.0, outcome: CheckOutcome = CheckOutcome.OK, detail: str = "") -> NodeChecks:
    check = Check(name="node_links", outcome=outcome, detail=detail, value=rate, unit="bytes/s")
    return NodeChecks(node=NodeId(node), checks=(check,))


def asked(*reported: NodeChecks, also: str = "") -> list[NodeId]:
    return [*(each.node for each in reported), *([NodeId(also)] if also else [])]


def test_a_bad_check_speaks_against_its_node_only() -> None:
    reported = [checks("a"), checks("b", outcome=CheckOutcome.BAD, detail="no partner answered")]
    found = judge(reported, asked=asked(*reported))
    assert found.unfit == {"b": "node_links: no partner answered"}


def test_a_node_that_left_no_word_is_unfit() -> None:
    reported = [checks("a")]
    assert judge(reported, asked=asked(*reported, also="b")).unfit == {"b": "left no word of its checks"}


def test_a_node_far_slower_than_its_peers_is_unfit() -> None:
    reported = [checks("a"), checks("b", rate=49.0), checks("c", rate=104.0)]
    found = judge(reported, asked=asked(*reported), min_share=0.5)
    assert found.unfit == {"b": "node_links: 49 bytes/s, 49% of the median of all nodes"}
    assert not judge(reported, asked=asked(*reported)).unfit


def test_of_two_nodes_that_differ_neither_is_the_odd_one() -> None:
    reported = [checks("a"), checks("b", rate=1.0)]
    assert not judge(reported, asked=asked(*reported), min_share=0.5).unfit


def test_a_skipped_check_counts_for_nothing() -> None:
    skipped = checks("s", rate=0.0, outcome=CheckOutcome.SKIPPED, detail="no RDMA card")
    reported = [checks("a"), checks("b", rate=40.0), skipped]
    assert not judge(reported, asked=asked(*reported), min_share=0.5).unfit


@given(st.lists(st.floats(min_value=1.0, max_value=1e12), min_size=3, max_size=12))
def test_comparing_never_turns_down_more_than_half_of_the_nodes(rates: list[float]) -> None:
    reported = [checks(f"n{number}", rate=rate) for number, rate in enumerate(rates)]
    assert len(judge(reported, asked=asked(*reported), min_share=0.5).unfit) <= len(rates) // 2
