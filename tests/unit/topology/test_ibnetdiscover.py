from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.ibnetdiscover import read_ibnetdiscover
from airflow_llmsched.topology.reading import Machines

# As infiniband-diags prints it, with what newer and older versions add.
TEXT = """\
#
# Topology file: generated on Mon Sep  1 10:00:00 2026
#
# Initiated from node 0c42a10300a1b2c4 port 0c42a10300a1b2c4

vendid=0x2c9
devid=0xd2f2
sysimgguid=0xb8cef60300e5d2a0
switchguid=0xb8cef60300e5d2a0(b8cef60300e5d2a0)
Switch\t40 "S-b8cef60300e5d2a0"\t\t# "MF0;leaf-1:MQM8790/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-0c42a10300a1b2c4"[1](c42a10300a1b2c4) \t\t# "node01 mlx5_0" lid 5 4xHDR
[2]\t"H-0c42a10300a1b2c8"[1](c42a10300a1b2c8) \t\t# "node02 HCA-1" lid 6 2xHDR
[41]\t"H-b8cef60300e5d2a8"[1](b8cef60300e5d2a8) \t\t# "Mellanox Technologies Aggregation Node" lid 9 4xHDR
[21][ext 5]\t"S-b8cef60300e5d2b0"[1]\t\t# "MF0;spine-1:MQM8790/U1" lid 2 4xHDR

vendid=0x2c9
devid=0x101b
sysimgguid=0xc42a10300a1b2c4
caguid=0xc42a10300a1b2c4
Ca\t1 "H-0c42a10300a1b2c4"\t\t# "node01 mlx5_0"
[1](c42a10300a1b2c4) \t"S-b8cef60300e5d2a0"[1]\t\t# lid 5 lmc 0 "MF0;leaf-1:MQM8790/U1" lid 1 4xHDR
"""


def test_hosts_are_read_off_the_cards_descriptions() -> None:
    found = read_ibnetdiscover(TEXT, machines=Machines(shape="dgx-a100"))
    assert [(node.id, node.path, node.num_slots) for node in found.tree.nodes] == [
        ("node01", ("MF0;leaf-1:MQM8790/U1",), 8),
        ("node02", ("MF0;leaf-1:MQM8790/U1",), 8),
    ]
    assert found.warnings == {"host with less bandwidth than the others": 1}


def test_cards_that_name_no_host_are_a_host_for_each_box() -> None:
    found = read_ibnetdiscover(TEXT.replace("node02 HCA-1", "MT4123 ConnectX6   Mellanox Technologies"))
    assert [node.id for node in found.tree.nodes] == ["0c42a10300a1b2c8", "node01"]
    assert found.warnings["card that does not name its host"] == 1


def test_routers_and_strange_lines_are_counted() -> None:
    text = (
        TEXT + 'Rt\t2 "R-0000000000000077"\t\t# "router"\n[1](77) \t"S-b8cef60300e5d2a0"[9]\t\t# lid 1\nwhat is this\n'
    )
    assert {"router, which is passed over", "line that is not understood"} <= set(read_ibnetdiscover(text).warnings)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            ('"S-b8cef60300e5d2a0"[1]', '"S-b8cef60300e5d2a0"[2]'),
            r"line 21: port 0c4.*\[1\] leads to b8.*\[2\], and to b8.*\[1\] by line 11",
        ),
        (('Ca\t1 "H-', 'Ca\t1 "S-'), "line 20: calls Ca what is S-"),
        (
            ('[1](c42a10300a1b2c4) \t"S-b8cef60300e5d2a0"', '[1](c42a10300a1b2c4) \t"H-b8cef60300e5d2a0"'),
            "a switch and a card",
        ),
        (('Switch\t40 "S-b8cef60300e5d2a0"', "#"), "line 11: tells a port of no device"),
        (("node02 HCA-1", "node01 mlx5_0"), "are both called 'node01 mlx5_0'. Two hosts have one name"),
        (('"S-b8cef60300e5d2a0"[1]', '"H-0c42a10300a1b2c4"[1]'), "is joined to itself"),
    ],
)
def test_contradictions_are_refused_with_the_line(change: tuple[str, str], why: str) -> None:
    assert change[0] in TEXT
    with pytest.raises(DataError, match=why):
        read_ibnetdiscover(TEXT.replace(*change))


def test_a_text_without_a_fabric_is_refused() -> None:
    with pytest.raises(DataError, match="has no host on a switch"):
        read_ibnetdiscover("")


@given(st.lists(st.one_of(st.sampled_from(TEXT.splitlines()), st.text(max_size=30)), max_size=20).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        first = read_ibnetdiscover(text)
    except DataError:
        return
    assert read_ibnetdiscover(text) == first
