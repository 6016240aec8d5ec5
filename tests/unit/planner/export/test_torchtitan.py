from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.workload import ModelShape, OptimizerKind, OptimizerSpec, PrecisionSpec
from airflow_llmsched.planner.export import torchtitan
from airflow_llmsched.planner.export.gaps import found_gaps
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.specs import presets
from tests.support.models import GPT2, LLAMA2_70B, LLAMA31_8B, QWEN3_4B, QWEN3_30B_A3B, QWEN25_7B
from tests.support.tool_options import options, planned

RUNS = {
    "sharded": planned(
        ParallelLayout(dp=32, zero_stage=3, shard_size=8, recompute=Recompute.FULL, num_micro_batches=2)
    ),
    "stages": planned(
        ParallelLayout(
            dp=2, tp=4, pp=4, vp=2, cp=2, zero_stage=2, schedule=PipelineSchedule.INTERLEAVED, num_micro_batches=8
        )
    ),
    "experts": planned(ParallelLayout(dp=8, tp=2, ep=8, expert_tp=1, zero_stage=3), QWEN3_30B_A3B),
    "fp8": planned(
        ParallelLayout(dp=8, zero_stage=3, offload=Offload.PARAMETERS_HOST),
        precision=PrecisionSpec(compute=NumberFormat.FP8),
        optimizer=OptimizerSpec(learning_rate=3e-4, warmup_steps=2),
    ),
}  # fmt: skip


def config(run: PlannedRun) -> dict[str, dict[str, Any]]:
    return tomllib.loads(torchtitan.render(run))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_torchtitan_knows_every_key_and_value(run: PlannedRun) -> None:
    known = options("torchtitan")
    types = {"bool": bool, "int": int, "float": (int, float), "str": str, "list": list}
    for name, section in config(run).items():
        for key, value in section.items():
            option = known["sections"][name][key]
            assert isinstance(value, types[option["takes"]]), (name, key)
            assert value in option.get("choices", [value])
        assert set(section.get("converters", [])) <= set(known["converters"])


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_degrees_cover_the_world(run: PlannedRun) -> None:
    """torchtitan asserts it: replicate * shard * cp * tp * pp."""
    degrees = config(run)["parallelism"]
    product = 1
    for name in (
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "context_parallel_degree",
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
    ):
        product *= degrees[name]
    assert product == run.layout.world_size


def test_without_stages_gradients_accumulate_and_with_them_the_pipeline_splits_the_batch() -> None:
    assert config(RUNS["sharded"])["training"]["local_batch_size"] == 1
    assert config(RUNS["sharded"])["training"]["global_batch_size"] == 64
    staged = config(RUNS["stages"])
    assert staged["training"]["local_batch_size"] == 8
    assert staged["parallelism"]["pipeline_parallel_microbatch_size"] == 1
    assert staged["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert staged["parallelism"]["pipeline_parallel_layers_per_stage"] == 4


def test_uneven_stages_name_their_modules() -> None:
    run = planned(ParallelLayout(dp=2, pp=4, zero_stage=2, num_micro_batches=4), replace(LLAMA31_8B, num_layers=6))
    parallelism = config(run)["parallelism"]
    assert "pipeline_parallel_layers_per_stage" not in parallelism
    assert parallelism["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2"],
        ["layers.3", "layers.4"],
        ["layers.5", "norm", "output"],
    ]


@pytest.mark.torch
def test_pytorch_has_the_schedules() -> None:
    from torch.distributed.pipelining.schedules import get_schedule_class

    names = {get_schedule_class(name).__name__ for name in torchtitan.SCHEDULES.values()}
    assert names == {"Schedule1F1B", "ScheduleInterleaved1F1B"}


@pytest.mark.parametrize(
    ("model", "flavor"),
    [
        (LLAMA31_8B, ("llama3", "8B")),
        (QWEN3_4B, ("qwen3", "4B")),
        (QWEN3_30B_A3B, ("qwen3", "30B-A3B")),
        (LLAMA2_70B, ("llama3", "Llama-2-70b")),
    ],
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_a_shape_that_torchtitan_registers_is_found_and_another_is_to_be_added(
    model: ModelShape, flavor: tuple[str, str]
) -> None:
    run = planned(ParallelLayout(dp=8, zero_stage=3), model)
    assert tuple(config(run)["model"].values()) == flavor
    assert any("registers no flavor" in note for note in torchtitan.notes(run)) is (model is LLAMA2_70B)


@pytest.mark.parametrize(
    ("preset", "flavor"),
    [
        ("llama-3.1-70b", ("llama3", "70B")),
        ("llama-3.1-405b", ("llama3", "405B")),
        ("qwen3-0.6b", ("qwen3", "0.6B")),
        ("qwen3-1.7b", ("qwen3", "1.7B")),
        ("qwen3-14b", ("qwen3", "14B")),
        ("qwen3-32b", ("qwen3", "32B")),
        ("qwen3-235b-a22b", ("qwen3", "235B-A22B")),
        ("deepseek-v2-lite", ("deepseek_v3", "16B")),
    ],
)  # fmt: skip
def test_the_shapes_of_published_models_are_its_flavors(preset: str, flavor: tuple[str, str]) -> None:
    run = planned(ParallelLayout(dp=8, zero_stage=3), presets.get(preset).shape)
    assert tuple(config(run)["model"].values()) == flavor


def test_predictions_ahead_are_beyond_it_and_without_them_deepseek_v3_is_a_flavor() -> None:
    model = presets.get("deepseek-v3").shape
    run = planned(ParallelLayout(dp=8, zero_stage=3), model)
    assert [gap.path for gap, _ in found_gaps(torchtitan.GAPS, run)] == ["model"]
    plain = planned(ParallelLayout(dp=8, zero_stage=3), replace(model, num_predict_ahead_layers=0))
    assert found_gaps(torchtitan.GAPS, plain) == []
    assert tuple(config(plain)["model"].values()) == ("deepseek_v3", "671B")


def test_eight_bit_products_are_a_converter_and_offload_is_of_everything() -> None:
    found = config(RUNS["fp8"])
    assert found["model"]["converters"] == ["quantize.linear.float8"]
    assert found["training"]["enable_cpu_offload"] is True
    assert found["optimizer"] == {"name": "AdamW", "lr": 3e-4}
    assert found["lr_scheduler"] == {"warmup_steps": 2}


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        (ParallelLayout(dp=8, zero_stage=1), "layout.zero_stage"),
        (ParallelLayout(dp=4, tp=2), "layout.zero_stage"),
        (ParallelLayout(dp=8, cp=2, zero_stage=3, shard_size=1), "layout.shard_size"),
        (ParallelLayout(dp=2, pp=4, zero_stage=2, schedule=PipelineSchedule.ZERO_BUBBLE), "layout.schedule"),
        (ParallelLayout(dp=2, tp=4, zero_stage=2, sequence_parallel=False), "layout.sequence_parallel"),
        (ParallelLayout(dp=8, zero_stage=2, offload=Offload.OPTIMIZER_HOST), "layout.offload"),
    ],
)  # fmt: skip
def test_layouts_beyond_it_are_named(layout: ParallelLayout, path: str) -> None:
    assert [gap.path for gap, _ in found_gaps(torchtitan.GAPS, planned(layout))] == [path]


@pytest.mark.parametrize(
    ("expert_tp", "ep", "paths"),
    [(4, 4, []), (1, 4, []), (2, 4, ["layout.expert_tp"]), (4, 3, ["layout.ep"])],
)  # fmt: skip
def test_experts_are_split_like_layers_or_not_at_all(expert_tp: int, ep: int, paths: list[str]) -> None:
    run = planned(ParallelLayout(dp=8, tp=4, ep=ep, expert_tp=expert_tp, zero_stage=3), QWEN3_30B_A3B)
    assert [gap.path for gap, _ in found_gaps(torchtitan.GAPS, run)] == paths


@pytest.mark.parametrize("model", [GPT2, QWEN25_7B, replace(LLAMA31_8B, attention_window_tokens=64), None])
def test_models_of_other_families_are_beyond_it(model: ModelShape | None) -> None:
    run = planned(ParallelLayout(dp=8, zero_stage=3), model)
    assert [gap.path for gap, _ in found_gaps(torchtitan.GAPS, run)] == ["model"]


@pytest.mark.parametrize(
    ("modules", "mode"),
    [
        ((RecomputeModule.EVERY_SECOND_PRODUCT,), {"mode": "selective", "selective_ac_option": "op"}),
        ((RecomputeModule.CORE_ATTENTION,), {"mode": "none"}),
        ((RecomputeModule.MLP,), None),
    ],
)  # fmt: skip
def test_of_modules_it_computes_every_second_product_again(
    modules: tuple[RecomputeModule, ...], mode: dict[str, str] | None
) -> None:
    run = planned(ParallelLayout(dp=8, zero_stage=3, recompute=Recompute.MODULES, recompute_modules=modules))
    if mode is None:
        assert [gap.path for gap, _ in found_gaps(torchtitan.GAPS, run)] == ["layout.recompute_modules"]
    else:
        assert found_gaps(torchtitan.GAPS, run) == []
        assert config(run)["activation_checkpoint"] == mode


def test_optimizers_and_formats_beyond_it_are_named() -> None:
    for others, path in (
        ({"optimizer": OptimizerSpec(kind=OptimizerKind.SGD)}, "optimizer.kind"),
        ({"optimizer": OptimizerSpec(state_format=NumberFormat.BF16)}, "optimizer"),
        ({"precision": PrecisionSpec(compute=NumberFormat.FP16)}, "precision.compute"),
    ):
        run = planned(ParallelLayout(dp=8, zero_stage=3), **others)
        assert [gap.path for gap, _ in found_gaps(torchtitan.GAPS, run)] == [path]
