from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import MeasuredOn, NetworkLevel, TopologyTree
from airflow_llmsched.planner.explain import explain_plan
from airflow_llmsched.planner.links import as_claimed, check_words, measured_words, reckoned_tree
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, workload
from tests.support.models import LLAMA2_70B

NOON_S = 1_796_040_000.0


def measured(level: str | None, *nodes: str, rate: float = 1e9) -> NetworkLevel:
    on = MeasuredOn(at_s=NOON_S, nodes=tuple(map(NodeId, nodes)))
    return NetworkLevel(level=level, bandwidth_bytes_per_s=rate, is_measured=True, measured_on=on)


def slow(tree: TopologyTree, shape: str) -> TopologyTree:
    assert {node.shape for node in tree.nodes} == {shape}
    names = [str(node.id) for node in tree.nodes]
    return replace(tree, network=(measured(None, *names),))


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (measured("rack", "a", "b", rate=48e9), "within one rack: 48 GB/s of each accelerator, 2026-11-30, on a and b"),
        (
            measured(None, "a", "b", "c"),
            "between all nodes: 1 GB/s of each accelerator, 2026-11-30, on 3 nodes, a to c",
        ),
        (NetworkLevel(level=None, bandwidth_bytes_per_s=1e9, is_measured=True), ""),
    ],
)
def test_a_measured_link_is_said_with_its_day_and_nodes(link: NetworkLevel, words: str) -> None:
    assert check_words(link) == words
    assert measured_words(replace(fleet(2), network=())) == ""


def test_a_search_reckons_with_measured_links_and_its_words_say_which() -> None:
    job, tree = workload(LLAMA2_70B), fleet(8)
    claimed, found = (
        search(job, tree, node_shapes(), solver=BestFitSolver(), as_measured=each) for each in (as_claimed, slow)
    )
    assert claimed == search(job, tree, node_shapes(), solver=BestFitSolver())
    assert found.plans[0].prediction.step_s > 1.3 * claimed.plans[0].prediction.step_s
    words = explain_plan(job, found, tree, node_shapes(), as_measured=slow)
    names = sorted(str(node.id) for node in tree.nodes)
    assert "Links are as checks of nodes measured them:\n  between all nodes: 1 GB/s" in words
    assert f"on 8 nodes, {names[0]} to {names[-1]}" in words
    assert "checks of nodes" not in explain_plan(job, claimed, tree, node_shapes())


def test_what_was_measured_for_other_shapes_and_clusters_is_left_out_of_a_plans_words() -> None:
    job = workload(LLAMA2_70B)
    plan = search(job, fleet(8), node_shapes(), solver=BestFitSolver()).plans[0]
    own = fleet(8).nodes
    other = replace(own[0], id=NodeId("elsewhere/n"), shape=own[0].shape)
    unlike = replace(own[0], id=NodeId("unlike"), shape="dgx-a100")
    both = replace(fleet(8), nodes=(*own, other, unlike))
    ((link,),) = [reckoned_tree(both, plan, slow).network]
    assert link.measured_on is not None
    assert set(link.measured_on.nodes) == {node.id for node in own}
    assert reckoned_tree(both, plan, slow).nodes == both.nodes
