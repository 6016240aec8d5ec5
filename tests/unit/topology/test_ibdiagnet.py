from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.ibdiagnet import read_ibdiagnet
from airflow_llmsched.topology.ibnetdiscover import read_ibnetdiscover
from airflow_llmsched.topology.reading import Machines
from tests.support.fabrics import as_ibnetdiscover, as_lst, as_net_dump, tree_fabric

FABRIC = tree_fabric(num_pods=2, num_leaves=4, num_hosts=8, rails=2)
DOWN = "port or cable that is not active"
MACHINES = Machines(shape="dgx-h100")


def test_all_forms_tell_the_same_tree() -> None:
    told = read_ibnetdiscover(as_ibnetdiscover(FABRIC), machines=MACHINES)
    listed = read_ibdiagnet(as_lst(FABRIC), machines=MACHINES)
    dumped = read_ibdiagnet(as_net_dump(FABRIC), machines=MACHINES)
    assert told.tree == listed.tree == dumped.tree
    assert (listed.warnings, dumped.warnings) == ({}, {DOWN: len(FABRIC.switches)})
    assert told.tree.levels == ("core", "spine", "leaf")


# As in a published log of a fabric of 2014, which leaves descriptions out.
BARE = (
    "{ CA Ports:02 SystemGUID:0002c90300165e63 NodeGUID:0002c90300165e60 PortGUID:0002c90300165e61 VenID:000002c9 "
    "DevID:1003 Rev:00000000  LID:0005 PN:01 } { SW Ports:24 SystemGUID:0002c90300688830 NodeGUID:0002c90300688830 "
    "PortGUID:0002c90300688830 VenID:000002c9 DevID:c738 Rev:000000a1  LID:0002 PN:14 } PHY=4x LOG=ACT SPD=2.5\n"
)


def test_cards_without_a_description_are_hosts_by_their_box() -> None:
    found = read_ibdiagnet(BARE)
    assert [(node.id, node.path) for node in found.tree.nodes] == [("0002c90300165e63", ("0002c90300688830",))]
    assert found.tree.network[0].bandwidth_bytes_per_s == 1e9
    assert found.warnings == {"card that does not name its host": 1}


def test_cables_that_are_down_and_strange_lines_are_counted() -> None:
    text = (
        BARE
        + BARE.replace("LOG=ACT", "LOG=DWN").replace("PN:01", "PN:02")
        + "what\n"
        + BARE.replace("SPD=2.5", "SPD=?")
    )
    assert read_ibdiagnet(text).warnings == {
        DOWN: 1,
        "card that does not name its host": 1,
        "line that is not understood": 1,
        "port of which no rate is told": 1,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            BARE + BARE.replace("PN:01", "PN:02"),
            r"line 2: port 0002c90300688830\[20\] leads to .*\[2\], and to .*\[1\] by line 1",
        ),
        (BARE + BARE.replace("{ CA", "{ SW"), "line 2: 0002c90300165e60 is a switch and a card"),
        (as_net_dump(FABRIC).replace("Neighbor Guid", "Somebody"), "line 4: names no column Neighbor Guid"),
        (as_net_dump(FABRIC).replace("NO-RTR : 0x", "NO-RTR : ", 1), "a port that is active leads to"),
        ("", "has no host"),
    ],
)
def test_contradictions_are_refused_with_the_line(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_ibdiagnet(text)


@given(st.randoms(use_true_random=False))
def test_the_order_of_cables_does_not_matter(chance: random.Random) -> None:
    lines = as_lst(FABRIC).splitlines()
    chance.shuffle(lines)
    assert read_ibdiagnet("\n".join(lines)) == read_ibdiagnet(as_lst(FABRIC))


LINES = [*as_lst(FABRIC).splitlines()[:6], *as_net_dump(FABRIC).splitlines()[:20]]


@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=30)), max_size=16).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        first = read_ibdiagnet(text)
    except DataError:
        return
    assert read_ibdiagnet(text) == first
