from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from airflow_llmsched.domain.layout import Offload, PipelineSchedule, Recompute
from airflow_llmsched.domain.workload import ModelShape, ParallelismWish
from airflow_llmsched.planner.layout_rules import LayoutRule, keeps_stages_full
from airflow_llmsched.planner.layouts import LayoutSpace, legal_layouts
from tests.support.fleets import local_workload, workload
from tests.support.models import LLAMA31_8B, MIXTRAL_8X7B


def space_of(model: ModelShape, world_size: int, *, num_sequences: int = 256, **pins: Any) -> LayoutSpace:
    wish = ParallelismWish(**({"recompute": Recompute.FULL} | pins))
    run = workload(model, num_sequences=num_sequences, parallelism=wish)
    return legal_layouts(run, world_sizes=[world_size], slots_per_node=4)


@pytest.mark.parametrize(
    ("pins", "world_size", "rule"),
    [
        ({"dp": 3}, 8, LayoutRule.DP_IS_PINNED),
        ({"tp": 16}, 16, LayoutRule.TP_INSIDE_DOMAIN),
        ({"tp": 3}, 3, LayoutRule.TP_DIVIDES_HEADS),
        ({"tp": 8}, 8, LayoutRule.TP_INSIDE_DOMAIN),
        ({"pp": 33}, 33, LayoutRule.PP_HAS_LAYERS),
        ({"dp": 1, "tp": 1, "cp": 1}, 31, LayoutRule.PP_KEEPS_STAGES_FULL),
        ({"cp": 3}, 3, LayoutRule.CP_DIVIDES_SEQUENCE),
        ({"dp": 1, "tp": 1, "pp": 1}, 32, LayoutRule.CP_KEEPS_TILES),
        ({"ep": 2}, 2, LayoutRule.EP_NEEDS_EXPERTS),
        ({"micro_batch_size": 3}, 1, LayoutRule.BATCH_DIVIDES),
        ({"schedule": PipelineSchedule.ZERO_BUBBLE}, 1, LayoutRule.SCHEDULE_NEEDS_PIPELINE),
        ({"vp": 2, "schedule": PipelineSchedule.ONE_F_ONE_B, "pp": 2}, 2, LayoutRule.CHUNKS_INTERLEAVE),
        ({"vp": 17, "pp": 2}, 2, LayoutRule.CHUNKS_HAVE_LAYERS),
        ({"vp": 2, "pp": 4, "micro_batch_size": 128}, 4, LayoutRule.INTERLEAVING_COMES_IN_ROUNDS),
        ({"dp": 4, "shard_size": 2, "zero_stage": 0}, 4, LayoutRule.SHARD_NEEDS_ZERO),
        ({"dp": 4, "shard_size": 3, "zero_stage": 1}, 4, LayoutRule.SHARD_DIVIDES),
        ({"dp": 2, "cp": 2, "shard_size": 1, "zero_stage": 1}, 4, LayoutRule.SHARD_DIVIDES),
        ({"offload": Offload.PARAMETERS_NVME, "zero_stage": 2}, 2, LayoutRule.OFFLOAD_NEEDS_ZERO_3),
    ],
)
def test_each_rule_is_counted_by_its_name(pins: dict[str, Any], world_size: int, rule: LayoutRule) -> None:
    space = space_of(LLAMA31_8B, world_size, **pins)
    assert rule.value in space.rejections
    assert not len(space)


@pytest.mark.parametrize(
    ("pins", "world_size", "rule"),
    [
        ({"ep": 3}, 3, LayoutRule.EP_DIVIDES_EXPERTS),
        ({"ep": 4}, 2, LayoutRule.EP_DIVIDES_RANKS),
        ({"ep": 2, "expert_tp": 2}, 2, LayoutRule.EP_DIVIDES_RANKS),
        ({"ep": 1, "expert_tp": 3}, 3, LayoutRule.EXPERT_TP_DIVIDES_FFN),
        ({"ep": 1, "expert_tp": 8}, 8, LayoutRule.EXPERT_TP_INSIDE_DOMAIN),
        (
            {"ep": 4, "shard_size": 2, "zero_stage": 3, "micro_batch_size": 1},
            4,
            LayoutRule.EXPERTS_INSIDE_SHARD,
        ),
    ],
)
def test_experts_have_rules_of_their_own(pins: dict[str, Any], world_size: int, rule: LayoutRule) -> None:
    space = space_of(MIXTRAL_8X7B, world_size, num_sequences=768, **{"tp": 1, "pp": 1, "cp": 1, **pins})
    assert space.rejections == {rule.value: space.num_candidates}


def test_experts_may_spread_over_ranks_that_split_other_layers() -> None:
    space = space_of(MIXTRAL_8X7B, 8, dp=1, tp=4, cp=2, ep=8, expert_tp=1, zero_stage=0)
    assert len(space) == len(set(space.table.micro_batch_C.tolist()))


def test_key_and_value_heads_are_divided_or_copied() -> None:
    few_heads = replace(LLAMA31_8B, num_kv_heads=2)
    assert set(space_of(few_heads, 4).table.tp_C.tolist()) == {1, 2, 4}
    odd = replace(LLAMA31_8B, num_heads=24, num_kv_heads=3)
    space = space_of(odd, 4, tp=2)
    assert space.rejections == {LayoutRule.TP_SUITS_KV_HEADS.value: space.num_candidates}


def test_mlp_width_and_sequence_bound_the_tensor_degree_too() -> None:
    narrow = replace(LLAMA31_8B, ffn_hidden_size=14337)
    assert LayoutRule.TP_DIVIDES_FFN.value in space_of(narrow, 2).rejections
    run = workload(LLAMA31_8B, sequence_length_tokens=1001)
    odd = legal_layouts(run, world_sizes=[2], slots_per_node=8)
    assert LayoutRule.TP_DIVIDES_SEQUENCE.value in odd.rejections


def test_pinned_degrees_may_be_uneven_or_fine_as_nobody_would_choose() -> None:
    assert len(space_of(LLAMA31_8B, 31, pp=31))
    assert len(space_of(LLAMA31_8B, 32, cp=32))


def test_stages_may_lack_an_eighth_of_their_layers() -> None:
    pp_C = np.array([1, 3, 4, 8, 16, 40, 32, 61], dtype=np.int64)
    assert keeps_stages_full(pp_C, num_layers=61).tolist() == [True, True, True, True, True, False, True, True]


@pytest.mark.parametrize(
    ("pins", "rule"),
    [
        ({"tp": 2}, LayoutRule.SHIPPED_TRAINER),
        ({"shard_size": 2, "zero_stage": 1}, LayoutRule.SHIPPED_TRAINER_SHARDS),
        ({"offload": Offload.OPTIMIZER_HOST}, LayoutRule.SHIPPED_TRAINER_SHARDS),
    ],
)
def test_the_shipped_trainer_knows_only_some_splits(pins: dict[str, Any], rule: LayoutRule) -> None:
    run = local_workload(parallelism=ParallelismWish(**pins))
    space = legal_layouts(run, world_sizes=[4], slots_per_node=2)
    assert rule.value in space.rejections
    assert not len(space)


def test_a_job_without_a_model_is_split_by_data_parallelism_only() -> None:
    run = workload(None, parallelism=ParallelismWish(tp=2))
    space = legal_layouts(run, world_sizes=[4], slots_per_node=8)
    assert space.rejections == {LayoutRule.NO_MODEL.value: space.num_candidates}
