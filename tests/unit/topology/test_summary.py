from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.topology.reading import Machines, Network, hung
from airflow_llmsched.topology.summary import summarise

TREE = hung(
    Network(levels=("block", "rack"), paths={"n1": ("b2", "r1"), "n2": ("b1", "r1"), "n3": ("b1", "r1")}),
    Machines(num_slots=8),
)


def test_domains_add_up_what_is_inside() -> None:
    broken = replace(TREE.nodes[0], unusable_reason="fan")
    busy = replace(TREE.nodes[1], num_free_slots=3)
    whole = summarise(replace(TREE, nodes=(busy, broken, TREE.nodes[2])))
    told = [
        (each.path, each.num_nodes, each.num_free_slots, each.num_slots, each.num_unusable) for each in whole.walk()
    ]
    assert told == [
        ((), 3, 11, 24, 1),
        (("b1",), 2, 3, 16, 1),
        (("b1", "r1"), 2, 3, 16, 1),
        (("b2",), 1, 8, 8, 0),
        (("b2", "r1"), 1, 8, 8, 0),
    ]
    assert [domain.name for domain in whole.walk()] == ["", "b1", "r1", "b2", "r1"]


def test_nodes_are_told_in_their_innermost_domain_only() -> None:
    assert [[node.id for node in each.nodes] for each in summarise(TREE).walk()] == [[], [], ["n2", "n3"], [], ["n1"]]


def test_names_with_numbers_are_in_the_order_of_the_numbers() -> None:
    paths = {name: (block,) for name, block in (("n10", "b2"), ("n9", "b2"), ("x", "b10"), ("y", ""), ("z", "7"))}
    whole = summarise(hung(Network(levels=("block",), paths=paths), Machines()))
    assert [each.name for each in whole.domains] == ["", "7", "b2", "b10"]
    assert [node.id for node in whole.domains[2].nodes] == ["n9", "n10"]
