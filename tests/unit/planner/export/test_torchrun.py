from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.export import torchrun
from airflow_llmsched.planner.export.gaps import found_gaps
from tests.support.tool_options import planned


@pytest.mark.torch
def test_torchruns_own_parser_reads_the_arguments() -> None:
    from torch.distributed.run import get_args_parser

    text = torchrun.render(planned(ParallelLayout(dp=4, tp=8)))
    read = get_args_parser().parse_args([*shlex.split(text), "train.py"])
    assert (read.nnodes, read.nproc_per_node, read.max_restarts) == ("4", "8", 0)


def test_nodes_with_different_numbers_of_ranks_cannot_be_said() -> None:
    run = replace(planned(ParallelLayout(dp=3)), ranks_on_nodes=(2, 1))
    ((gap, value),) = found_gaps(torchrun.GAPS, run)
    assert (gap.path, value) == ("placement", (2, 1))


def test_the_script_is_told_to_split() -> None:
    assert any("dp=4 tp=8" in note for note in torchrun.notes(planned(ParallelLayout(dp=4, tp=8))))
