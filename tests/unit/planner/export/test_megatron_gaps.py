from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.workload import ModelShape, OptimizerKind, OptimizerSpec, Positions, PrecisionSpec
from airflow_llmsched.planner.export.gaps import found_gaps
from airflow_llmsched.planner.export.megatron_gaps import CORE_GAPS
from tests.support.models import GPT2, LLAMA31_8B, QWEN3_30B_A3B, QWEN25_7B
from tests.support.tool_options import planned

PLAIN = ParallelLayout(dp=8, zero_stage=1)


def paths(layout: ParallelLayout = PLAIN, model: ModelShape | None = LLAMA31_8B, **others: Any) -> list[str]:
    return [gap.path for gap, _ in found_gaps(CORE_GAPS, planned(layout, model, **others))]


@pytest.mark.parametrize("model", [LLAMA31_8B, QWEN25_7B, QWEN3_30B_A3B, GPT2], ids=lambda model: model.name)
def test_common_models_are_within_reach(model: ModelShape) -> None:
    assert paths(model=model, sequence_length_tokens=1024) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"norm_has_weight": False}, "model.norm_has_weight"),
        ({"qk_norm": True, "qk_norm_full_width": True}, "model.qk_norm_full_width"),
        ({"num_norms_per_layer": 4}, "model.num_norms_per_layer"),
        ({"parallel_block": True}, "model.parallel_block"),
        ({"positions": Positions.ALIBI}, "model.positions"),
        ({"attention_out_bias": True}, "model.biases"),
        ({"embedding_size": 512}, "model.embedding_size"),
    ],
)  # fmt: skip
def test_what_its_gpt_does_not_have_is_named(changes: dict[str, Any], path: str) -> None:
    assert paths(model=replace(LLAMA31_8B, **changes)) == [path]


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        (ParallelLayout(dp=2, pp=4, schedule=PipelineSchedule.ZERO_BUBBLE), "layout.schedule"),
        (ParallelLayout(dp=8, zero_stage=3, offload=Offload.PARAMETERS_NVME), "layout.offload"),
        (ParallelLayout(dp=2, pp=4, offload=Offload.ACTIVATIONS_HOST), "layout.offload"),
        (
            ParallelLayout(dp=8, recompute=Recompute.MODULES, recompute_modules=(RecomputeModule.QKV,)),
            "layout.recompute_modules",
        ),
        (ParallelLayout(dp=8, offload=Offload.OPTIMIZER_HOST), "optimizer"),
    ],
)  # fmt: skip
def test_layouts_beyond_it_are_named(layout: ParallelLayout, path: str) -> None:
    assert paths(layout) == [path]


def test_a_job_without_a_model_formats_and_optimizers_beyond_it_are_named() -> None:
    assert paths(model=None) == ["model"]
    assert paths(precision=PrecisionSpec(compute=NumberFormat.TF32)) == ["precision.compute"]
    assert paths(optimizer=OptimizerSpec(master_weights=False)) == ["optimizer.master_weights"]
    narrow = OptimizerSpec(kind=OptimizerKind.SGD_MOMENTUM, state_format=NumberFormat.BF16)
    assert paths(optimizer=narrow) == ["optimizer"]


def test_a_router_has_a_bias_where_all_layers_have() -> None:
    experts = replace(QWEN3_30B_A3B.experts, router_bias=True)
    assert paths(model=replace(QWEN3_30B_A3B, experts=experts)) == ["model.biases"]
    everywhere = {"attention_qkv_bias": True, "attention_out_bias": True, "mlp_bias": True}
    assert paths(model=replace(QWEN3_30B_A3B, experts=experts, **everywhere)) == []


def test_weights_stored_in_fp32_need_no_copy() -> None:
    wide = PrecisionSpec(parameters=NumberFormat.FP32)
    assert paths(precision=wide, optimizer=OptimizerSpec(master_weights=False)) == []
