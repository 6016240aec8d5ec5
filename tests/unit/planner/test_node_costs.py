from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NodeCosts
from airflow_llmsched.domain.topology import NetworkLevel, NodeTerms, TopologyTree
from airflow_llmsched.domain.workload import CapacityWish, DatasetKind, DatasetSpec, ObjectiveWeights, ParallelismWish
from airflow_llmsched.planner.node_costs import BYTES_PER_TOKEN, beside_others, crossed_busy_ratios, node_costs_of
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, with_busy_links, workload

CORPUS = DatasetSpec(kind=DatasetKind.FILES, source="/data/corpus")


def with_terms(tree: TopologyTree, **terms: NodeTerms) -> TopologyTree:
    return replace(tree, nodes=tuple(replace(node, terms=terms.get(node.id, node.terms)) for node in tree.nodes))


def test_nodes_of_which_nothing_is_said_cost_nothing() -> None:
    assert node_costs_of(workload(data=CORPUS), fleet(4), {}) == {}


def test_what_a_tree_says_counts_where_the_caller_is_silent() -> None:
    tree = with_terms(fleet(2), n0000=NodeTerms(usd_per_hour=7.0, failures_per_hour=0.2))
    told = {NodeId("n0000"): NodeCosts(failures_per_hour=0.5), NodeId("n0001"): NodeCosts(busy_network_ratio=0.1)}
    assert node_costs_of(workload(), tree, told) == {
        "n0000": NodeCosts(usd_per_hour=7.0, failures_per_hour=0.5),
        "n0001": NodeCosts(busy_network_ratio=0.1),
    }


@pytest.mark.parametrize(
    ("max_bytes", "missing"), [(12_345, 12_345), (None, None)], ids=["as bounded", "by the run's tokens"]
)
def test_a_node_lacks_the_data_that_another_has(max_bytes: int | None, missing: int | None) -> None:
    run = workload(data=replace(CORPUS, max_bytes=max_bytes))
    tree = with_terms(fleet(3), n0001=NodeTerms(data=("/data/corpus",)), n0002=NodeTerms(data=("/data/other",)))
    costs = node_costs_of(run, tree, {})
    if missing is None:
        missing = (run.budget.num_tokens or run.num_steps * run.batch[0].tokens_per_step) * BYTES_PER_TOKEN
    assert {name: each.missing_data_bytes for name, each in costs.items()} == {
        "n0000": missing, "n0001": 0, "n0002": missing,
    }  # fmt: skip


def chosen(tree: TopologyTree, **others: object) -> set[str]:
    run = workload(
        capacity=CapacityWish(min_ranks=16, max_ranks=16), parallelism=ParallelismWish(dp=2, tp=8), data=CORPUS,
        num_sequences=64, **others,
    )  # fmt: skip
    found = search(run, tree, node_shapes(), solver=FleetSolver(), time_limit_s=1.0)
    return set(found.plans[0].placement.nodes)


@pytest.mark.parametrize(
    "better",
    [NodeTerms(usd_per_hour=1.0), NodeTerms(data=("/data/corpus",))],
    ids=["cheaper", "has the data"],
)
def test_a_gang_goes_to_the_nodes_whose_terms_are_better(better: NodeTerms) -> None:
    assert chosen(fleet(8)) == {"n0000", "n0001"}
    assert chosen(with_terms(fleet(8), n0005=better, n0006=better)) == {"n0005", "n0006"}


def test_a_gang_stays_off_nodes_that_fail_often() -> None:
    frail = NodeTerms(failures_per_hour=0.1)
    assert chosen(with_terms(fleet(8), n0000=frail, n0001=frail, n0002=frail)) == {"n0004", "n0005"}


def test_a_plan_is_paid_at_the_prices_of_its_own_nodes() -> None:
    cheap = NodeTerms(usd_per_hour=16.0)
    tree = with_terms(fleet(2), n0000=cheap, n0001=cheap)
    found = search(workload(), tree, node_shapes(), solver=FleetSolver(), time_limit_s=1.0)
    plan = max(found.plans, key=lambda each: each.layout.world_size)
    assert plan.prediction.usd_per_hour == pytest.approx(16.0 * len(plan.placement.nodes))


def test_where_cost_is_weighed_cheap_nodes_are_worth_a_slower_step() -> None:
    """The cheap ones are in different blocks, and little goes between those."""
    cheap = NodeTerms(usd_per_hour=10.0)
    rates = {"rack": 5e10, None: 5e9}
    network = tuple(NetworkLevel(level=level, bandwidth_bytes_per_s=rate) for level, rate in rates.items())
    tree = replace(with_terms(fleet(16), n0001=cheap, n0009=cheap), network=network)
    assert len(chosen(tree) & {"n0001", "n0009"}) == 1
    assert chosen(tree, objective=ObjectiveWeights(throughput=1.0, cost=3.0)) == {"n0001", "n0009"}


BUSY = with_busy_links(fleet(8), {("b00",): 0.1, ("b00", "r000"): 0.5, ("b00", "r001", "n0004"): 0.3})


def ratios(num_nodes: int, **others: Any) -> dict[str, float]:
    return dict(crossed_busy_ratios(BUSY, ParallelLayout(dp=num_nodes, tp=8), **others))


def test_only_links_count_that_a_gang_has_to_go_over() -> None:
    assert ratios(1) == {}, "a node holds it"
    assert ratios(2) == {"n0004": 0.3}, "it leaves nodes, and a rack holds it"
    assert ratios(5) == {**{f"n{number:04d}": 0.5 for number in range(4)}, "n0004": 0.3}
    assert ratios(9)["n0007"] == 0.1, "no block holds it"
    gone = frozenset(NodeId(f"n{number:04d}") for number in (0, 1, 4, 5))
    assert ratios(3, excluded=gone)["n0002"] == 0.5, "nor a rack what is left of it"
    assert crossed_busy_ratios(fleet(8), ParallelLayout(dp=64)) == {}


def test_what_the_caller_says_of_a_link_goes_before_what_the_tree_says() -> None:
    told = {NodeId("n0000"): NodeCosts(busy_network_ratio=0.2), NodeId("n0001"): NodeCosts(usd_per_hour=9.0)}
    found = beside_others(told, {NodeId("n0000"): 0.5, NodeId("n0001"): 0.5, NodeId("n0002"): 0.5})
    assert found[NodeId("n0000")] == told[NodeId("n0000")]
    assert found[NodeId("n0001")] == NodeCosts(usd_per_hour=9.0, busy_network_ratio=0.5)
    assert found[NodeId("n0002")] == NodeCosts(busy_network_ratio=0.5)
    assert beside_others(told, {}) == told
