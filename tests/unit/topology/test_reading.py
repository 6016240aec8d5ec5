from __future__ import annotations

import pytest

from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.errors import DataError
from airflow_llmsched.topology import reading
from airflow_llmsched.topology.reading import (
    Machines,
    Network,
    Oddities,
    bounded,
    hung,
    quoted,
    refusal,
    short_name,
    tree_of,
)

NETWORK = Network(
    levels=("block", "rack"),
    paths={"n2": ("b1", "r2"), "n1": ("b1", "r1"), "n0": ("b1", "r2")},
    scale_up_level="rack",
    links=(NetworkLevel(level="block", bandwidth_bytes_per_s=5e10),),
)


def test_nodes_hang_in_the_order_of_their_paths_with_the_slots_of_their_shape() -> None:
    tree = hung(NETWORK, Machines(shape="dgx-h100"))
    assert [node.id for node in tree.nodes] == ["n1", "n0", "n2"]
    assert {(node.shape, node.num_slots, node.num_free_slots) for node in tree.nodes} == {("dgx-h100", 8, 8)}
    assert (tree.levels, tree.scale_up_level, tree.network) == (("block", "rack"), "rack", NETWORK.links)


def test_machines_of_which_nothing_is_known_have_one_slot_unless_somebody_says_more() -> None:
    assert (Machines().slots, Machines(shape="own").slots, Machines(shape="own", num_slots=4).slots) == (1, 1, 4)
    assert Machines(shape="dgx-h100", num_slots=2).slots == 2
    with pytest.raises(ValueError, match="at least one slot"):
        Machines(num_slots=0)


def test_a_node_without_a_path_hangs_on_its_own() -> None:
    assert NETWORK.path_of("stray") == ("stray", "stray")


def test_oddities_are_counted_by_what_they_are() -> None:
    odd = Oddities()
    odd.note("b")
    odd.note("a", 3)
    odd.note("b")
    odd.note("c", 0)
    assert odd.counted() == {"a": 3, "b": 2}


def test_a_refusal_says_where_what_and_what_next() -> None:
    assert str(refusal("file: line 3", "is odd", hint="Mend it")) == "file: line 3: is odd. Mend it"


def test_what_is_longer_than_any_source_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_TEXT", 10)
    assert bounded("0123456789", source="list") == "0123456789"
    with pytest.raises(DataError, match="list: is 11 characters long"):
        bounded("0123456789x", source="list")
    with pytest.raises(DataError, match="has 5000 slots, and at most 4096 are read"):
        hung(NETWORK, Machines(num_slots=5000))
    monkeypatch.setattr(reading, "MAX_NODES", 2)
    with pytest.raises(DataError, match="3 nodes"):
        tree_of(NETWORK, list(hung(Network(), Machines()).nodes) * 3 or [None] * 3)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "short"),
    [("n1.site.edu", "n1"), ("n1", "n1"), ("10.0.0.1", "10.0.0.1"), ("fe80::1.2", "fe80::1.2"), ("", "")],
)
def test_a_host_is_known_without_its_domain(name: str, short: str) -> None:
    assert short_name(name) == short


def test_names_are_cut_in_messages() -> None:
    assert quoted("a\nb") == r"'a\nb'"
    assert len(quoted("x" * 1000)) < 120
