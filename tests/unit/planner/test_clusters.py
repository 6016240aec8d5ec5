"""Plans on clusters: prices, preference and filters, on plans that a search of known answers gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.domain.fleet import Cluster, cluster_of, fleet_node
from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import BudgetSpec, CapacityWish, WorkloadSpec
from airflow_llmsched.planner.clusters import search_clusters
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE, node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from airflow_llmsched.specs import loader


@pytest.fixture
def workload(checkout: Path) -> WorkloadSpec:
    return loader.load(checkout / "dags" / "specs" / "byte_gpt_demo.yaml")


def tree(**num_nodes: int) -> TopologyTree:
    nodes = tuple(
        TopologyNode(
            id=fleet_node(name, NodeId(f"n{index}")),
            path=(name,),
            shape=LOCAL_SHAPE,
            num_slots=2,
            num_free_slots=2,
        )
        for name, count in num_nodes.items()
        for index in range(count)
    )
    return TopologyTree(levels=("cluster",), nodes=nodes)


def planned(workload: WorkloadSpec, where: TopologyTree, *clusters: Cluster) -> PlanSearch:
    def search_on(tree: TopologyTree, shapes: Mapping[str, NodeShape]) -> PlanSearch:
        return search(workload, tree, shapes, solver=BestFitSolver())

    return search_clusters(workload, where, node_shapes(), clusters=clusters, search=search_on)


def places(found: PlanSearch) -> list[set[str]]:
    return [{cluster_of(node) for node in plan.placement.nodes} for plan in found.plans]


def cluster(name: str, **terms: object) -> Cluster:
    return Cluster(name=name, engine="local", **terms)  # type: ignore[arg-type]


def test_no_gang_spans_two_clusters_though_together_they_would_hold_a_larger_one(workload: WorkloadSpec) -> None:
    found = planned(workload, tree(a=1, b=1), cluster("a"), cluster("b"))
    assert found.plans
    assert all(len(each) == 1 for each in places(found))
    assert max(plan.layout.world_size for plan in found.plans) == 2


def test_a_cluster_is_planned_at_its_own_price(workload: WorkloadSpec) -> None:
    dear, cheap = cluster("a", usd_per_hour={LOCAL_SHAPE: 8.0}), cluster("b", usd_per_hour={LOCAL_SHAPE: 2.0})
    found = planned(workload, tree(a=1, b=1), dear, cheap)
    assert places(found)[0] == {"b"}, "all else is alike"
    num_shapes = 2  # a node of two slots is two of this shape
    assert found.plans[0].prediction.usd_per_hour == pytest.approx(num_shapes * 2.0)
    assert found.plans[0].node_shape == LOCAL_SHAPE


def test_a_preferred_cluster_is_planned_on_while_a_run_fits_there(workload: WorkloadSpec) -> None:
    mine, other = cluster("a", preference=1), cluster("b")
    assert places(planned(workload, tree(a=1, b=4), mine, other))[0] == {"a"}
    assert {"b"} in places(planned(workload, tree(b=4), mine, other))


def test_a_preferred_cluster_that_would_break_the_budget_comes_after_the_others(workload: WorkloadSpec) -> None:
    tight = replace(workload, budget=replace(workload.budget, max_usd=1.0))
    dear = cluster("a", preference=1, usd_per_hour={LOCAL_SHAPE: 10_000.0})
    found = planned(tight, tree(a=1, b=1), dear, cluster("b"))
    assert places(found)[0] == {"b"}
    assert places(found)[-1] == {"a"}


def test_a_deadline_that_the_preferred_cluster_misses_goes_before_preference(workload: WorkloadSpec) -> None:
    small = planned(workload, tree(a=1), cluster("a")).plans[0].prediction.run_s
    large = planned(workload, tree(b=2), cluster("b")).plans[0].prediction.run_s
    assert large < small
    hasty = replace(workload, budget=BudgetSpec(num_steps=workload.num_steps, deadline_s=(small + large) / 2))
    found = planned(hasty, tree(a=1, b=2), cluster("a", preference=1), cluster("b"))
    assert places(found)[0] == {"b"}


@pytest.mark.parametrize(
    "wish", [CapacityWish(regions=("eu-1",)), CapacityWish(jurisdictions=("EU",))], ids=["region", "law"]
)
def test_a_cluster_that_the_spec_does_not_allow_is_left_out_and_the_notes_say_so(
    workload: WorkloadSpec, wish: CapacityWish
) -> None:
    allowed = cluster("b", region="eu-1", jurisdiction="EU")
    found = planned(replace(workload, capacity=wish), tree(a=4, b=1), cluster("a", region="us-1"), allowed)
    assert set(map(tuple, places(found))) == {("b",)}
    assert any(note.startswith("Cluster a is left out: capacity.") for note in found.notes)


def test_a_cluster_of_which_nothing_may_be_used_is_named_with_its_reason(workload: WorkloadSpec) -> None:
    whole = tree(a=1, b=1)
    gone = replace(whole.nodes[0], unusable_reason="cluster a: no route to it", num_free_slots=0)
    found = planned(workload, replace(whole, nodes=(gone, *whole.nodes[1:])), cluster("a"), cluster("b"))
    assert "Cluster a is left out: cluster a: no route to it." in found.notes


def test_where_nothing_fits_refusals_are_counted_over_all_clusters(workload: WorkloadSpec) -> None:
    huge = replace(workload, capacity=CapacityWish(min_ranks=64))
    found = planned(huge, tree(a=1, b=1), cluster("a", preference=1), cluster("b"))
    assert found.plans == ()
    assert found.relaxation
