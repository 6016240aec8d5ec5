from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import Offload, ParallelLayout
from airflow_llmsched.planner.export.gaps import Gap, above_one, found_gaps, gap_error, one_of
from airflow_llmsched.planner.export.tools import able_tools
from tests.support.tool_options import planned

PP = Gap(path="layout.pp", why="no stages", used=above_one("pp"))


@pytest.mark.parametrize(("pp", "found"), [(1, []), (4, [(PP, 4)])])
def test_a_degree_of_one_needs_nothing(pp: int, found: list[object]) -> None:
    assert found_gaps([PP], planned(ParallelLayout(dp=8, pp=pp))) == found


def test_only_the_values_named_stand_in_the_way() -> None:
    used = one_of(Offload.OPTIMIZER_NVME, value=lambda run: run.layout.offload)
    assert used(planned(ParallelLayout(dp=8))) is None
    assert used(planned(ParallelLayout(dp=8, offload=Offload.OPTIMIZER_NVME))) is Offload.OPTIMIZER_NVME


def test_the_error_names_what_and_who_can() -> None:
    assert str(gap_error(PP, 4, able=["a", "b"])) == "layout.pp = 4: no stages; these can write this plan out: a, b"
    assert "no tool here can" in str(gap_error(PP, 4, able=[]))


@pytest.mark.parametrize(
    ("vendor", "is_out"), [("nvidia", False), ("amd", False), ("", False), ("google", True), ("aws", True)]
)
def test_trainers_for_gpus_are_not_told_how_to_train_on_tpus_or_trainium(vendor: str, is_out: bool) -> None:
    run = replace(planned(ParallelLayout(dp=8)), accelerator_vendor=vendor)
    able = set(able_tools(run))
    assert ("megatron-lm" not in able) is is_out
    assert ("torchtitan" not in able) is is_out
    assert {"torchrun", "ranks"} <= able
