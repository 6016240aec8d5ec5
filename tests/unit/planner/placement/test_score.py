from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NodeCosts, Placement, PlacementProblem, RankSlot
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.score import (
    MAX_RESERVE_DOMAINS,
    NETWORK_RATIO,
    RESERVE_DOMAINS,
    Exchange,
    Score,
    Scorer,
)
from tests.support.fleets import fleet, node, tree_of, workload

H100 = node_shape("p5.48xlarge")
COST = ObjectiveWeights(throughput=0, cost=1)
RELIABILITY = ObjectiveWeights(throughput=0, reliability=1)


def placement(*ranks_on: tuple[str, int]) -> Placement:
    slots: list[RankSlot] = []
    for name, num_ranks in ranks_on:
        slots += [
            RankSlot(rank=len(slots) + local, node=NodeId(name), slot=local, local_rank=local)
            for local in range(num_ranks)
        ]
    return Placement(slots=tuple(slots))


def score(*ranks_on: tuple[str, int], tree: TopologyTree | None = None, **others: Any) -> Score:
    world_size = sum(ranks for _, ranks in ranks_on)
    values: dict[str, Any] = {"layout": ParallelLayout(dp=world_size), "tree": tree or fleet(16)}
    return Scorer(PlacementProblem(**(values | others))).score(placement(*ranks_on))


def test_a_domain_taken_whole_leaves_no_fragments_and_half_of_one_does() -> None:
    whole = score(*((f"n{number:04d}", 8) for number in range(8)))
    assert whole.fragments_s == pytest.approx(0.0)
    half_rack = score(("n0000", 8), ("n0001", 8))
    other_half = score(("n0000", 8), ("n0004", 8))
    assert 0.0 < half_rack.fragments_s < other_half.fragments_s


def test_the_rest_of_a_domain_that_is_in_use_is_cheaper_than_a_whole_one() -> None:
    tree = tree_of(
        *(node(f"a{number}", path=("b0", "r0"), free=0 if number < 2 else 8) for number in range(4)),
        *(node(f"b{number}", path=("b0", "r1")) for number in range(4)),
    )
    assert score(("a2", 8), ("a3", 8), tree=tree).fragments_s < score(("b0", 8), ("b1", 8), tree=tree).fragments_s


def test_a_rack_in_use_is_cheaper_than_breaking_a_whole_one_however_much_it_leaves() -> None:
    tree = tree_of(
        *(node(f"a{number}", path=("b0", "r0"), free=0 if number < 1 else 8) for number in range(8)),
        *(node(f"b{number}", path=("b0", "r1")) for number in range(3)),
    )
    in_use, whole = (score((f"{rack}1", 8), (f"{rack}2", 8), tree=tree).fragments_s for rack in "ab")
    assert 0 < in_use < whole


def test_a_rack_in_use_costs_something_even_if_nothing_of_it_is_left_and_a_whole_one_does_not() -> None:
    tree = tree_of(
        *(node(f"a{number}", path=("b0", "r0"), free=0 if number < 2 else 8) for number in range(4)),
        *(node(f"b{number}", path=("b1", "r1")) for number in range(2)),
    )
    assert score(("b0", 8), ("b1", 8), tree=tree).fragments_s == pytest.approx(0.0)
    assert score(("a2", 8), ("a3", 8), tree=tree).fragments_s > 0


def test_of_blocks_with_as_much_free_the_one_with_fewer_whole_racks_is_cheaper() -> None:
    scattered, together = (0, 8), (0, 0, 8, 8)
    tree = tree_of(
        *(node(f"a{n}", path=("b0", f"r{n // 2}"), free=scattered[n % 2]) for n in range(4)),
        *(node(f"b{n}", path=("b1", f"r{n // 2}"), free=together[n]) for n in range(4)),
        *(node(f"c{n}", path=("b1", "r2"), free=0 if n else 8) for n in range(2)),
        *(node(f"d{n}", path=("b0", "r2"), free=0 if n else 8) for n in range(2)),
    )
    assert score(("d0", 8), tree=tree).fragments_s < score(("c0", 8), tree=tree).fragments_s


def test_price_counts_what_is_paid_by_the_cheapest_and_whole_nodes_as_whole() -> None:
    costs = {NodeId(f"n{number:04d}"): NodeCosts(usd_per_hour=8.0 if number < 4 else 16.0) for number in range(16)}
    cheap, dear, wasteful = (
        score(*where, node_costs=costs, weights=COST).price_s
        for where in ([("n0000", 8)], [("n0004", 8)], [("n0000", 4), ("n0001", 4)])
    )
    assert dear == pytest.approx(2 * cheap)
    assert wasteful == pytest.approx(2 * cheap)
    tree = tree_of(node("n0000", free=4))
    half = {NodeId("n0000"): NodeCosts(usd_per_hour=8.0)}
    assert score(("n0000", 4), tree=tree, node_costs=half, weights=COST).price_s == pytest.approx(cheap)


def test_risk_is_the_share_of_time_that_failures_take() -> None:
    costs = {NodeId("n0000"): NodeCosts(failures_per_hour=0.06), NodeId("n0001"): NodeCosts(failures_per_hour=0.06)}
    found = score(("n0000", 8), ("n0001", 8), node_costs=costs)
    assert found.risk_s == pytest.approx(2 * 0.06 * 600 / 3600)
    assert score(("n0000", 8), ("n0001", 8), node_costs=costs, weights=RELIABILITY).risk_s > found.risk_s


def test_missing_data_is_spread_over_the_steps_of_the_run() -> None:
    costs = {NodeId("n0000"): NodeCosts(missing_data_bytes=10**12)}
    assert score(("n0000", 8), ("n0001", 8), node_costs=costs).data_s == pytest.approx(1000 / 1000 / 2)
    assert score(("n0001", 8), ("n0002", 8), node_costs=costs).data_s == 0.0


def test_nodes_on_links_that_others_fill_cost_their_share_of_the_part_that_goes_over_the_network() -> None:
    costs = {NodeId("n0000"): NodeCosts(busy_network_ratio=0.5)}
    busy = score(("n0000", 8), ("n0001", 8), node_costs=costs)
    assert busy.contention_s == pytest.approx(NETWORK_RATIO * 0.5 / 2)
    assert score(("n0001", 8), ("n0002", 8), node_costs=costs).contention_s == 0.0


def test_preferred_levels_cost_when_they_are_left() -> None:
    inside, outside = [("n0000", 8), ("n0001", 8)], [("n0000", 8), ("n0004", 8)]
    assert score(*inside, preferred_level="rack").preference_s == pytest.approx(0.0)
    assert score(*outside, preferred_level="rack").preference_s > 0.05
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=False)
    assert score(*inside, wishes=(wish,)).preference_s == 0.0
    assert score(*outside, wishes=(wish,)).preference_s == pytest.approx(0.1)


def test_of_preferred_levels_the_domains_around_cost_more_the_further_out() -> None:
    two_racks = score(("n0000", 8), ("n0004", 8), preferred_level="rack").preference_s
    two_blocks = score(("n0000", 8), ("n0008", 8), tree=fleet(16, racks_per_block=2), preferred_level="rack")
    assert two_racks == pytest.approx(0.1)
    assert two_blocks.preference_s == pytest.approx(0.1 + 0.2)


def test_breaking_a_rack_costs_most_where_most_of_them_are_whole_if_racks_are_preferred() -> None:
    tree = tree_of(
        *(node(f"a{number}", path=("b0", f"r{number // 2}")) for number in range(6)),
        *(node(f"b{number}", path=("b1", f"s{number // 2}"), free=8 if number < 4 else 0) for number in range(6)),
    )
    most, fewer = ((f"{block}0", 8) for block in "ab")
    plain_s, asked_s = (
        score(most, tree=tree, **each).fragments_s - score(fewer, tree=tree, **each).fragments_s
        for each in ({}, {"preferred_level": "rack"})
    )
    assert asked_s == pytest.approx(plain_s + 0.1 * MAX_RESERVE_DOMAINS)
    two = tuple((f"a{number}", 8) for number in range(4))
    reserve_s = score(*two, tree=tree, preferred_level="rack").fragments_s - score(*two, tree=tree).fragments_s
    assert reserve_s == pytest.approx(2 * 0.1 * RESERVE_DOMAINS / 2)


def test_required_levels_of_groups_are_kept_or_not() -> None:
    wish = PlacementWish(group=RankGroup.PP, level="rack", required=True)
    scorer = Scorer(PlacementProblem(layout=ParallelLayout(dp=8, pp=2), tree=fleet(16), wishes=(wish,)))
    near, far = (scorer.depths(np.array(nodes), np.array([8, 8])) for nodes in ([0, 1], [0, 4]))
    assert scorer.keeps_required(near)
    assert not scorer.keeps_required(far)


def test_the_objective_says_what_counts() -> None:
    plain, cheap = Exchange.of(ObjectiveWeights()), Exchange.of(COST)
    assert cheap.price_ratio > 50 * plain.price_ratio
    assert Exchange.of(ObjectiveWeights(fairness=1)).fragments_ratio > plain.fragments_ratio
    assert Exchange.of(RELIABILITY).risk_ratio == pytest.approx(10 * plain.risk_ratio)


def test_ranks_near_one_another_take_less_time_of_the_real_workload() -> None:
    layout = ParallelLayout(dp=8, tp=8, num_micro_batches=32)
    values = {"layout": layout, "workload": workload(), "shape": H100}
    near = score(*((f"n{number:04d}", 8) for number in range(8)), **values)
    far = score(*((f"n{number:04d}", 8) for number in range(0, 16, 2)), **values)
    assert near.step_s < far.step_s
    assert near.total_s < far.total_s


@st.composite
def scorers(draw: st.DrawFn) -> tuple[Scorer, np.ndarray, np.ndarray]:
    tree = fleet(16)
    costs = {
        each.id: NodeCosts(
            usd_per_hour=draw(st.floats(1, 50)), failures_per_hour=draw(st.floats(0, 0.1)),
            missing_data_bytes=draw(st.integers(0, 10**13)), busy_network_ratio=draw(st.floats(0, 1)),
        )
        for each in tree.nodes
    }  # fmt: skip
    nodes = draw(st.permutations(range(16)))[: draw(st.integers(1, 6))]
    problem = PlacementProblem(
        layout=ParallelLayout(dp=len(nodes), tp=8),
        tree=replace(tree, scale_up_level=draw(st.sampled_from([None, "rack"]))),
        preferred_level=draw(st.sampled_from([None, "rack", "block"])),
        weights=ObjectiveWeights(cost=draw(st.floats(0, 1)), fairness=draw(st.floats(0, 1))),
        node_costs=costs,
    )
    return Scorer(problem), np.array(nodes), np.full(len(nodes), 8)


@settings(deadline=None, max_examples=60)
@given(case=scorers())
def test_terms_add_up_to_what_solvers_compare(case: tuple[Scorer, np.ndarray, np.ndarray]) -> None:
    scorer, nodes_P, ranks_P = case
    placed = placement(*((scorer.table.ids[position], 8) for position in nodes_P))
    found = scorer.score(placed)
    assert found.total_s == pytest.approx(scorer.total_s(nodes_P, ranks_P))
    assert min(getattr(found, each.name) for each in fields(found)) > -1e-12
    assert found.step_s >= scorer.base_s
    again_P, ranks_again_P = scorer.positions(placed)
    assert again_P.tolist() == nodes_P.tolist()
    assert ranks_again_P.tolist() == ranks_P.tolist()
