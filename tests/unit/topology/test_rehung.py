from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.node_topology import GpuPlace, NodeTopology
from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel, TopologyTree
from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.reading import Machines, Network, hung
from airflow_llmsched.topology.rehung import rehung, usual_slots

NODES = hung(
    Network(
        levels=("zone", "clique"),
        paths={"n1.site": ("z", "c1"), "n2.site": ("z", "c1"), "n3.site": ("z", "c2"), "new": ("z", "c3")},
        scale_up_level="clique",
    ),
    Machines(shape="gb200-nvl72"),
)
FABRIC = hung(
    Network(
        levels=("spine", "leaf"),
        paths={"n1": ("s", "l1"), "n2": ("s", "l1"), "n3": ("s", "l2"), "storage": ("s", "l2")},
        links=(NetworkLevel(level="spine", bandwidth_bytes_per_s=5e10),),
    ),
    Machines(),
)


def test_nodes_keep_what_they_are_and_hang_where_the_fabric_says() -> None:
    found = rehung(replace(NODES, switches_reduce=True), FABRIC)
    assert (found.tree.levels, found.tree.scale_up_level) == (("spine", "leaf", "clique"), "clique")
    assert {node.id: node.path for node in found.tree.nodes} == {
        "n1.site": ("s", "l1", "z/c1"),
        "n2.site": ("s", "l1", "z/c1"),
        "n3.site": ("s", "l2", "z/c2"),
        "new": ("new", "new", "z/c3"),
    }
    assert {(node.shape, node.num_slots) for node in found.tree.nodes} == {("gb200-nvl72", 4)}
    assert (found.tree.network, found.tree.switches_reduce) == (FABRIC.network, True)
    assert found.warnings == {
        "host of the network that is none of the nodes": 1,
        "node that the network does not have: it is alone there": 1,
    }


def test_without_fast_links_between_nodes_the_levels_are_the_fabrics() -> None:
    plain = replace(NODES, scale_up_level=None)
    assert rehung(plain, FABRIC).tree.levels == FABRIC.levels
    assert rehung(rehung(plain, FABRIC).tree, FABRIC).tree == rehung(plain, FABRIC).tree


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"n1.a": ("z", "c"), "n1.b": ("z", "c")}, "two nodes are called 'n1'"),
        ({"x1": ("z", "c")}, "has none of the nodes"),
    ],
)
def test_names_that_do_not_tell_nodes_apart_are_refused(change: dict[str, tuple[str, ...]], why: str) -> None:
    with pytest.raises(DataError, match=why):
        rehung(hung(Network(levels=NODES.levels, paths=change), Machines()), FABRIC)


def test_facts_are_the_networks_and_wirings_the_nodes() -> None:
    wirings = {"gb200-nvl72": NodeTopology(gpus=(GpuPlace(index=0),))}
    wired, railed = replace(NODES, wirings=wirings), replace(FABRIC, facts=NetworkFacts(num_rails=8))
    found = rehung(wired, railed).tree
    assert (found.facts.num_rails, found.wirings) == (8, wirings)
    assert rehung(replace(NODES, facts=NetworkFacts(traffic_class=3)), FABRIC).tree.facts.traffic_class == 3


def test_two_levels_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match="has a level 'clique'"):
        rehung(NODES, replace(FABRIC, levels=("spine", "clique"), network=()))


def test_rates_are_shared_out_by_the_slots_that_most_nodes_have() -> None:
    odd = replace(NODES.nodes[0], num_slots=8, num_free_slots=8)
    assert usual_slots(replace(NODES, nodes=(odd, *NODES.nodes[1:]))) == 4
    assert usual_slots(replace(NODES, nodes=())) == 1


@given(st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(chance: random.Random) -> None:
    def shuffled(tree: TopologyTree) -> TopologyTree:
        return replace(tree, nodes=tuple(chance.sample(tree.nodes, len(tree.nodes))))

    assert rehung(shuffled(NODES), shuffled(FABRIC)) == rehung(NODES, FABRIC)
