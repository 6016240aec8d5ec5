from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.topology import NodeTerms
from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.reading import Machines
from airflow_llmsched.topology.table import read_table

# The form of Alibaba's Lingjun topology: hosts are hashes, switches of one name stand in several pods.
LINGJUN = """\
ip,DSW,PSW,ASW
0c9d9de1,G6,P10,S14
525c32e3,G6,P12,S2
99becf83,G6,P10,S34
cda65f22,G6,P12,S14
"""


def test_columns_behind_the_first_are_levels_outermost_first() -> None:
    found = read_table(LINGJUN, machines=Machines(shape="dgx-h100"))
    assert found.tree.levels == ("DSW", "PSW", "ASW")
    assert {node.id: node.path for node in found.tree.nodes}["0c9d9de1"] == ("G6", "P10", "S14")
    assert len(found.tree.domains("ASW")) == 4, "S14 of P10 and of P12 are two"
    assert {node.num_slots for node in found.tree.nodes} == {8}
    assert found.warnings == {}


WITH_FACTS = """\
node,rack,shape,slots,free,usd_per_hour,failures_per_hour
n1,r1,dgx-h100,,4,12.5,0.01
n2,r1,,2,,,
n3,r2,own,3,0,0,
"""


def test_columns_of_certain_names_say_what_nodes_are() -> None:
    tree = read_table(WITH_FACTS, machines=Machines(shape="dgx-a100")).tree
    assert tree.levels == ("rack",)
    found = {node.id: (node.shape, node.num_slots, node.num_free_slots, node.terms) for node in tree.nodes}
    assert found == {
        "n1": ("dgx-h100", 8, 4, NodeTerms(usd_per_hour=12.5, failures_per_hour=0.01)),
        "n2": ("dgx-a100", 2, 2, NodeTerms()),
        "n3": ("own", 3, 0, NodeTerms(usd_per_hour=0.0)),
    }


def test_what_columns_say_goes_before_what_is_said_of_all_nodes() -> None:
    tree = read_table("node,rack,shape\nn1,r,dgx-h100\nn2,r,\n", machines=Machines(shape="host", num_slots=4)).tree
    assert [(node.shape, node.num_slots) for node in tree.nodes] == [("dgx-h100", 4), ("host", 4)]


def test_names_may_hold_anything() -> None:
    [node] = read_table('\ufeffnode,rack\n"a,b\n[c]"," ../x "\n').tree.nodes
    assert (node.id, node.path) == ("a,b\n[c]", ("../x",))


def test_what_is_odd_is_counted() -> None:
    found = read_table("n,a,b\nn1,a1,\n\nn1,a1,\nn2,,\n")
    assert {node.id: node.path for node in found.tree.nodes} == {"n1": ("a1", "n1"), "n2": ("n2", "n2")}
    assert found.warnings == {
        "cell that is empty: the node is alone there": 4,
        "node that is listed again, the same": 1,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "table: lists no node"),
        ("n,a\n", "lists no node"),
        ("n\nx\n", "line 1: must name 2 to 32 columns"),
        ("n,a,a\nx,1,2\n", "line 1: must name"),
        ("n,a\nx,1,2\n", "line 2: has 3 cells, and the first line has 2"),
        ("n,a\n,1\n", "line 2: names no node"),
        ("n,a\nx,1\nx,2\n", "line 3: node 'x' is elsewhere on line 2. Keep one"),
        ('n,a\nx,"1\n', "is no CSV"),
        ("n,slots\nx,1\n", "line 1: must name"),
        ("n,a,slots\nx,1,0\n", "line 2: slots is '0'. Write a whole number of at least 1"),
        ("n,a,slots\nx,1,two\n", "line 2: slots is 'two'"),
        ("n,a,slots,free\nx,1,4,5\n", "line 2: has 5 free slots of 4"),
        ("n,a,usd_per_hour\nx,1,-3\n", "line 2: usd_per_hour is '-3'. Write a number of at least 0"),
        ("n,a,failures_per_hour\nx,1,nan\n", "line 2: failures_per_hour is 'nan'"),
        ("n,a,slots\nx,1,4\nx,1,8\n", "line 3: node 'x' is something else on line 2"),
    ],
)
def test_contradictions_are_refused_with_the_line(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_table(text)


@given(st.permutations(LINGJUN.splitlines()[1:]))
def test_the_order_of_rows_does_not_matter(rows: list[str]) -> None:
    assert read_table("\n".join(["ip,DSW,PSW,ASW", *rows])) == read_table(LINGJUN)


@given(st.text(alphabet='ab,"\n\r\0 ', max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        first = read_table(text)
    except DataError:
        return
    assert read_table(text) == first
