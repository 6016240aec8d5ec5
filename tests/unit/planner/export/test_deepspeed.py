from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, Recompute
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import (
    CompressionKind,
    GradientCompression,
    OptimizerKind,
    OptimizerSpec,
    PrecisionSpec,
)
from airflow_llmsched.planner.export import deepspeed
from airflow_llmsched.planner.export.gaps import found_gaps
from airflow_llmsched.planner.export.planned import PlannedRun
from tests.support.models import LLAMA31_8B, QWEN3_30B_A3B
from tests.support.tool_options import options, planned

BF16 = NumberFormat.BF16
ALL_BF16 = {
    "precision": PrecisionSpec(gradients=BF16),
    "optimizer": OptimizerSpec(state_format=BF16, master_weights=False),
}
RUNS = {
    "shards": planned(ParallelLayout(dp=16, zero_stage=3, micro_batch_size=2, num_micro_batches=4)),
    "disks": planned(ParallelLayout(dp=16, zero_stage=3, offload=Offload.PARAMETERS_NVME)),
    "split": planned(ParallelLayout(dp=4, tp=4, zero_stage=1)),
    "experts": planned(ParallelLayout(dp=16, ep=8, zero_stage=2), QWEN3_30B_A3B),
    "activations": planned(
        ParallelLayout(dp=8, zero_stage=1, recompute=Recompute.FULL, offload=Offload.ACTIVATIONS_HOST)
    ),
    "all bf16": planned(ParallelLayout(dp=8, zero_stage=2), **ALL_BF16),
    "half precision and plain gradient descent": planned(
        ParallelLayout(dp=8, zero_stage=1), precision=PrecisionSpec(compute=NumberFormat.FP16),
        optimizer=OptimizerSpec(kind=OptimizerKind.SGD_MOMENTUM, learning_rate=0.1),
    ),
}  # fmt: skip


def test_one_bit_adam_is_switched_on_and_other_compression_is_a_gap() -> None:
    layout = ParallelLayout(dp=8)
    runs = {kind: planned(layout, compression=GradientCompression(kind=kind)) for kind in CompressionKind}
    assert config(runs[CompressionKind.ONE_BIT])["optimizer"] == {
        "type": "OneBitAdam", "params": {"freeze_step": 1000, "comm_backend_name": "nccl"},
    }  # fmt: skip
    gaps = {kind: [gap.path for gap, _ in found_gaps(deepspeed.GAPS, run)] for kind, run in runs.items()}
    assert gaps == {kind: [] if kind is CompressionKind.ONE_BIT else ["compression"] for kind in CompressionKind}


def config(run: PlannedRun) -> dict[str, Any]:
    return json.loads(deepspeed.render(run))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_deepspeed_knows_every_key(run: PlannedRun) -> None:
    known = options("deepspeed")
    found = config(run)
    assert set(found) <= set(known["keys"])
    for name, section in found.items():
        if isinstance(section, dict):
            assert set(section) <= set(known["sections"][name]), name
    for name in ("offload_optimizer", "offload_param"):
        offload = found["zero_optimization"].get(name, {"device": "none"})
        assert set(offload) <= set(known["sections"][name])
        assert offload["device"] in known["devices"]
    assert found["communication_data_type"] in known["data_type_names"]


def test_communication_is_overlapped_as_planned() -> None:
    layout = ParallelLayout(dp=8, zero_stage=2)
    assert config(planned(layout))["zero_optimization"]["overlap_comm"] is True
    apart = planned(layout, software=Software(overlaps_data_parallel=False))
    assert config(apart)["zero_optimization"]["overlap_comm"] is False


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_batch_is_what_its_parts_multiply_to(run: PlannedRun) -> None:
    """DeepSpeed asserts it: micro-batch * accumulation * replicas."""
    found = config(run)
    parts = found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * run.layout.dp
    assert found["train_batch_size"] == parts


def test_offload_to_disks_takes_parameters_and_state_and_names_the_folder_to_set() -> None:
    found = config(RUNS["disks"])["zero_optimization"]
    assert found["stage"] == 3
    for name in ("offload_optimizer", "offload_param"):
        assert found[name] == {"device": "nvme", "pin_memory": True, "nvme_path": deepspeed.NVME_PATH}
    assert any("nvme_path" in note for note in deepspeed.notes(RUNS["disks"]))


def test_degrees_are_automatic_tensor_and_expert_parallelism() -> None:
    assert config(RUNS["split"])["tensor_parallel"] == {"autotp_size": 4}
    assert config(RUNS["experts"])["expert_parallel"]["autoep_size"] == 8


def test_formats_are_said() -> None:
    assert config(RUNS["shards"])["bf16"] == {"enabled": True}
    assert config(RUNS["shards"])["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config(RUNS["all bf16"])["bf16"]["bf16_master_weights_and_grads"] is True
    half = config(RUNS["half precision and plain gradient descent"])
    assert half["fp16"] == {"enabled": True}
    assert half["optimizer"] == {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}
    assert half["zero_allow_untested_optimizer"] is True


def test_recomputation_is_left_to_the_code_and_said_so() -> None:
    assert config(RUNS["activations"])["activation_checkpointing"]["cpu_checkpointing"] is True
    assert any("Recomputation" in note for note in deepspeed.notes(RUNS["activations"]))


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        (ParallelLayout(dp=4, pp=2), "layout.pp"),
        (ParallelLayout(dp=4, cp=2), "layout.cp"),
        (ParallelLayout(dp=8, offload=Offload.OPTIMIZER_HOST), "layout.zero_stage"),
        (ParallelLayout(dp=8, zero_stage=3, shard_size=4), "layout.shard_size"),
        (ParallelLayout(dp=8, recompute=Recompute.MODULES), "layout.recompute"),
        (ParallelLayout(dp=8, offload=Offload.ACTIVATIONS_HOST), "layout.recompute"),
    ],
)  # fmt: skip
def test_layouts_beyond_it_are_named(layout: ParallelLayout, path: str) -> None:
    assert [gap.path for gap, _ in found_gaps(deepspeed.GAPS, planned(layout))] == [path]


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        (ParallelLayout(dp=8, tp=2, ep=2), "layout.expert_tp"),
        (ParallelLayout(dp=8, tp=2, expert_tp=1), "layout.tp"),
        (ParallelLayout(dp=8, tp=2, ep=2, expert_tp=1, zero_stage=1, offload=Offload.OPTIMIZER_HOST), "layout.offload"),
        (ParallelLayout(dp=8, tp=2, ep=2, expert_tp=1, zero_stage=1), None),
    ],
)  # fmt: skip
def test_experts_go_with_tensor_parallelism_in_one_way_only(layout: ParallelLayout, path: str | None) -> None:
    found = [gap.path for gap, _ in found_gaps(deepspeed.GAPS, planned(layout, QWEN3_30B_A3B))]
    assert found == [path] * (path is not None)


def test_formats_beyond_it_are_named() -> None:
    for others, path in (
        ({"precision": PrecisionSpec(compute=NumberFormat.FP8)}, "precision.compute"),
        ({"optimizer": OptimizerSpec(state_format=BF16)}, "optimizer"),
    ):
        run = planned(ParallelLayout(dp=8, zero_stage=1), LLAMA31_8B, **others)
        assert [gap.path for gap, _ in found_gaps(deepspeed.GAPS, run)] == [path]
