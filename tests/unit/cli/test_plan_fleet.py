from __future__ import annotations

import pytest
import typer

from airflow_llmsched.cli.plan_fleet import Fleet, read_fleet
from airflow_llmsched.errors import SpecError


def fleet(
    gpus: str | None = None, *, nodes: int | None = None, slots: int | None = None, shape: str | None = None
) -> Fleet:
    return read_fleet(gpus, nodes=nodes, slots=slots, shape=shape, usd_per_hour=None)


@pytest.mark.parametrize(
    ("gpus", "shape", "nodes", "slots"),
    [("64xp5.48xlarge", None, 8, 8), ("4xp5.48xlarge", None, 1, 4), ("16", "p5.48xlarge", 2, 8), ("3", None, 3, 1)],
)  # fmt: skip
def test_accelerators_fill_nodes_of_their_shape(gpus: str, shape: str | None, nodes: int, slots: int) -> None:
    found = fleet(gpus, shape=shape)
    assert (found.num_nodes, found.num_slots) == (nodes, slots)


def test_without_accelerators_the_nodes_are_counted() -> None:
    found = fleet(nodes=3, shape="p5.48xlarge")
    assert (found.shape.name, found.num_nodes, found.num_slots) == ("p5.48xlarge", 3, 8)
    assert fleet().num_nodes == 1


def test_a_number_between_whole_nodes_names_those_beside_it() -> None:
    with pytest.raises(SpecError, match="8 accelerators: 56 and 64 fill whole ones"):
        fleet("63xp5.48xlarge")


@pytest.mark.parametrize("gpus", ["", "x", "0", "-8", "8.5", "xp5.48xlarge", "eight", "9" * 5000])
def test_what_is_no_number_of_accelerators_is_a_wrong_command_line(gpus: str) -> None:
    with pytest.raises(typer.BadParameter):
        fleet(gpus)


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"gpus": "99999999992xp5.48xlarge"}, "--gpus = '99999999992xp5.48xlarge': is beyond the 131,072 nodes"),
        ({"nodes": 131_073, "shape": "p5.48xlarge"}, "--nodes = 131073: is beyond the 131,072 nodes"),
        ({"nodes": 1, "slots": 4_097, "shape": "p5.48xlarge"}, "--slots = 4097: is beyond the 4,096"),
    ],
)
def test_fleets_beyond_any_that_exist_are_refused_at_once(asked: dict, option: str) -> None:
    with pytest.raises(SpecError, match=option):
        fleet(**asked)


def test_the_two_ways_of_saying_it_exclude_each_other() -> None:
    for others in ({"nodes": 2}, {"slots": 2}, {"shape": "p5.48xlarge"}):
        with pytest.raises(typer.BadParameter, match="give one of them"):
            fleet("64xp5.48xlarge", **others)


def test_switches_add_up_only_where_they_can() -> None:
    told = read_fleet("16xdgx-h100", nodes=None, slots=None, shape=None, usd_per_hour=None, sharp=True)
    assert told.sharp
    with pytest.raises(SpecError, match="joined by efa2, whose switches cannot add up"):
        read_fleet("16xp5.48xlarge", nodes=None, slots=None, shape=None, usd_per_hour=None, sharp=True)


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(SpecError, match="no such node shape"):
        fleet("8xp9")
