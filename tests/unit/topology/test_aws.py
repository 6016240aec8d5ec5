from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.aws import Instance, network_below_zone, read_aws


def row(name: str, *network: str, **changes: Any) -> dict[str, Any]:
    base = {
        "InstanceId": name,
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-east-1a",
        "NetworkNodes": [*network],
    }
    return {**base, **changes}


ROWS = [row("i-1", "nn-1", "nn-2", "nn-3"), row("i-2", "nn-1", "nn-2", "nn-4"), row("i-3", "nn-1", "nn-5", "nn-6")]


def test_instances_hang_below_their_network_nodes_with_the_slots_of_their_type() -> None:
    found = read_aws({"Instances": ROWS})
    assert found.tree.levels == ("zone", "network-1", "network-2", "network-3")
    assert [(node.id, node.path[1:], node.shape, node.num_slots) for node in found.tree.nodes] == [
        ("i-1", ("nn-1", "nn-2", "nn-3"), "p5.48xlarge", 8),
        ("i-2", ("nn-1", "nn-2", "nn-4"), "p5.48xlarge", 8),
        ("i-3", ("nn-1", "nn-5", "nn-6"), "p5.48xlarge", 8),
    ]
    assert found.warnings == {}


def test_an_instance_of_which_less_is_told_is_alone_below_that() -> None:
    found = read_aws({"Instances": [*ROWS, row("i-4", "nn-1", "a", "b", "c"), row("i-5")]})
    paths = {node.id: node.path[1:] for node in found.tree.nodes}
    assert paths["i-1"] == ("nn-1", "nn-2", "nn-3", "i-1")
    assert paths["i-5"] == ("i-5",) * 4
    assert found.warnings == {"instance without network nodes": 1}


def test_ultraservers_are_a_level_where_all_are_in_one() -> None:
    rows = [row("i-1", "nn-1", CapacityBlockId="cb-1"), row("i-2", "nn-1", CapacityBlockId="cb-2")]
    assert read_aws({"Instances": rows}).tree.scale_up_level == "ultraserver"
    assert read_aws({"Instances": [*rows, row("i-3", "nn-1")]}).tree.scale_up_level is None
    assert network_below_zone({}, depth=0).scale_up_level is None
    joined = network_below_zone({"i": Instance(id="i", network_nodes=("a", "b"), block="cb")}, depth=1)
    assert joined.paths == {"i": ("a", "cb")}


def test_what_is_odd_is_counted() -> None:
    rows = [row("i-1", "nn", InstanceType="z9.huge", AvailabilityZone=None)]
    found = read_aws({"Instances": rows, "NextToken": "more"})
    assert (found.tree.nodes[0].path, found.tree.nodes[0].num_slots) == (("i-1", "nn"), 1)
    assert found.warnings == {
        "instance of a type that is not known, which counts as one slot": 1,
        "instance without a zone": 1,
        "list that goes on: ask with NextToken and add what comes": 1,
    }


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({}, "lists no instance"),
        ({"Instances": [ROWS[0], ROWS[0]]}, "lists an instance twice"),
        ({"Instances": [{}]}, r"Instances\[0\]: InstanceId: is missing"),
        ({"Instances": [row("i-1", NetworkNodes=[1])]}, "instance 'i-1': NetworkNodes: must be a list of texts"),
    ],
)
def test_contradictions_are_refused(document: object, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_aws(document)


@given(st.permutations(ROWS))
def test_the_order_of_instances_does_not_matter(rows: list[dict[str, Any]]) -> None:
    assert read_aws({"Instances": rows}) == read_aws({"Instances": ROWS})


@given(
    st.sampled_from(sorted(ROWS[0])), st.none() | st.integers() | st.text(max_size=3) | st.lists(st.text(max_size=2))
)
def test_garbage_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    document = {"Instances": [{**ROWS[0], field: value}, ROWS[1]]}
    try:
        first = read_aws(document)
    except DataError:
        return
    assert read_aws(document) == first
