from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.preflight import Check, CheckOutcome, NodeChecks, PreflightRound
from airflow_llmsched.domain.topology import MeasuredOn, NetworkLevel, TopologyTree
from airflow_llmsched.topology.link_records import (
    MAX_KEPT,
    LinkRecord,
    kept_with,
    links_on,
    measured_by_shape,
    record_of,
)
from airflow_llmsched.topology.reading import Machines, Network, hung
from airflow_llmsched.units import MIB

SHAPE = "dgx-h100"
RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
RATE = 320e9


def tree(**links: float) -> TopologyTree:
    """Two blocks of two racks of two nodes, n0 to n7."""
    paths = {f"n{number}": (f"b{number // 4}", f"r{number // 2}") for number in range(8)}
    told = tuple(NetworkLevel(level=level, bandwidth_bytes_per_s=rate) for level, rate in links.items())
    return hung(Network(levels=("block", "rack"), paths=paths, links=told), Machines(shape=SHAPE))


def a_round(*nodes: str, rate: float = RATE, ranks: int = 8, num_bytes: int = 256 * MIB) -> PreflightRound:
    detail = f"{num_bytes} bytes over {ranks * len(nodes)} ranks"
    check = Check(name="collective", outcome=CheckOutcome.OK, detail=detail, value=rate, unit="bytes/s")
    return PreflightRound(nodes=tuple(NodeChecks(node=NodeId(node), checks=(check,)) for node in nodes))


def recorded(*nodes: str, at_s: float = 1000.0, rate: float = RATE, of: TopologyTree | None = None) -> LinkRecord:
    told = record_of(a_round(*nodes, rate=rate), of or tree(), at_s=at_s, others={})
    assert isinstance(told, LinkRecord), told
    return told


@pytest.mark.parametrize(
    ("nodes", "level", "domain"),
    [(("n0", "n1"), "rack", ("b0", "r0")), (("n0", "n3"), "block", ("b0",)), (("n7", "n0"), None, ())],
)
def test_a_round_is_recorded_at_the_innermost_level_that_holds_its_nodes(nodes, level, domain) -> None:
    assert recorded(*nodes) == LinkRecord(
        level=level, domain=domain, shape=SHAPE, bytes_per_s=RATE / 8, at_s=1000.0, nodes=tuple(sorted(nodes))
    )


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (replace(a_round("n0", "n1"), unfit={NodeId("n1"): "slow"}), "a node is unfit"),
        (PreflightRound(nodes=()), "no collective over all nodes was timed"),
        (a_round("n0", "n1", rate=float("inf")), "no collective over all nodes was timed"),
        (a_round("n0", "n1", rate=8.0), "1 bytes/s of each accelerator is no link's rate"),
        (a_round("n0", "n1", rate=1e17), "1.25e+16 bytes/s of each accelerator is no link's rate"),
        (a_round("n0", "n1", num_bytes=16 * MIB), "below 64 MiB"),
        (a_round("n0"), "within one node"),
        (a_round("n0", "x"), "nodes that the topology does not have"),
        (a_round("n0", "n1", ranks=2), "2 of 8 accelerators of n0 sent"),
        (a_round("n0", "n2", ranks=8), "nodes of several shapes"),
    ],
)
def test_what_says_nothing_of_the_network_is_not_recorded_and_why(found: PreflightRound, why: str) -> None:
    other = tuple(replace(node, shape="p5.48xlarge") if node.id == "n2" else node for node in tree().nodes)
    told = record_of(found, replace(tree(), nodes=other), at_s=0.0, others={})
    assert isinstance(told, str)
    assert why in told


@pytest.mark.parametrize(
    ("mine", "held", "counts"),
    [
        (("n0", "n1"), ("n2", "n3"), True),  # in the next rack
        (("n0", "n1"), ("n5",), True),  # on one node, which sends nothing
        (("n0", "n2"), ("n1",), True),
        (("n0", "n3"), ("n1", "n2"), False),  # over the same block's links
        (("n0", "n3"), ("n4", "n6"), True),  # over another's
        (("n0", "n1"), ("n0", "n4"), False),  # out of this very rack
        (("n0", "n4"), ("n6", "n7"), True),  # within one rack of all that was measured
        (("n0", "n4"), ("n5", "n7"), True),
        (("n0", "n4"), ("n3", "n7"), False),
        (("n0", "n1"), ("n0", "n1"), False),
    ],
)
def test_what_was_measured_while_others_used_the_same_links_does_not_count(mine, held, counts: bool) -> None:
    told = record_of(a_round(*mine), tree(), at_s=0.0, others={RUN: [NodeId(node) for node in held]})
    assert isinstance(told, LinkRecord) == counts
    assert counts or f"others were on the same links meanwhile ({RUN})" in str(told)


def test_the_lowest_of_a_level_overrides_what_is_claimed_and_says_when_and_where() -> None:
    records = [recorded("n0", "n1"), recorded("n2", "n3", rate=RATE / 2, at_s=7.0), recorded("n0", "n4", rate=8e9)]
    found = links_on(records, tree(rack=9e9, block=5e9), SHAPE)
    assert found.network == (
        NetworkLevel(
            level=None,
            bandwidth_bytes_per_s=1e9,
            is_measured=True,
            measured_on=MeasuredOn(at_s=1000.0, nodes=(NodeId("n0"), NodeId("n4"))),
        ),
        NetworkLevel(level="block", bandwidth_bytes_per_s=5e9),
        NetworkLevel(
            level="rack",
            bandwidth_bytes_per_s=RATE / 16,
            is_measured=True,
            measured_on=MeasuredOn(at_s=7.0, nodes=(NodeId("n2"), NodeId("n3"))),
        ),
    )


def test_without_a_measurement_that_counts_the_tree_is_the_one_that_was_given() -> None:
    claimed = tree(rack=9e9)
    inside = replace(claimed, nodes=claimed.nodes[:2])
    flat = hung(Network(levels=("rack",), paths={"n2": ("b0",), "n3": ("b0",)}), Machines(shape=SHAPE))
    assert links_on([], claimed, SHAPE) is claimed
    assert links_on([recorded("n2", "n3")], inside, SHAPE) is inside, "of a rack that is none of its own"
    assert links_on([recorded("n2", "n3")], claimed, "p5.48xlarge") is claimed
    assert links_on([recorded("n2", "n3")], flat, SHAPE) is flat, "the level now means something else"
    rack_of_others = replace(recorded("n2", "n3"), level="row")
    assert links_on([rack_of_others], claimed, SHAPE) is claimed


def test_what_was_measured_between_nodes_of_which_one_has_moved_counts_for_no_domain() -> None:
    moved = tuple(replace(node, path=("b1", "r3")) if node.id == "n1" else node for node in tree().nodes)
    assert links_on([recorded("n0", "n1")], replace(tree(), nodes=moved), SHAPE).network == ()
    assert links_on([recorded("n0", "n1")], replace(tree(), nodes=moved[:1]), SHAPE).network != (), "n1 is left out"


def test_what_was_measured_of_a_domain_counts_for_its_other_nodes() -> None:
    narrowed = replace(tree(), nodes=tuple(node for node in tree().nodes if node.id in {"n1", "n2"}))
    (link,) = links_on([recorded("n0", "n3")], narrowed, SHAPE).network
    assert (link.level, link.bandwidth_bytes_per_s) == ("block", RATE / 8)


def test_a_newer_measurement_replaces_those_of_its_own_nodes_and_no_others() -> None:
    first = recorded("n0", "n3", at_s=1.0, rate=8e9)
    elsewhere = recorded("n0", "n2", at_s=2.0)
    inside = recorded("n0", "n1", at_s=3.0)
    wide = record_of(a_round("n0", "n1", "n3"), tree(), at_s=4.0, others={})
    assert isinstance(wide, LinkRecord)
    kept = kept_with([first, elsewhere, inside], wide)
    assert kept == (elsewhere, inside, wide), "a repaired link is measured anew by whoever has all of its nodes"


def test_the_newest_are_kept_of_many() -> None:
    many: tuple[LinkRecord, ...] = ()
    one = recorded("n0", "n1")
    for number in range(MAX_KEPT + 5):
        many = kept_with(many, replace(one, nodes=(NodeId(f"m{number}"),), at_s=float(number)))
    assert [each.at_s for each in many] == [float(number) for number in range(5, MAX_KEPT + 5)]


def test_each_shape_is_told_what_was_measured_between_its_own_nodes() -> None:
    nodes = tuple(replace(node, shape="p5.48xlarge") if node.path[0] == "b1" else node for node in tree().nodes)
    both = replace(tree(), nodes=nodes)
    records = [recorded("n0", "n1", of=both), recorded("n4", "n6", of=both)]
    found = measured_by_shape(records, both)
    assert {shape: [link.level for link in links] for shape, links in found.items()} == {
        SHAPE: ["rack"],
        "p5.48xlarge": ["block"],
    }
    assert measured_by_shape([], both) == {}


@pytest.mark.parametrize(
    ("rate", "at_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (1e300, 1.0), (float("nan"), 1.0), (1e9, float("inf"))]
)
def test_a_rate_that_no_plan_could_be_reckoned_with_is_refused(rate: float, at_s: float) -> None:
    with pytest.raises(ValueError, match="measured by nobody"):
        replace(recorded("n0", "n1"), bytes_per_s=rate, at_s=at_s)
