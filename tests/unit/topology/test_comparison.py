from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.node_topology import DeviceLink, GpuPlace, NodeTopology, Path
from airflow_llmsched.domain.topology import Division, NetworkFacts, NetworkLevel, NodeTerms, TopologyNode, TopologyTree
from airflow_llmsched.topology.comparison import Comparison, compare, link_words, words_of
from airflow_llmsched.topology.reading import Machines, Network, hung

TREE = hung(
    Network(levels=("block", "rack"), paths={f"n{number}": ("b", f"r{number // 2}") for number in range(6)}),
    Machines(shape="dgx-h100"),
)


def with_node(name: str, **changes: object) -> TopologyTree:
    nodes = [replace(node, **changes) if node.id == name else node for node in TREE.nodes]  # type: ignore[arg-type]
    return replace(TREE, nodes=tuple(nodes))


def names(changes: tuple) -> list[str]:
    return [each.id for each in changes]


@given(st.permutations(TREE.nodes))
def test_a_topology_is_the_same_as_itself_in_any_order(nodes: list[TopologyNode]) -> None:
    assert compare(TREE, replace(TREE, nodes=tuple(nodes))).is_same


def test_nodes_come_and_go() -> None:
    fewer = replace(TREE, nodes=TREE.nodes[1:])
    assert names(compare(fewer, TREE).added) == names(compare(TREE, fewer).gone) == ["n0"]


def test_a_node_that_moved_is_not_told_as_changed_as_well() -> None:
    found = compare(TREE, with_node("n3", path=("b", "r9"), num_free_slots=0))
    assert (names(found.moved), names(found.changed)) == (["n3"], [])


@pytest.mark.parametrize(
    "changes",
    [
        {"num_free_slots": 3},
        {"unusable_reason": "hot"},
        {"shape": "hgx"},
        {"terms": NodeTerms(usd_per_hour=0.0)},
        {"divisions": (Division(slot=7, kind="mig", slices=(2000, 2001), free=(2001,)),)},
    ],
)
def test_a_node_that_stays_may_change(changes: dict[str, object]) -> None:
    assert names(compare(TREE, with_node("n1", **changes)).changed) == ["n1"]


def test_levels_and_links_are_told_once_and_no_node_counts_as_moved() -> None:
    links = (NetworkLevel(level=None, bandwidth_bytes_per_s=5e10, is_measured=True),)
    renamed = replace(TREE, levels=("block", "row"), scale_up_level="row", switches_reduce=True, network=links)
    assert compare(TREE, renamed) == Comparison(
        facts=(
            ("levels", "block, rack", "block, row"),
            ("scale-up level", "the node", "row"),
            ("switches reduce", "false", "true"),
            ("links of the whole", "not told", "50 GB/s, measured"),
        )
    )


def test_what_is_known_of_the_whole_network_may_change() -> None:
    facts = NetworkFacts(num_rails=8, transport=Transport.DPU, service_level=1)
    assert compare(TREE, replace(TREE, facts=facts)).facts == (
        ("rails", "1", "8"),
        ("moved by", "as shapes say", "dpu"),
        ("class of collectives", "none", "service level 1"),
    )


def test_what_joins_the_devices_inside_nodes_may_change() -> None:
    links = {0: {1: DeviceLink(path=Path.NVLINK, num_links=4)}}
    wiring = NodeTopology(gpus=tuple(GpuPlace(index=index, numa_index=0) for index in range(2)), gpu_links=links)
    known = replace(TREE, wirings={"dgx-h100": wiring})
    assert compare(TREE, known).facts == (
        ("inside of dgx-h100", "not told", "2 GPUs, 1 NUMA nodes, 0 cards, 4 NVLinks"),
    )
    crossed = replace(wiring, gpus=tuple(replace(gpu, numa_index=1) for gpu in wiring.gpus))
    ((_, was, now),) = compare(known, replace(TREE, wirings={"dgx-h100": crossed})).facts
    assert now == f"{was}, joined otherwise"
    assert compare(known, known).is_same


def test_nodes_and_links_are_worded() -> None:
    halved = replace(TREE.nodes[0], divisions=(Division(slot=7, kind="mig", slices=(2000, 2001), free=(2001,)),))
    assert words_of(halved) == "dgx-h100, 8 of 8 free, 1 of 2 mig slices of 7 free (2001)"
    node = replace(TREE.nodes[0], num_free_slots=2, free_slots=(5, 1), unusable_reason="fan")
    assert words_of(node) == "dgx-h100, 2 of 8 free (1,5), fan"
    assert words_of(None) == "none"
    terms = NodeTerms(usd_per_hour=12.5, failures_per_hour=0.01, data=("/data/a", "/data/b"))
    worded = words_of(replace(TREE.nodes[0], terms=terms))
    assert worded == "dgx-h100, 8 of 8 free, 12.5 USD/h, 0.01 failures/h, has /data/a, /data/b"
    assert link_words(NetworkLevel(level="rack", bandwidth_bytes_per_s=1.25e9)) == "1.25 GB/s"
