from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llmsched.cli.topology_sources import Asked, Format, read_source, read_tree
from airflow_llmsched.codec import to_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.preflight import Check, CheckOutcome, NodeChecks, PreflightRecord, PreflightRound
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.specs import topology_reference
from airflow_llmsched.topology.nvidia_smi import NodeReading
from airflow_llmsched.topology.reading import Machines
from tests.support.fabrics import as_ibnetdiscover, as_lst, as_net_dump, tree_fabric
from tests.support.kube_lists import exact, hypernode, kube_list, kube_node

FABRIC = tree_fabric(num_pods=1, num_leaves=2, num_hosts=4)
KUBE = kube_list(kube_node("n1", labels={"topology.kubernetes.io/zone": "z"}))
HYPER = kube_list(kube_node("n1"), hypernode("h", 1, exact("Node", "n1")))
AWS = {"Instances": [{"InstanceId": "i-1", "NetworkNodes": ["a", "b", "c"], "AvailabilityZone": "z"}]}
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t0-3\n"

SOURCES = {
    Format.YAML: (topology_reference.example(), ("hall", "block", "rack")),
    Format.SLURM: ("# ours\nSwitchName=a Nodes=n[1-2]\n", ("switch0",)),
    Format.KUBERNETES: (json.dumps(KUBE), ("topology.kubernetes.io/zone",)),
    Format.HYPERNODES: (json.dumps(HYPER), ("tier1",)),
    Format.AWS: (json.dumps(AWS), ("zone", "network-1", "network-2", "network-3")),
    Format.IBNETDISCOVER: (as_ibnetdiscover(FABRIC), ("spine", "leaf")),
    Format.IBDIAGNET: (as_lst(FABRIC), ("spine", "leaf")),
    Format.CSV: ("ip,DSW,PSW\nx,G6,P1\n", ("DSW", "PSW")),
}
MORE = {
    "net_dump": (as_net_dump(FABRIC), ("spine", "leaf")),
    "topology.yaml": ("---\n- topology: t\n  tree:\n    switches:\n      - {switch: s, nodes: n1}\n", ("switch0",)),
    "indented": ("\n".join(f"   {line}" for line in as_ibnetdiscover(FABRIC).splitlines()), ("spine", "leaf")),
    "blocks": ("BlockName=b Nodes=n1\nBlockSizes=1\n", ("block",)),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.mark.parametrize("told", [*SOURCES.values(), *MORE.values()], ids=[*SOURCES, *MORE])
def test_a_file_says_by_itself_what_it_is(told: tuple[str, tuple[str, ...]], file: Path) -> None:
    file.write_text(told[0])
    assert read_tree(file, Asked()).tree.levels == told[1]


@pytest.mark.parametrize("format_", SOURCES)
def test_a_file_is_read_as_what_it_is_said_to_be(format_: Format, file: Path) -> None:
    file.write_text(SOURCES[format_][0])
    assert read_tree(file, Asked(format=format_)).tree.levels == SOURCES[format_][1]


def test_what_was_printed_as_json_is_a_source(file: Path) -> None:
    file.write_text(SOURCES[Format.YAML][0])
    tree = read_tree(file, Asked()).tree
    file.write_bytes(to_json(tree))
    assert read_tree(file, Asked()).tree == tree
    file.write_text('{"levels": ["a"], "nodes": [{"id": 3}]}')
    with pytest.raises(DataError, match="Write it anew with llmsched topology show --json"):
        read_tree(file, Asked())


def test_the_matrix_of_one_node_is_no_fleet(file: Path) -> None:
    file.write_text(MATRIX)
    assert isinstance(read_source(file, Asked()), NodeReading)
    with pytest.raises(SpecError, match="is of one node"):
        read_tree(file, Asked())


def test_nodes_that_are_only_named_are_what_is_said_of_them(file: Path) -> None:
    file.write_text(SOURCES[Format.CSV][0])
    [node] = read_tree(file, Asked(machines=Machines(shape="dgx-h100"))).tree.nodes
    assert (node.shape, node.num_slots) == ("dgx-h100", 8)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("what is this", "Say which: --format yaml, slurm"),
        ("[1, 2]", "Say which"),
        ('{"some": "thing"}', "Say which"),
        (" \n", "is empty"),
    ],
)
def test_what_looks_like_nothing_known_is_asked_for(text: str, why: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(SpecError, match=why):
        read_tree(file, Asked())


def test_errors_name_the_file(file: Path) -> None:
    with pytest.raises(SpecError, match="source: cannot be read: No such file"):
        read_tree(file, Asked())
    file.write_text("SwitchName=a Switches=b\n")
    with pytest.raises(DataError, match=r"source: topology: line 1 .*no switch 'b'"):
        read_tree(file, Asked())


def test_bytes_that_are_no_text_do_no_harm(file: Path) -> None:
    file.write_bytes(b"ip,rack\nn\xff1,r\n")
    assert [node.id for node in read_tree(file, Asked()).tree.nodes] == ["n\N{REPLACEMENT CHARACTER}1"]


def test_measured_links_override_those_of_the_source(file: Path, tmp_path: Path) -> None:
    file.write_text("ip,rack\nn1,r\nn2,r\n")
    checks = [
        NodeChecks(
            node=NodeId(name),
            checks=(
                Check(name="collective", outcome=CheckOutcome.OK, detail=f"{2**28} bytes over 2 ranks", value=9e9),
            ),
        )
        for name in ("n1", "n2")
    ]
    record = PreflightRecord(generation=1, rounds=(PreflightRound(nodes=tuple(checks)),))
    (tmp_path / "preflight.json").write_bytes(to_json(record))
    ranks = "".join(f"# Rank {rank} Group 0 Pid 7 on n{rank + 1} device 0 [0000] H100\n" for rank in range(2))
    row = f"{2**30} {2**28} float sum -1 1 1 7.5 0 1 1 8.0 0\n"
    (tmp_path / "nccl.txt").write_text(f"# Collective test starting: all_reduce_perf\n{ranks}{row}")
    for name, rate in (("preflight.json", 9e9), ("nccl.txt", 8e9)):
        [link] = read_tree(file, Asked(measured=(tmp_path / name,))).tree.network
        assert (link.level, link.bandwidth_bytes_per_s, link.is_measured) == ("rack", rate, True)
    (tmp_path / "odd").write_text("{}")
    with pytest.raises(SpecError, match=r"--measured = '.*odd': is no preflight\.json of a run"):
        read_tree(file, Asked(measured=(tmp_path / "odd",)))
    (tmp_path / "odd").write_text("nothing")
    with pytest.raises(SpecError, match=r"--measured = '.*odd': nccl-tests"):
        read_tree(file, Asked(measured=(tmp_path / "odd",)))


def test_nodes_of_a_cluster_hang_where_the_fabric_says(file: Path, tmp_path: Path) -> None:
    file.write_text(json.dumps(kube_list(*(kube_node(f"p0n0{number}.site") for number in range(3)))))
    (tmp_path / "fabric.txt").write_text(as_ibnetdiscover(FABRIC))
    found = read_tree(file, Asked(network=tmp_path / "fabric.txt"))
    assert found.tree.levels == ("spine", "leaf")
    assert {node.id: node.path[1] for node in found.tree.nodes} == {
        "p0n00.site": "pod0-leaf0",
        "p0n01.site": "pod0-leaf0",
        "p0n02.site": "pod0-leaf1",
    }
    assert {link.bandwidth_bytes_per_s for link in found.tree.network} == {25e9 / 8}, "eight slots on a card of HDR"
    assert found.warnings["host of the network that is none of the nodes"] == 1
