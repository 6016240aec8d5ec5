from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.clouds.onprem.choose import choose
from airflow_llmsched.clouds.onprem.inventory import FleetNode
from airflow_llmsched.domain.identity import NodeId


def fleet(*paths: str) -> list[FleetNode]:
    """Nodes ``n0`` and on, each with a path such as ``b1/r2``."""
    return [
        FleetNode(id=NodeId(f"n{number}"), path=tuple(path.split("/")) if path else ())
        for number, path in enumerate(paths)
    ]


def chosen(nodes: list[FleetNode], num_nodes: int) -> list[str] | None:
    found = choose(nodes, num_nodes)
    return None if found is None else [node.id for node in found]


@pytest.mark.parametrize(
    ("paths", "num_nodes", "expected"),
    [
        (["b1/r1", "b1/r2", "b1/r2"], 2, ["n1", "n2"]),  # one rack holds both
        (["b1/r1", "b1/r1", "b1/r1", "b1/r2", "b1/r2"], 2, ["n3", "n4"]),  # the fuller rack is left whole
        (["b1/r1", "b2/r1", "b2/r2"], 2, ["n1", "n2"]),  # no rack has room, one block has
        (["b1/r1", "b2/r1"], 2, ["n0", "n1"]),  # nor has any block
        (["b1/r1", "b2/r1"], 1, ["n0"]),
        (["b1/r1"], 2, None),
        ([], 1, None),
        (["", "", ""], 2, ["n0", "n1"]),
    ],
)
def test_nodes_that_hang_together_go_together(paths: list[str], num_nodes: int, expected: list[str] | None) -> None:
    assert chosen(fleet(*paths), num_nodes) == expected


@given(
    paths=st.lists(st.sampled_from([f"b{block}/r{rack}" for block in range(3) for rack in range(3)]), max_size=20),
    num_nodes=st.integers(1, 8),
    seed=st.integers(0, 100),
)
def test_the_choice_is_whole_and_does_not_hang_on_the_order_of_the_list(paths, num_nodes, seed) -> None:
    nodes = fleet(*paths)
    shuffled = random.Random(seed).sample(nodes, len(nodes))
    found = chosen(nodes, num_nodes)
    assert chosen(shuffled, num_nodes) == found
    assert (found is None) == (len(nodes) < num_nodes)
    assert found is None or len(set(found)) == num_nodes
