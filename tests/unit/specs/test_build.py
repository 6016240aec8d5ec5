"""Every key of a sound spec reaches the domain."""

from __future__ import annotations

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import Offload, PipelineSchedule, PlacementWish, RankGroup, Recompute
from airflow_llmsched.domain.queue_rules import QueueWish
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.workload import (
    ALL_LINEAR,
    BudgetSpec,
    CapacityType,
    CapacityWish,
    CheckpointSpec,
    CompressionKind,
    DatasetKind,
    DatasetSpec,
    EvaluationSpec,
    GradientCompression,
    LauncherSpec,
    LoraTarget,
    MemoryDemand,
    ObjectiveWeights,
    OptimizerKind,
    OptimizerSpec,
    ParallelismWish,
    PrecisionSpec,
    RetrySpec,
    TrafficDemand,
    TrainingStage,
)
from tests.support.specs import load_small

FULL = {
    "name": "it's $(full)",
    "stage": "lora",
    "model": {"preset": "llama-3.1-8b", "name": "mine"},
    "lora": {"rank": 16, "targets": ["query", "value"]},
    "optimizer": {
        "kind": "sgd_momentum", "state_format": "bf16", "master_weights": False,
        "learning_rate": 0.01, "warmup_steps": 2,
    },
    "precision": {"compute": "fp8", "parameters": "fp16", "gradients": "bf16"},
    "data": {"kind": "files", "source": "s3://b/x", "shard_size": "1MB", "held_out": "2%", "max_size": "3GB"},
    "budget": {"steps": 7, "deadline": "36h", "max_usd": "$120"},
    "objective": {"cost": 1, "latency": 2, "fairness": 3, "reliability": 4, "energy": 5},
    "parallelism": {
        "dp": 2, "tp": 2, "pp": 2, "cp": 2, "ep": 1, "zero_stage": 1, "micro_batch_size": 4, "recompute": "full",
        "vp": 3, "expert_tp": 1, "schedule": "interleaved", "offload": "optimizer_host", "shard_size": 4,
    },
    "placement": {"gang": {"required": "zone", "preferred": "rack"}, "tp": {"required": "node"}},
    "roles": [{"kind": "trainer"}, {"kind": "evaluator", "num_ranks": 2, "command": ["e"], "accelerators_per_rank": 3}],
    "capacity": {
        "clouds": ["aws"], "regions": ["r"], "jurisdictions": ["EU"], "vendors": ["nvidia"],
        "capacity_types": ["spot"], "min_ranks": 2, "max_ranks": 64,
    },
    "checkpoint": {
        "root": "gs://c", "init_from": "gs://base/step-5", "format": "megatron", "interval": "10min", "keep_last": 9,
        "require_resume": True,
    },
    "launcher": {
        "kind": "plain", "command": ["a", "b c"], "environment": {"K": "v"},
        "start_limit": "1min", "grace": "2s", "hang_limit": "3s",
    },
    "evaluation": {"command": ["x"], "max_loss": 2.5, "num_batches": 3, "limit": "4s"},
    "retries": {"code": 1, "infrastructure": 2, "without_progress": 4},
    "communication": {
        "version": 1,
        "traffic": [{"group": "a", "peer": "b", "group_size": 2, "collective": "send", "bytes_per_step": "5GB"}],
    },
    "memory": {"version": 1, "tiers": [{"tier": "nvme", "bytes_per_rank": "6GiB"}]},
    "seed": 99,
}  # fmt: skip


def test_every_block_reaches_the_workload_with_its_units() -> None:
    spec = load_small(FULL)
    assert (spec.name, spec.stage, spec.lora_rank, spec.seed) == ("it's $(full)", TrainingStage.LORA, 16, 99)
    assert spec.lora_targets == (LoraTarget.QUERY, LoraTarget.VALUE)
    assert load_small().lora_targets == ALL_LINEAR
    assert spec.model is not None
    assert (spec.model.name, spec.model.num_layers) == ("mine", 32)
    assert spec.optimizer == OptimizerSpec(
        kind=OptimizerKind.SGD_MOMENTUM,
        state_format=NumberFormat.BF16,
        master_weights=False,
        learning_rate=0.01,
        warmup_steps=2,
    )
    assert spec.precision == PrecisionSpec(
        compute=NumberFormat.FP8, parameters=NumberFormat.FP16, gradients=NumberFormat.BF16
    )
    assert spec.data == DatasetSpec(
        kind=DatasetKind.FILES, source="s3://b/x", shard_bytes=10**6, held_out_ratio=0.02, max_bytes=3 * 10**9
    )
    assert spec.budget == BudgetSpec(num_steps=7, deadline_s=129_600.0, max_usd=120.0)
    assert spec.objective == ObjectiveWeights(throughput=0, cost=1, latency=2, fairness=3, reliability=4, energy=5)
    assert spec.parallelism == ParallelismWish(
        dp=2, tp=2, pp=2, cp=2, ep=1, zero_stage=1, micro_batch_size=4, recompute=Recompute.FULL, vp=3,
        expert_tp=1, schedule=PipelineSchedule.INTERLEAVED, offload=Offload.OPTIMIZER_HOST, shard_size=4,
    )  # fmt: skip


def test_what_surrounds_the_training_reaches_the_workload_too() -> None:
    spec = load_small(FULL)
    assert spec.placement == (
        PlacementWish(group=RankGroup.GANG, level="zone", required=True),
        PlacementWish(group=RankGroup.GANG, level="rack", required=False),
        PlacementWish(group=RankGroup.TP, level="node", required=True),
    )
    assert spec.roles == (
        RoleSpec(kind=RoleKind.TRAINER),
        RoleSpec(kind=RoleKind.EVALUATOR, num_ranks=2, command=("e",), accelerators_per_rank=3),
    )
    assert spec.capacity == CapacityWish(
        clouds=("aws",),
        regions=("r",),
        jurisdictions=("EU",),
        vendors=("nvidia",),
        capacity_types=(CapacityType.SPOT,),
        min_ranks=2,
        max_ranks=64,
    )
    assert spec.checkpoint == CheckpointSpec(
        root="gs://c",
        init_from="gs://base/step-5",
        format="megatron",
        interval_s=600.0,
        keep_last=9,
        require_resume=True,
    )
    assert spec.launcher == LauncherSpec(
        kind=Launcher.PLAIN,
        command=("a", "b c"),
        environment={"K": "v"},
        start_limit_s=60.0,
        grace_s=2.0,
        hang_limit_s=3.0,
    )
    assert spec.evaluation == EvaluationSpec(command=("x",), max_loss=2.5, num_batches=3, limit_s=4.0)
    assert spec.retries == RetrySpec(
        max_code_failures=1, max_infrastructure_failures=2, max_attempts_without_progress=4
    )
    assert spec.communication == (
        TrafficDemand(group="a", peer_group="b", group_size=2, collective="send", bytes_per_step=5 * 10**9),
    )
    assert spec.memory == (MemoryDemand(tier="nvme", bytes_per_rank=6 * 2**30),)


def test_compression_reaches_the_workload_and_leaves_gradients_whole() -> None:
    spec = load_small({"compression": {"kind": "top_k", "kept": "2%", "exact_steps": 5}})
    assert spec.compression == GradientCompression(kind=CompressionKind.TOP_K, kept_ratio=0.02, num_exact_steps=5)
    assert spec.parallelism == ParallelismWish(zero_stage=0)
    assert load_small().compression is None


def test_one_word_objective_and_steps_between_checkpoints() -> None:
    spec = load_small({"objective": "energy", "checkpoint.interval_steps": 30, "parallelism": "auto"})
    assert spec.objective == ObjectiveWeights(throughput=0, energy=1)
    assert spec.checkpoint.interval_steps == 30
    assert spec.parallelism == ParallelismWish()


def test_a_place_in_the_queue_reaches_the_workload_and_without_one_there_is_none() -> None:
    assert load_small({"queue": {"team": "red", "priority": "urgent", "max_wait": "2d"}}).queue == QueueWish(
        team="red", priority="urgent", max_wait_s=172_800.0
    )
    assert load_small({"queue": {}}).queue == QueueWish()
    assert load_small({}).queue is None
