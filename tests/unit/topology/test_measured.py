from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.preflight import Check, CheckOutcome, NodeChecks, PreflightRecord, PreflightRound
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.measured import Measurement, read_nccl_tests, read_preflight, with_measured
from airflow_llmsched.topology.reading import Machines, Network, Oddities, hung
from airflow_llmsched.units import GB, MIB

RANK = "#  Rank {rank:2} Group  0 Pid {pid} on  {host} device  {device} [0000:1b:00] NVIDIA H100 80GB HBM3\n"
HEAD = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
"""


def output(*hosts: str, ranks: int = 8, collective: str | None = "all_reduce_perf", redop: str = "sum") -> str:
    """What nccl-tests 2.17 prints, in part."""
    lines = "# nccl-tests version 2.17.6\n"
    lines += f"# Collective test starting: {collective}\n" if collective else ""
    lines += "# Using devices\n"
    names = [host for host in hosts for _ in range(ranks)]
    lines += "".join(
        RANK.format(rank=rank, pid=100 + rank, host=host, device=rank % ranks) for rank, host in enumerate(names)
    )
    lines += HEAD
    row = "  {size}  {count}  float  {redop}  -1  {times}\n"
    small = "100.0   10.48   19.66      0    98.0   10.70   20.06      0"
    large = "5100.0  210.54  394.76      0  5050.0  212.62  398.67    N/A"
    lines += row.format(size=2**20, count=2**18, redop=redop, times=small)
    lines += row.format(size=2**30, count=2**28, redop=redop, times=large)
    return lines + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 208.3\n"


def tree(**links: float) -> TopologyTree:
    paths = {f"n{number}.site": (f"b{number // 4}", f"r{number // 2}") for number in range(8)}
    network = Network(
        levels=("block", "rack"),
        paths=paths,
        links=tuple(NetworkLevel(level=level, bandwidth_bytes_per_s=rate) for level, rate in links.items()),
    )
    return hung(network, Machines(num_slots=8))


def measurement(*nodes: str, rate: float = 1e9, num_bytes: int = 1024 * MIB, num_ranks: int = 16) -> Measurement:
    return Measurement(nodes=frozenset(map(NodeId, nodes)), bytes_per_s=rate, num_bytes=num_bytes, num_ranks=num_ranks)


def test_a_ring_gives_each_accelerator_its_share_of_what_leaves_the_node() -> None:
    found = read_nccl_tests(output("n0", "n1"))
    assert found.nodes == {"n0", "n1"}
    assert (found.bytes_per_s, found.num_bytes) == (pytest.approx(398.67 * GB / 8), 1024 * MIB)


def test_of_an_all_to_all_only_what_leaves_the_node_counts() -> None:
    found = read_nccl_tests(output("n0", "n1", collective="alltoall_perf", redop="none"))
    assert found.bytes_per_s == pytest.approx(398.67 * GB * 8 / 15)


def test_older_versions_that_do_not_say_the_collective_are_read_where_ranks_add_up() -> None:
    assert read_nccl_tests(output("n0", "n1", collective=None)) == read_nccl_tests(output("n0", "n1"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (output("n0", "n1", collective=None, redop="none"), "tells nothing of each link. Measure with"),
        (output("n0", "n1", collective="sendrecv_perf", redop="none"), "'sendrecv_perf' tells nothing"),
        (output("n0", "n1").replace("  N/A\n", "  7\n"), "line 23: 7 values are wrong"),
        (output("n0", "n1").replace("Rank  1 ", "Rank  0 "), "line 5: rank 0 is there twice. .* MPI=1"),
        (output("n0", "n1").replace("on  n1 device  7", "on  n2 device  7"), "unlike numbers of ranks"),
        (output("n0", "n1").replace("398.67", "0.00").replace("394.76", "0.00"), "measured nothing"),
        ("# nothing\n", "shows no ranks"),
        (HEAD, "shows no ranks, or no results"),
    ],
)
def test_what_tells_nothing_of_links_is_refused(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_nccl_tests(text)


def test_a_measurement_is_of_the_innermost_level_that_holds_its_nodes() -> None:
    for nodes, level in ((("n0", "n1"), "rack"), (("n1", "n3"), "block"), (("n3", "n4"), None)):
        found = with_measured(tree(), [measurement(*nodes)])
        assert found.tree.network == (NetworkLevel(level=level, bandwidth_bytes_per_s=1e9, is_measured=True),)
        assert found.warnings == {}


def test_what_was_measured_overrides_what_is_claimed_and_the_lowest_of_a_level_counts() -> None:
    found = with_measured(
        tree(block=5e9, rack=9e9),
        [measurement("n0", "n3", rate=3e9), measurement("n4", "n7", rate=2e9), measurement("n4", "n6", rate=4e9)],
    )
    assert found.tree.network == (
        NetworkLevel(level="block", bandwidth_bytes_per_s=2e9, is_measured=True),
        NetworkLevel(level="rack", bandwidth_bytes_per_s=9e9),
    )
    assert with_measured(found.tree, []).tree == found.tree


def test_measurements_that_tell_nothing_of_the_network_are_counted() -> None:
    joined = hung(
        Network(levels=("block", "rack"), paths={"a": ("b", "r"), "b": ("b", "r")}, scale_up_level="rack"), Machines()
    )
    found = with_measured(
        joined,
        [
            measurement("a"),
            measurement("a", "z"),
            measurement("a", "b", num_bytes=MIB),
            measurement("a", "b"),
        ],
    )
    assert (found.tree, found.warnings) == (
        joined,
        {
            "measurement with buffers below 64 MiB, which does not count": 1,
            "measurement with nodes that the topology does not have": 1,
            "measurement within one domain of the fastest links, which are not the network's": 1,
            "measurement within one node, which does not count": 1,
        },
    )


def checks(node: str, value: float | None, *, detail: str = "268435456 bytes over 16 ranks") -> NodeChecks:
    check = Check(name="collective", outcome=CheckOutcome.OK, detail=detail, value=value, unit="bytes/s")
    return NodeChecks(node=NodeId(node), checks=(Check(name="compute", outcome=CheckOutcome.OK), check))


def test_rounds_of_checks_are_measurements_of_the_slowest_node() -> None:
    odd = Oddities()
    record = PreflightRecord(
        generation=1,
        rounds=(
            PreflightRound(nodes=(checks("n0", 320e9), checks("n1", 300e9))),
            PreflightRound(nodes=(checks("n0", 320e9), checks("n1", None))),
            PreflightRound(nodes=(checks("n0", 320e9, detail=""),)),
            PreflightRound(nodes=()),
        ),
    )
    assert read_preflight(record, odd) == [measurement("n0", "n1", rate=300e9 / 8, num_bytes=256 * MIB)]
    assert odd.counted() == {"round of checks that measured no links": 3}


@given(st.lists(st.one_of(st.sampled_from(output("n0", "n1").splitlines()), st.text(max_size=20)), max_size=30))
def test_any_text_is_read_or_refused(lines: list[str]) -> None:
    try:
        read_nccl_tests("\n".join(lines))
    except DataError:
        return
