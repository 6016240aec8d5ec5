from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import pairwise

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.plan import LaunchSetting
from airflow_llmsched.domain.software import LossKernel, Software
from airflow_llmsched.domain.workload import OptimizerKind, OptimizerSpec, PrecisionSpec, TrainingStage
from airflow_llmsched.planner.export import megatron_lm
from airflow_llmsched.planner.export.gaps import found_gaps
from airflow_llmsched.planner.export.planned import PlannedRun
from tests.support.models import GPT2, LLAMA2_70B, LLAMA31_8B, QWEN3_30B_A3B, QWEN25_7B
from tests.support.tool_options import options, planned

DEEP = ParallelLayout(
    dp=4, tp=8, pp=4, vp=5, schedule=PipelineSchedule.INTERLEAVED, zero_stage=1, num_micro_batches=8,
    recompute=Recompute.SELECTIVE,
)  # fmt: skip
FP8 = PrecisionSpec(compute=NumberFormat.FP8, gradients=NumberFormat.BF16)
NARROW = OptimizerSpec(state_format=NumberFormat.BF16, learning_rate=3e-4, warmup_steps=2)
ADDED_UP = LaunchSetting(name="NCCL_COLLNET_ENABLE", value="1", why="switches add up")
TUNED = Software(
    loss=LossKernel.FUSED, overlaps_tensor_parallel=True, overlaps_expert_parallel=True, deduplicates_dispatch=True
)
RUNS = {
    "added up": replace(planned(ParallelLayout(dp=32)), launch_settings=(ADDED_UP,)),
    "deep": planned(DEEP, LLAMA2_70B),
    "hybrid shards": planned(ParallelLayout(dp=32, zero_stage=3, shard_size=8, recompute=Recompute.FULL)),
    "experts": planned(
        ParallelLayout(dp=8, tp=4, cp=2, ep=8, expert_tp=1, zero_stage=1, offload=Offload.OPTIMIZER_HOST), QWEN3_30B_A3B
    ),
    "learned positions": planned(
        ParallelLayout(dp=8, offload=Offload.ACTIVATIONS_HOST), GPT2, sequence_length_tokens=1024
    ),
    "narrow formats": planned(ParallelLayout(dp=8, zero_stage=2), QWEN25_7B, precision=FP8, optimizer=NARROW),
    "uneven stages": planned(ParallelLayout(dp=1, pp=8, vp=3), replace(LLAMA31_8B, num_layers=45)),
    "tuned": planned(ParallelLayout(dp=8, tp=4, ep=8, expert_tp=1), QWEN3_30B_A3B, software=TUNED),
    "windows": planned(
        ParallelLayout(dp=8, recompute=Recompute.MODULES, recompute_modules=(RecomputeModule.MLP,)),
        replace(LLAMA31_8B, attention_window_tokens=1024),
    ),
    "half precision and plain gradient descent": planned(
        ParallelLayout(dp=8), precision=PrecisionSpec(compute=NumberFormat.FP16),
        optimizer=OptimizerSpec(kind=OptimizerKind.SGD_MOMENTUM),
    ),
}  # fmt: skip


def read(run: PlannedRun) -> dict[str, list[str]]:
    """Return the rendered options with their values, each option once."""
    found: dict[str, list[str]] = {}
    for word in shlex.split(megatron_lm.render(run)):
        if word.startswith("--"):
            assert word not in found
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_megatron_lm_knows_every_option_and_what_it_takes(run: PlannedRun) -> None:
    known = options("megatron_lm")
    for option, values in read(run).items():
        takes = known["takes"][option]
        assert len(values) == (0 if takes == "flag" else 1), option
        if takes == "int":
            assert int(values[0]) >= 0
        if option in known["choices"]:
            assert set(values) <= set(known["choices"][option])


def test_the_group_that_switches_add_up_for_is_named() -> None:
    assert read(RUNS["added up"])["--sharp-enabled-group"] == ["dp"]


def test_a_deep_layout_is_said_in_full() -> None:
    found = {option: " ".join(values) for option, values in read(RUNS["deep"]).items()}
    assert (
        found.items()
        >= {
            "--tensor-model-parallel-size": "8",
            "--pipeline-model-parallel-size": "4",
            "--num-virtual-stages-per-pipeline-rank": "5",
            "--sequence-parallel": "",
            "--use-distributed-optimizer": "",
            "--micro-batch-size": "1",
            "--global-batch-size": "32",
            "--seq-length": "4096",
            "--train-iters": "10",
            "--recompute-granularity": "selective",
            "--num-layers": "80",
            "--hidden-size": "8192",
            "--ffn-hidden-size": "28672",
            "--num-attention-heads": "64",
            "--kv-channels": "128",
            "--group-query-attention": "",
            "--num-query-groups": "8",
            "--swiglu": "",
            "--normalization": "RMSNorm",
            "--position-embedding-type": "rope",
            "--vocab-size": "32000",
            "--untie-embeddings-and-output-weights": "",
            "--disable-bias-linear": "",
            "--bf16": "",
            "--optimizer": "adam",
        }.items()
    )
    assert "--num-experts" not in found


def test_hybrid_shards_are_instances_of_megatron_fsdp() -> None:
    found = read(RUNS["hybrid shards"])
    assert found["--data-parallel-sharding-strategy"] == ["optim_grads_params"]
    assert found["--num-distributed-optimizer-instances"] == ["4"]
    assert found["--ckpt-format"] == ["fsdp_dtensor"]
    assert (found["--recompute-granularity"], found["--recompute-num-layers"]) == (["full"], ["1"])
    assert "--sequence-parallel" not in found


def test_experts_and_offloaded_optimizers_are_said() -> None:
    found = read(RUNS["experts"])
    assert found["--expert-model-parallel-size"] == ["8"]
    assert found["--expert-tensor-parallel-size"] == ["1"]
    assert found["--context-parallel-size"] == ["2"]
    assert (found["--num-experts"], found["--moe-router-topk"]) == (["128"], ["8"])
    assert found["--moe-ffn-hidden-size"] == ["768"]
    assert "--qk-layernorm" in found
    assert "--optimizer-cpu-offload" in found
    assert "--moe-layer-freq" not in found  # every layer has experts, which is the default


def test_layers_without_experts_become_a_pattern() -> None:
    experts = replace(QWEN3_30B_A3B.experts, num_dense_layers_first=3, num_shared=2)
    found = read(planned(ParallelLayout(dp=8), replace(QWEN3_30B_A3B, experts=experts)))
    (pattern,) = found["--moe-layer-freq"]
    assert pattern == "[0]*3+[1]*45"
    assert found["--moe-shared-expert-intermediate-size"] == [str(2 * 768)]


def test_biases_and_positions_of_gpt_2() -> None:
    found = read(RUNS["learned positions"])
    assert found["--position-embedding-type"] == ["learned_absolute"]
    assert found["--normalization"] == ["LayerNorm"]
    assert not {"--disable-bias-linear", "--swiglu", "--untie-embeddings-and-output-weights"} & set(found)
    assert found["--cpu-offloading-num-layers"] == ["11"]


def test_formats_of_numbers_are_said() -> None:
    found = read(RUNS["narrow formats"])
    assert found["--fp8-format"] == ["hybrid"]
    assert {"--bf16", "--grad-reduce-in-bf16", "--use-precision-aware-optimizer", "--add-qkv-bias"} <= set(found)
    assert found["--exp-avg-dtype"] == found["--exp-avg-sq-dtype"] == ["bf16"]
    assert (found["--lr"], found["--lr-warmup-iters"]) == (["0.0003"], ["2"])


def test_uneven_chunks_are_spelled_out_and_say_how_many_there_are() -> None:
    found = read(RUNS["uneven stages"])
    (pattern,) = found["--pipeline-model-parallel-layout"]
    chunks = pattern.split("|")
    assert len(chunks) == 8 * 3
    assert sum(int(chunk.strip("EL").removeprefix("t*")) for chunk in chunks) == 45
    assert (chunks[0], chunks[-1]) == ("Et*1", "t*1L")
    assert "--num-virtual-stages-per-pipeline-rank" not in found


def test_layers_that_predict_ahead_come_before_the_loss() -> None:
    model = replace(LLAMA31_8B, num_layers=5, num_predict_ahead_layers=1)
    (pattern,) = read(planned(ParallelLayout(dp=1, pp=2), model))["--pipeline-model-parallel-layout"]
    assert pattern == "Et*3|t*2mL"


def test_a_window_counts_the_token_itself() -> None:
    found = read(RUNS["windows"])
    assert found["--window-size"] == ["1023,0"]
    assert found["--recompute-modules"] == ["mlp"]


def test_momentum_is_stated_either_way() -> None:
    kinds = (OptimizerKind.SGD_MOMENTUM, OptimizerKind.SGD)
    runs = [planned(ParallelLayout(dp=8), optimizer=OptimizerSpec(kind=kind)) for kind in kinds]
    assert [read(run)["--sgd-momentum"] for run in runs] == [["0.9"], ["0.0"]]


def test_lora_is_beyond_it() -> None:
    run = planned(ParallelLayout(dp=8), stage=TrainingStage.LORA)
    assert [gap.path for gap, _ in found_gaps(megatron_lm.GAPS, run)] == ["stage"]


def test_a_line_is_one_option() -> None:
    lines = megatron_lm.render(RUNS["deep"]).splitlines()
    assert all(line.startswith("--") for line in lines)
    assert all(one.split()[0] != other.split()[0] for one, other in pairwise(lines))
