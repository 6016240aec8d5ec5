from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.planner.export import slurm
from airflow_llmsched.planner.export.gaps import found_gaps
from tests.support.spans import span
from tests.support.tool_options import planned

TREE = ("switch1", "switch0")
BLOCKS = ("block16", "block")


def run(levels: tuple[str, ...], *, whole: str | None = None, tp: str = "node"):
    found = planned(ParallelLayout(dp=4, tp=16))
    wishes = () if whole is None else (PlacementWish(group=RankGroup.GANG, level=whole, required=True),)
    return replace(
        found,
        spans=(span(RankGroup.TP, level=tp),),
        levels=levels,
        workload=replace(found.workload, placement=wishes),
    )


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        (run(TREE), None),
        (run(TREE, whole="switch0"), "--switches=1"),
        (run(BLOCKS, tp="block"), "--segment=2"),
        (run(BLOCKS, whole="block"), "--segment=8"),
    ],
)
def test_what_keeps_nodes_together_is_said_as_the_cluster_knows_it(asked, option) -> None:
    assert not found_gaps(slurm.GAPS, asked)
    lines = slurm.render(asked).splitlines()
    assert lines[:3] == ["--nodes=8", "--ntasks-per-node=1", "--gpus-per-node=8"]
    assert lines[3:] == ([] if option is None else [option])


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        (run(TREE, tp="switch0"), "2 nodes in a switch0"),
        (run(TREE, whole="switch1"), "8 nodes in a switch1"),
        (run(BLOCKS, whole="block16"), "8 nodes in a block16"),
    ],
)
def test_what_slurm_has_no_option_for_is_an_error_and_no_guess(asked, left) -> None:
    ((gap, value),) = found_gaps(slurm.GAPS, asked)
    assert value == left
    assert "chooses_nodes" in gap.why


def test_nodes_that_are_not_to_be_used_are_excluded() -> None:
    asked = replace(run(TREE), excluded=("n07", "n11"))
    assert slurm.render(asked).splitlines()[3:] == ["--exclude=n07,n11"]


def test_what_is_left_to_the_reader_is_said() -> None:
    (note, *_) = slurm.notes(run(TREE))
    assert "SLURM_NODEID of each is its node rank" in note
