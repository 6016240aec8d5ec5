from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.network_load import LinkLoad, NetworkLoad
from airflow_llmsched.planner.contention.busy import busy_ratios, with_busy_links
from airflow_llmsched.planner.contention.loads import GangLoad
from airflow_llmsched.planner.perf.hardware import node_shapes
from tests.unit.planner.contention.test_advice import NETWORK, THIN, load
from tests.unit.planner.graphs.test_cluster_graph import H100, tree

BLOCK, RACK, NODE = 0, 1, 2


def test_nodes_below_a_link_that_gangs_fill_are_busy_for_as_long() -> None:
    one, other = load("A", 0, 4), load("B", 1, 5)
    alone = busy_ratios([one], THIN)
    assert alone["n0"][BLOCK] == alone["n3"][BLOCK] == pytest.approx(8 / 32)  # 8 GB a second of its block's 32 GB/s
    assert alone["n0"][NODE] > 0
    assert alone["n3"][RACK] == alone["n3"][NODE] == 0
    both = busy_ratios([one, other], THIN)
    assert both["n2"][BLOCK] == pytest.approx(16 / 32)


def test_no_link_is_busy_for_more_than_all_the_time() -> None:
    gangs = [load(str(number), 0, 4) for number in range(9)]
    assert max(busy_ratios(gangs, THIN).values())[BLOCK] == 1.0


def test_nodes_that_share_nothing_are_not_named() -> None:
    inside = load("A", 0, 1)
    found = busy_ratios([inside, GangLoad(name="B", step_s=1.0, uses={})], THIN)
    assert set(found) == {"n0", "n1"}


def test_a_tree_tells_of_each_node_how_busy_the_links_above_it_are() -> None:
    kept = NetworkLoad(
        shape=H100.name,
        step_s=1.0,
        links=(LinkLoad(domains=(("b1",),), bytes_per_step=16e9, alone_bytes_per_s=32e9),),
    )
    found = with_busy_links(tree(network=NETWORK), {"A": kept}, node_shapes())
    assert {node.id: node.busy_ratios for node in found.nodes if node.busy_ratios} == {
        f"n{number}": (pytest.approx(0.5), 0.0, 0.0) for number in range(4, 8)
    }
    quiet = tuple(replace(node, busy_ratios=()) for node in found.nodes)
    assert replace(found, nodes=quiet) == tree(network=NETWORK)


@pytest.mark.parametrize("shape", ["p5.48xlarge", "unheard-of"])
def test_a_load_of_other_machines_changes_nothing(shape: str) -> None:
    others = NetworkLoad(
        shape=shape,
        step_s=1.0,
        links=(
            LinkLoad(domains=(("b9", "r0"), ("b0", "r0", "n0", "gpu"), ()), bytes_per_step=1e9, alone_bytes_per_s=1e9),
        ),
    )
    assert with_busy_links(tree(), {"A": others}, node_shapes()) == tree()
    assert with_busy_links(tree(), {}, node_shapes()) is not None
