from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.workload import OptimizerSpec, PrecisionSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.export.filter import expressible_by
from airflow_llmsched.planner.export.gaps import found_gaps
from airflow_llmsched.planner.export.planned import PlannedRun, planned_run
from airflow_llmsched.planner.export.tools import TOOLS, able_tools
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, workload
from tests.support.models import GPT2, LLAMA31_8B, QWEN3_30B_A3B

RUN = workload(LLAMA31_8B, num_sequences=64)


def random_layouts(number: int, *, seed: int) -> list[ParallelLayout]:
    chance = np.random.default_rng(seed)

    def pick(*values: object) -> object:
        return values[chance.integers(len(values))]

    found = []
    for _ in range(number):
        dp, tp, cp = int(pick(4, 8, 16)), int(pick(1, 2, 4)), int(pick(1, 1, 2))
        recompute = pick(*Recompute)
        modules = tuple(each for each in RecomputeModule if chance.random() < 0.4)
        found.append(
            ParallelLayout(
                dp=dp, tp=tp, cp=cp, pp=int(pick(1, 1, 2)), vp=int(pick(1, 2)), ep=int(pick(1, 1, 2, 4)),
                expert_tp=int(pick(1, 2, tp)), zero_stage=int(pick(0, 1, 2, 3)), shard_size=int(pick(1, 2, 4, dp * cp)),
                recompute=recompute, recompute_modules=modules if recompute is Recompute.MODULES else (),
                schedule=pick(*PipelineSchedule), offload=pick(*Offload), sequence_parallel=bool(pick(True, False)),
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("model", [LLAMA31_8B, QWEN3_30B_A3B], ids=lambda model: model.name)
@pytest.mark.parametrize("tool", [*(name for name, tool in TOOLS.items() if tool.splits), "torchrun", "kueue"])
def test_the_filter_says_what_the_gaps_say_of_each_layout(tool: str, model) -> None:
    run = replace(RUN, model=model)
    table = LayoutTable.of(random_layouts(1500, seed=7))
    alone = [
        not found_gaps(
            TOOLS[tool].gaps,
            PlannedRun(workload=run, layout=table.at(index), ranks_on_nodes=(table.at(index).world_size,)),
        )
        for index in range(len(table))
    ]
    assert expressible_by([tool], run)(table).tolist() == alone
    assert len(Counter(alone)) == (2 if TOOLS[tool].splits else 1)


def test_what_was_found_of_one_table_holds_for_the_next() -> None:
    expresses = expressible_by(["deepspeed"], RUN)
    layouts = random_layouts(400, seed=3)
    whole = expresses(LayoutTable.of(layouts)).tolist()
    again = [bool(expresses(LayoutTable.of([layout]))[0]) for layout in layouts]
    assert again == whole


@pytest.mark.parametrize("tool", ["megatron-lm", "torchtitan", "deepspeed", "accelerate"])
def test_a_search_for_a_tool_finds_plans_that_it_can_express_and_counts_the_others(tool: str) -> None:
    found = search(RUN, fleet(2), node_shapes(), solver=BestFitSolver(), expresses=expressible_by([tool], RUN))
    assert found.plans
    for plan in found.plans:
        assert tool in able_tools(planned_run(RUN, plan))
    assert sum(found.rejections.values()) + len(found.plans) == found.num_candidates
    assert found.rejections["fits, but the trainer cannot express it"] > 0


def test_several_tools_must_all_be_able_to() -> None:
    table = LayoutTable.of(random_layouts(1500, seed=1))
    both = expressible_by(["accelerate", "deepspeed"], RUN)(table)
    alone = [expressible_by([tool], RUN)(table) for tool in ("accelerate", "deepspeed")]
    assert both.tolist() == (alone[0] & alone[1]).tolist()
    assert 0 < both.sum() < min(each.sum() for each in alone)


def test_a_workload_beyond_a_tool_is_an_error_before_any_search() -> None:
    with pytest.raises(SpecError, match=r"torchtitan's models .* can write this plan out: megatron-lm") as caught:
        expressible_by(["torchtitan"], replace(RUN, model=GPT2))
    assert caught.value.path == "model"
    narrow = replace(RUN, optimizer=OptimizerSpec(state_format=NumberFormat.BF16))
    with pytest.raises(SpecError, match="optimizer"):
        expressible_by(["deepspeed"], narrow)
    with pytest.raises(SpecError, match=r"precision\.compute"):
        expressible_by(["megatron-lm"], replace(RUN, precision=PrecisionSpec(compute=NumberFormat.TF32)))


def test_where_only_other_trainers_could_the_search_says_so() -> None:
    nothing = search(
        RUN, fleet(1), node_shapes(), solver=BestFitSolver(), expresses=lambda table: np.zeros(len(table), dtype=bool)
    )
    assert nothing.plans == ()
    assert nothing.relaxation is not None
    assert "layouts fit that this one cannot express" in nothing.relaxation
