from __future__ import annotations

import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PipelineSchedule
from airflow_llmsched.errors import SpecError, SpecErrors
from airflow_llmsched.planner.export.tools import TOOLS, able_tools, find_tool, write_out
from tests.support.models import QWEN3_30B_A3B
from tests.support.tool_options import planned


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_can_write_out_plain_replicas_or_plain_shards(name: str) -> None:
    run = planned(ParallelLayout(dp=8, zero_stage=3))
    written = write_out(name, run)
    assert written.text.endswith("\n")
    assert written.file_name == TOOLS[name].file_name
    assert name in able_tools(run)


def test_an_error_names_what_cannot_be_said_and_who_can() -> None:
    run = planned(ParallelLayout(dp=8, tp=4, ep=8, expert_tp=2, zero_stage=3), QWEN3_30B_A3B)
    with pytest.raises(SpecError) as caught:
        write_out("torchtitan", run)
    assert caught.value.path == "layout.expert_tp"
    assert caught.value.value == 2
    assert caught.value.hint.endswith("these can write this plan out: megatron-lm, megatron-bridge")


def test_all_obstacles_are_named_at_once() -> None:
    run = planned(ParallelLayout(dp=2, pp=2, cp=2))
    with pytest.raises(SpecErrors) as caught:
        write_out("deepspeed", run)
    assert [error.path for error in caught.value.errors] == ["layout.pp", "layout.cp"]


def test_a_launcher_is_no_way_out_of_a_layout_that_no_tool_can_express() -> None:
    run = planned(ParallelLayout(dp=2, pp=4, schedule=PipelineSchedule.ZERO_BUBBLE))
    assert able_tools(run)
    assert not any(TOOLS[name].splits for name in able_tools(run))
    with pytest.raises(SpecError, match="no tool here can write this plan out"):
        write_out("megatron-lm", run)


def test_an_unknown_tool_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match="known: megatron-lm, megatron-bridge, torchtitan, deepspeed, accelerate"):
        find_tool("nemo")
