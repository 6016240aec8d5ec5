"""A configuration file of Hugging Face Accelerate: FSDP 2 with tensor and context parallelism, or plain replicas.

Names as in Accelerate 1.15.0 (``commands/config/config_args.py``, ``commands/launch.py``, ``parallelism_config.py``).
"""

from __future__ import annotations

from typing import Any

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, Recompute
from airflow_llmsched.domain.workload import CompressionKind
from airflow_llmsched.planner.export.gaps import NOT_FOR_OTHERS, Gap, above_one, compresses_unlike, one_of
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes
from airflow_llmsched.planner.export.text import comments, yaml_text
from airflow_llmsched.planner.export.torchrun import UNEVEN_NODES
from airflow_llmsched.planner.perf.compression import pytorch_settings

MIXED_PRECISION = {
    NumberFormat.FP32: "no",
    NumberFormat.BF16: "bf16",
    NumberFormat.FP16: "fp16",
    NumberFormat.FP8: "fp8",
}


def settings(run: PlannedRun) -> dict[str, Any]:
    """Return the file's content as plain values."""
    is_sharded = run.layout.zero_stage > 0
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if is_sharded else "MULTI_GPU",
        "num_machines": len(run.ranks_on_nodes),
        "num_processes": sum(run.ranks_on_nodes),
        "machine_rank": 0,
        "mixed_precision": MIXED_PRECISION[run.workload.precision.compute],
    }
    if run.workload.precision.compute is NumberFormat.FP8:
        config["fp8_config"] = {"fp8_backend": "TE", "fp8_format": "HYBRID"}
    if is_sharded:
        config["fsdp_config"] = _fsdp(run)
        config["parallelism_config"] = _degrees(run)
    return config


def render(run: PlannedRun) -> str:
    """Return the file, with what it leaves open as comments."""
    return comments(notes(run)) + yaml_text(settings(run))


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what is not in the file."""
    layout = run.layout
    found = [
        *common_notes(run),
        f"In code: a data loader of batch size {layout.micro_batch_size} and "
        f"Accelerator(gradient_accumulation_steps={layout.num_micro_batches}).",
    ]
    if len(run.ranks_on_nodes) > 1:
        found.append("On each node set machine_rank, and main_process_ip and main_process_port to those of the first.")
    if run.workload.compression is not None and (line := pytorch_settings(run.workload.compression)) is not None:
        found.append(f"In code, after prepare(): {line}")
    if layout.tp > 1:
        found.append("How layers are split over tp, and whether norms are too, is the model's own plan (tp_plan).")
    if run.workload.precision.compute in {NumberFormat.BF16, NumberFormat.FP16, NumberFormat.FP8} and layout.zero_stage:
        found.append("Accelerate reduces gradients in the format of the compute, whatever precision.gradients says.")
    return tuple(found)


def _fsdp(run: PlannedRun) -> dict[str, Any]:
    layout = run.layout
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        # Weights that stay gathered after the forward pass leave gradients and optimizer state sharded: ZeRO 2.
        "fsdp_reshard_after_forward": layout.zero_stage == 3,
        "fsdp_activation_checkpointing": layout.recompute is Recompute.FULL,
        "fsdp_activation_checkpointing_offload": layout.offload is Offload.ACTIVATIONS_HOST,
        "fsdp_offload_params": layout.offload is Offload.PARAMETERS_HOST,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _degrees(run: PlannedRun) -> dict[str, int]:
    layout = run.layout
    return {
        "parallelism_config_dp_replicate_size": run.num_copies,
        "parallelism_config_dp_shard_size": run.num_sharing // layout.cp,
        "parallelism_config_tp_size": layout.tp,
        "parallelism_config_cp_size": layout.cp,
    }


def _split_unsharded(run: PlannedRun) -> object | None:
    layout = run.layout
    return 0 if layout.zero_stage == 0 and layout.tp * layout.cp > 1 else None


def _activations(run: PlannedRun) -> object | None:
    offloads = run.layout.offload is Offload.ACTIVATIONS_HOST
    return run.layout.recompute.value if offloads and run.layout.recompute is not Recompute.FULL else None


def torn_shards(run: PlannedRun) -> object | None:
    """Return the shard size where shards are not whole context-parallel groups, as PyTorch's FSDP mesh needs them."""
    return run.layout.shard_size if run.num_sharing % run.layout.cp else None


GAPS = (
    NOT_FOR_OTHERS,
    Gap(
        path="compression",
        why="PyTorch has hooks for PowerSGD and 8 bits",
        used=compresses_unlike(CompressionKind.POWER_SGD, CompressionKind.EIGHT_BIT),
    ),
    UNEVEN_NODES,
    Gap(path="layout.pp", why="Accelerate trains without pipeline stages", used=above_one("pp")),
    Gap(path="layout.ep", why="Accelerate has no expert parallelism", used=above_one("ep")),
    Gap(
        path="layout.zero_stage",
        why="FSDP shards gradients and optimizer state together (ZeRO 2 or 3)",
        used=one_of(1, value=lambda run: run.layout.zero_stage),
    ),
    Gap(path="layout.zero_stage", why="Accelerate splits layers and sequences only under FSDP", used=_split_unsharded),
    Gap(path="layout.shard_size", why="FSDP shards over whole context-parallel groups", used=torn_shards),
    Gap(
        path="layout.offload",
        why="Accelerate offloads to the host only, and optimizer state only together with the parameters",
        used=one_of(
            Offload.OPTIMIZER_HOST,
            Offload.OPTIMIZER_NVME,
            Offload.PARAMETERS_NVME,
            value=lambda run: run.layout.offload,
        ),
    ),
    Gap(path="layout.recompute", why="Accelerate offloads the activations of recomputed layers", used=_activations),
    Gap(
        path="layout.recompute",
        why="Accelerate computes whole layers again",
        used=one_of(Recompute.MODULES, value=lambda run: run.layout.recompute),
    ),
    Gap(
        path="precision.compute",
        why="Accelerate has no setting for TF32",
        used=one_of(NumberFormat.TF32, value=lambda run: run.workload.precision.compute),
    ),
)
