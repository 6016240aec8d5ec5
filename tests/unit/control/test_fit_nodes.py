from __future__ import annotations

from airflow_llmsched.control.fit_nodes import without
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.planner.flat_tree import flat_tree
from airflow_llmsched.planner.perf.hardware import node_shape
from tests.support.specs import load_small


def test_unfit_nodes_are_not_there_to_be_planned_on() -> None:
    tree = flat_tree(load_small(), num_nodes=3, num_slots=2, shape=node_shape("local-cpu"))
    first = tree.nodes[0].id
    left = without(tree, {first: "a GPU is gone"})
    assert [node.id for node in left.nodes] == [node.id for node in tree.nodes[1:]]
    assert without(tree, {}) is tree
    assert without(tree, {NodeId("elsewhere")}).nodes == tree.nodes
