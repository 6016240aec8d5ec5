from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, Recompute
from airflow_llmsched.domain.plan import LaunchSetting
from airflow_llmsched.domain.workload import (
    LoraTarget,
    ModelShape,
    OptimizerKind,
    OptimizerSpec,
    Positions,
    PrecisionSpec,
    TrainingStage,
)
from airflow_llmsched.planner.export import megatron_bridge
from airflow_llmsched.planner.export.gaps import found_gaps
from airflow_llmsched.planner.export.planned import PlannedRun
from tests.support.models import GPT2, LLAMA31_8B, QWEN3_30B_A3B
from tests.support.tool_options import options, planned

ADDED_UP = LaunchSetting(name="NCCL_COLLNET_ENABLE", value="1", why="switches add up")
RUNS = {
    "added up": replace(planned(ParallelLayout(dp=32)), launch_settings=(ADDED_UP,)),
    "deep": planned(ParallelLayout(dp=4, tp=4, pp=4, vp=2, zero_stage=1, recompute=Recompute.FULL)),
    "sharded experts": planned(
        ParallelLayout(dp=32, tp=2, cp=2, ep=8, expert_tp=1, zero_stage=3, shard_size=16), QWEN3_30B_A3B,
        precision=PrecisionSpec(compute=NumberFormat.FP8),
    ),
    "gpt 2": planned(
        ParallelLayout(dp=8, offload=Offload.ACTIVATIONS_HOST), GPT2, sequence_length_tokens=1024,
        optimizer=OptimizerSpec(kind=OptimizerKind.SGD_MOMENTUM, learning_rate=1e-3, warmup_steps=1),
    ),
    "lora": planned(ParallelLayout(dp=8), stage=TrainingStage.LORA, lora_rank=16),
}  # fmt: skip


def lora(targets: set[LoraTarget], model: ModelShape = LLAMA31_8B) -> PlannedRun:
    return planned(ParallelLayout(dp=8), model, stage=TrainingStage.LORA, lora_rank=16, lora_targets=tuple(targets))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_megatron_bridge_knows_every_key(run: PlannedRun) -> None:
    known = options("megatron_bridge")
    for line in megatron_bridge.render(run).splitlines():
        key, _, value = line.partition("=")
        container, _, name = key.partition(".")
        assert container in known["containers"], key
        assert not name or name in known["sections"][container], key
        assert value
        assert container != "mixed_precision" or value in known["mixed_precision"]


def test_values_are_those_of_the_layout() -> None:
    found = megatron_bridge.overrides(RUNS["deep"])
    assert (
        found.items()
        >= {
            "model.tensor_model_parallel_size": 4,
            "model.pipeline_model_parallel_size": 4,
            "model.virtual_pipeline_model_parallel_size": 2,
            "model.sequence_parallel": True,
            "model.recompute_granularity": "full",
            "model.num_layers": 32,
            "model.share_embeddings_and_output_weights": False,
            "train.global_batch_size": 4,
            "train.train_iters": 10,
            "ddp.use_distributed_optimizer": True,
            "optimizer.use_distributed_optimizer": True,
            "mixed_precision": "bf16_mixed",
            "dataset.seq_length": 4096,
        }.items()
    )


def test_the_group_that_switches_add_up_for_is_named() -> None:
    assert megatron_bridge.overrides(RUNS["added up"])["dist.sharp_enabled_group"] == "dp"


def test_shards_are_megatron_fsdps() -> None:
    found = megatron_bridge.overrides(RUNS["sharded experts"])
    assert found["dist.use_megatron_fsdp"]
    assert found["ddp.data_parallel_sharding_strategy"] == "optim_grads_params"
    assert found["ddp.num_distributed_optimizer_instances"] == 4
    assert found["model.num_moe_experts"] == 128
    assert found["mixed_precision"] == "bf16_with_fp8_delayed_scaling_mixed"


def test_text_is_hydras() -> None:
    window = planned(ParallelLayout(dp=8), replace(LLAMA31_8B, attention_window_tokens=512))
    lines = megatron_bridge.render(window).splitlines()
    assert "model.virtual_pipeline_model_parallel_size=null" in lines
    assert "model.window_size=[511,0]" in lines
    assert "model.sequence_parallel=false" in lines


def test_lora_changes_a_rank_and_says_that_the_recipe_must_have_it() -> None:
    assert megatron_bridge.overrides(RUNS["lora"])["peft.dim"] == 16
    assert any("LoRA" in note for note in megatron_bridge.notes(RUNS["lora"]))


def test_adapters_are_on_the_layers_that_hold_their_targets() -> None:
    assert megatron_bridge.overrides(RUNS["lora"])["peft.target_modules"] == [
        "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2",
    ]  # fmt: skip
    attention = lora({LoraTarget.QUERY, LoraTarget.KEY, LoraTarget.VALUE})
    assert megatron_bridge.overrides(attention)["peft.target_modules"] == ["linear_qkv"]
    assert found_gaps(megatron_bridge.GAPS, attention) == []


@pytest.mark.parametrize(
    ("targets", "named"),
    [
        ({LoraTarget.QUERY, LoraTarget.VALUE}, "query, value"),
        ({LoraTarget.GATE, LoraTarget.DOWN}, "gate"),
        ({LoraTarget.OUTPUT_HEAD}, "output_head"),
    ],
)  # fmt: skip
def test_matrices_that_are_one_in_megatron_core_are_adapted_together(targets: set[LoraTarget], named: str) -> None:
    ((gap, value),) = found_gaps(megatron_bridge.GAPS, lora(targets))
    assert (gap.path, value) == ("lora.targets", named)


def test_experts_are_adapted_with_the_mlps_matrices() -> None:
    ((gap, value),) = found_gaps(megatron_bridge.GAPS, lora({LoraTarget.EXPERTS}, QWEN3_30B_A3B))
    assert (gap.path, value) == ("lora.targets", "experts")


def test_a_model_without_positions_is_beyond_it() -> None:
    run = planned(ParallelLayout(dp=8), replace(LLAMA31_8B, positions=Positions.NONE))
    assert [gap.path for gap, _ in found_gaps(megatron_bridge.GAPS, run)] == ["model.positions"]
