from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import DataError
from airflow_llmsched.topology import reading
from airflow_llmsched.topology.reading import Machines, Network
from airflow_llmsched.topology.slurm import network_of, read_slurm

# As scontrol of 22.05 prints it.
TOLD_TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
"""
CONF_TREE = """\
# made by hand
switchname=leaf1 nodes=n[1-2]   # first rack
SwitchName=leaf2 \\
  Nodes=n3,n4
SwitchName=spine Switches=leaf[1-2] LinkSpeed=100
"""
YAML = """\
---
- topology: tree1
  tree:
    switches:
      - switch: spine
        children: leaf[1-2]
      - switch: leaf1
        nodes: n[1-2]
      - switch: leaf2
        nodes: n[3-4]
- topology: blocks1
  cluster_default: true
  block:
    block_sizes:
      - 1
      - 2
    blocks:
      - block: b1
        nodes: n1
      - block: b2
        nodes: n2
      - block: b3
        nodes: n3
- topology: flat1
  flat: true
- topology: torus1
  torus3d: {}
"""
# Form as in a report of a GB300 cluster (24.11 and later).
TOLD_BLOCKS = """\
BlockName=g_b0 BlockIndex=0 Nodes=10.140.71.103,10.140.88.115 BlockSize=2
BlockName=g_b1 BlockIndex=1 Nodes=10.140.79.152,10.140.93.120 BlockSize=2
AggregatedBlock=g_b[0-1] BlockIndex=2 Nodes=10.140.71.103,10.140.79.152,10.140.88.115,10.140.93.120 BlockSize=4
"""
TREE = Network(
    levels=("switch1", "switch0"),
    paths={"n1": ("spine", "leaf1"), "n2": ("spine", "leaf1"), "n3": ("spine", "leaf2"), "n4": ("spine", "leaf2")},
)


@pytest.mark.parametrize("text", [TOLD_TREE, CONF_TREE], ids=["scontrol", "topology.conf"])
def test_a_tree_is_read_from_either_form(text: str) -> None:
    assert network_of(text) == TREE


def test_a_topology_of_a_yaml_file_is_taken_by_name_or_as_the_default() -> None:
    assert network_of(YAML, name="tree1") == TREE
    assert network_of(YAML).levels == ("block2", "block")
    assert network_of(YAML, name="flat1") == Network()


@pytest.mark.parametrize("name", ["torus1", "nobody"])
def test_a_topology_that_is_not_there_or_not_understood_is_refused_by_name(name: str) -> None:
    with pytest.raises(DataError, match=name):
        network_of(YAML, name=name)


def test_blocks_are_read_as_scontrol_tells_them() -> None:
    network = network_of(TOLD_BLOCKS)
    assert network.levels == ("block4", "block")
    assert network.path_of("10.140.79.152") == ("g_b[0-1]", "g_b1")


def test_blocks_are_joined_in_their_order_by_the_sizes() -> None:
    conf = "".join(f"BlockName=b{index} Nodes=n[{4 * index + 1}-{4 * index + 4}]\n" for index in range(5))
    network = network_of(conf + "BlockSizes=4,8,16")
    assert network.levels == ("block16", "block8", "block")
    assert [network.path_of(f"n{4 * index + 1}") for index in range(5)] == [
        ("b0", "b0", "b0"),
        ("b0", "b0", "b1"),
        ("b0", "b2", "b2"),
        ("b0", "b2", "b3"),
        ("b4", "b4", "b4"),
    ]
    assert network_of("BlockName=b1 Nodes=n[1-2]").path_of("n2") == ("b1",)


@pytest.mark.parametrize("text", ["", "\n# nothing\n"])
def test_without_a_topology_every_node_is_on_its_own(text: str) -> None:
    network = network_of(text)
    assert network.levels == ("host",)
    assert network.path_of("n7") == ("n7",)


def test_a_node_that_no_switch_has_is_a_domain_of_its_own() -> None:
    assert network_of(TOLD_TREE).path_of("login") == ("login", "login")


def test_leaves_that_hang_higher_keep_their_own_name_below() -> None:
    conf = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=m Switches=a\nSwitchName=top Switches=m,b\n"
    network = network_of(conf)
    assert network.levels == ("switch2", "switch1", "switch0")
    assert network.path_of("n1") == ("top", "m", "a")
    assert network.path_of("n2") == ("top", "b", "b")


def test_trees_without_a_common_root_stay_apart() -> None:
    conf = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=t1 Switches=a\nSwitchName=t2 Switches=b\n"
    assert [network_of(conf).path_of(node) for node in ("n1", "n2")] == [("t1", "a"), ("t2", "b")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", r"line 2 .*'a' is there already: line 1"),
        ("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n2", r"line 2 .*node 'n2' is elsewhere already: line 1"),
        ("SwitchName=a Switches=b", r"line 1 .*no switch 'b'"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a", r"line 3 .*below another already"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "hangs below itself"),
        ("SwitchName=a Nodes=n[1-\n", r"line 1 .*never ends"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2] Switches=a", r"line 2 .*not those of its switches: n2"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2", "one kind"),
        ("BlockName=b Nodes=n1\nBlockName=c Nodes=n1", r"line 2 .*elsewhere already"),
        ("BlockName=b Nodes=n1\nBlockSizes=4,6", "no multiple of 4"),
        ("BlockName=b Nodes=n1\nBlockSizes=4,4", "no multiple of 4"),
        ("BlockName=b Nodes=n1\nBlockSizes=x", r"line 2 .*no number"),
        (TOLD_BLOCKS.replace("10.140.93.120 BlockSize=2", "x BlockSize=2"), r"line 3 .*none of the blocks"),
        ("RingName=r Nodes=n[1-4]", "neither a switch nor a block"),
        ("- topology: [", "cannot be read"),
        ("just words", "list of topologies"),
        ("- topology: t\n  tree: {switches: [{nodes: n1}]}", "not of its form"),
        ("- topology: t\n  tree: {switches: [{switch: s, nodes: [n1]}]}", "must be a text"),
    ],
)
def test_contradictions_are_refused_with_the_line(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        network_of(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- topology: &a t\n  flat: *a\n", "line 2.*alias"),
        ("[" * 40, "nested deeper"),
        ("- topology: t\n  tree: {switches: 2001-99-99}", "cannot be read"),
        ("[]", "no topology at all"),
    ],
)
def test_a_yaml_file_that_could_grow_or_is_no_such_file_is_refused(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        network_of(text)


def test_a_topology_beyond_all_bounds_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_TEXT", 100)
    with pytest.raises(DataError, match="characters long"):
        network_of(" " * 101)


def test_a_tree_is_made_of_the_nodes_that_the_file_names() -> None:
    found = read_slurm(CONF_TREE, machines=Machines(shape="dgx-h100"))
    assert [(node.id, node.path, node.num_free_slots) for node in found.tree.nodes] == [
        ("n1", ("spine", "leaf1"), 8),
        ("n2", ("spine", "leaf1"), 8),
        ("n3", ("spine", "leaf2"), 8),
        ("n4", ("spine", "leaf2"), 8),
    ]
    assert found.warnings == {}


def test_what_is_odd_is_counted() -> None:
    found = read_slurm("SwitchName=a Nodes=n1 Colour=red\nSwitchName=b\nSwitchName=t Switches=a,b\n")
    assert found.warnings == {"switch without nodes": 1, "unknown key": 1}
    assert read_slurm("BlockName=a Nodes=n1\nBlockName=b\n").warnings == {"block without nodes": 1}


LINES = st.sampled_from([*CONF_TREE.splitlines(), *TOLD_BLOCKS.splitlines(), *YAML.splitlines(), "BlockSizes=1,2"])


@given(st.lists(st.one_of(LINES, st.text(max_size=20)), max_size=12).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        first = read_slurm(text)
    except DataError:
        return
    assert read_slurm(text) == first


@given(st.permutations(TOLD_TREE.splitlines()))
def test_the_order_of_lines_does_not_matter(lines: list[str]) -> None:
    assert read_slurm("\n".join(lines)) == read_slurm(TOLD_TREE)
