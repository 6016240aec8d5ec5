"""A DeepSpeed configuration: batch, precision, ZeRO with offload, automatic tensor and expert parallelism.

Names as in DeepSpeed 0.19.8 (``runtime/constants.py``, ``runtime/zero/config.py``, ``runtime/precision_config.py``,
``runtime/tensor_parallel/config.py``, ``module_inject/auto_ep_config.py``).
"""

from __future__ import annotations

from typing import Any

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, Recompute
from airflow_llmsched.domain.workload import CompressionKind, OptimizerKind
from airflow_llmsched.planner.export.gaps import NOT_FOR_OTHERS, Gap, above_one, compresses_unlike, one_of
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes
from airflow_llmsched.planner.export.text import json_text

NVME_PATH = "/local_nvme"
"""Where tensors go that are offloaded to disks: DeepSpeed needs a path, and a plan knows none."""

_OPTIMIZERS: dict[OptimizerKind, tuple[str, dict[str, Any]]] = {
    OptimizerKind.ADAMW: ("AdamW", {}),
    OptimizerKind.SGD_MOMENTUM: ("SGD", {"momentum": 0.9}),
    OptimizerKind.SGD: ("SGD", {}),
}
_OPTIMIZER_DEVICE = {
    Offload.OPTIMIZER_HOST: "cpu",
    Offload.OPTIMIZER_NVME: "nvme",
    Offload.PARAMETERS_HOST: "cpu",
    Offload.PARAMETERS_NVME: "nvme",
}
_PARAMETER_DEVICE = {Offload.PARAMETERS_HOST: "cpu", Offload.PARAMETERS_NVME: "nvme"}


def settings(run: PlannedRun) -> dict[str, Any]:
    """Return the configuration as nested plain values."""
    layout = run.layout
    config: dict[str, Any] = {
        "train_batch_size": layout.global_batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.num_micro_batches,
        "optimizer": _optimizer(run),
        "zero_optimization": _zero(run),
    }
    config |= _precision(run)
    if layout.tp > 1:
        config["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.ep > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep, "expert_tensor_parallel_size": 1}
    if layout.offload is Offload.ACTIVATIONS_HOST:
        config["activation_checkpointing"] = {"partition_activations": layout.tp > 1, "cpu_checkpointing": True}
    if layout.zero_stage and run.workload.optimizer.kind is not OptimizerKind.ADAMW:
        config["zero_allow_untested_optimizer"] = True
    return config


def render(run: PlannedRun) -> str:
    """Return the configuration as JSON."""
    return json_text(settings(run))


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what is not in the file."""
    found = [*common_notes(run)]
    if run.layout.recompute is Recompute.FULL:
        found.append("Recomputation is switched on in code: wrap each layer in deepspeed.checkpointing.checkpoint.")
    if "nvme" in {_OPTIMIZER_DEVICE.get(run.layout.offload), _PARAMETER_DEVICE.get(run.layout.offload)}:
        found.append(f"Set each nvme_path, here {NVME_PATH}, to a folder on the node's own disks.")
    if run.layout.tp > 1:
        found.append("AutoTP splits layers of known model classes; others need tensor_parallel.partition_config.")
    return tuple(found)


def _optimizer(run: PlannedRun) -> dict[str, Any]:
    optimizer, compression = run.workload.optimizer, run.workload.compression
    name, parameters = _OPTIMIZERS[optimizer.kind]
    if compression is not None:
        name, parameters = "OneBitAdam", {"freeze_step": compression.num_exact_steps, "comm_backend_name": "nccl"}
    rate = {} if optimizer.learning_rate is None else {"lr": optimizer.learning_rate}
    return {"type": name, "params": {**rate, **parameters}}


def _zero(run: PlannedRun) -> dict[str, Any]:
    config: dict[str, Any] = {"stage": run.layout.zero_stage, "contiguous_gradients": True}
    config["overlap_comm"] = run.workload.software.overlaps_data_parallel
    for name, devices in (("offload_optimizer", _OPTIMIZER_DEVICE), ("offload_param", _PARAMETER_DEVICE)):
        device = devices.get(run.layout.offload)
        if device is not None:
            config[name] = {"device": device, "pin_memory": True}
        if device == "nvme":
            config[name]["nvme_path"] = NVME_PATH
    return config


def _precision(run: PlannedRun) -> dict[str, Any]:
    precision = run.workload.precision
    config: dict[str, Any] = {}
    if precision.compute in {NumberFormat.BF16, NumberFormat.FP16}:
        config[precision.compute.value] = {"enabled": True}
    if _keeps_no_master(run):
        config["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    config["communication_data_type"] = precision.gradients.value
    if not _keeps_no_master(run):
        config["data_types"] = {"grad_accum_dtype": precision.gradients.value}
    return config


def _keeps_no_master(run: PlannedRun) -> bool:
    """Whether weights, gradients and state are all BF16, which DeepSpeed can."""
    precision, optimizer = run.workload.precision, run.workload.optimizer
    formats = {precision.compute, precision.parameters, precision.gradients, optimizer.state_format}
    return not optimizer.master_weights and formats == {NumberFormat.BF16} and run.layout.zero_stage > 0


def _formats(run: PlannedRun) -> object | None:
    precision, optimizer = run.workload.precision, run.workload.optimizer
    has_master = optimizer.master_weights or precision.parameters is NumberFormat.FP32
    if _keeps_no_master(run) or (has_master and optimizer.state_format is NumberFormat.FP32):
        return None
    return f"{optimizer.state_format.value} state, master_weights {optimizer.master_weights}"


def _expert_tp(run: PlannedRun) -> object | None:
    has_experts = run.workload.model is not None and run.workload.model.experts is not None
    return run.expert_tp if has_experts and run.expert_tp > 1 else None


def _lone_tp(run: PlannedRun) -> object | None:
    has_experts = run.workload.model is not None and run.workload.model.experts is not None
    return run.layout.tp if has_experts and run.layout.tp > 1 and run.layout.ep == 1 else None


def _offload_with_folding(run: PlannedRun) -> object | None:
    folds = run.layout.tp > 1 and run.layout.ep > 1
    return run.layout.offload.value if folds and run.layout.offload in _OPTIMIZER_DEVICE else None


def _activations(run: PlannedRun) -> object | None:
    offloads = run.layout.offload is Offload.ACTIVATIONS_HOST
    return run.layout.recompute.value if offloads and run.layout.recompute is not Recompute.FULL else None


def _offload_unsharded(run: PlannedRun) -> object | None:
    return 0 if run.layout.offload in _OPTIMIZER_DEVICE and run.layout.zero_stage == 0 else None


GAPS = (
    NOT_FOR_OTHERS,
    Gap(path="compression", why="DeepSpeed compresses as 1-bit Adam", used=compresses_unlike(CompressionKind.ONE_BIT)),
    Gap(path="layout.pp", why="DeepSpeed's stages are built in code (PipelineModule)", used=above_one("pp")),
    Gap(path="layout.cp", why="DeepSpeed has no context parallelism (Ulysses splits heads)", used=above_one("cp")),
    Gap(path="layout.expert_tp", why="DeepSpeed does not split an expert yet", used=_expert_tp),
    Gap(path="layout.tp", why="DeepSpeed splits a mixture of experts over tp only together with ep", used=_lone_tp),
    Gap(
        path="layout.offload", why="DeepSpeed does not offload where tp and ep go together", used=_offload_with_folding
    ),
    Gap(path="layout.zero_stage", why="DeepSpeed offloads sharded state, from ZeRO 1 on", used=_offload_unsharded),
    Gap(path="layout.recompute", why="DeepSpeed offloads the activations of recomputed layers", used=_activations),
    Gap(
        path="layout.recompute",
        why="DeepSpeed computes whole layers again",
        used=one_of(Recompute.MODULES, value=lambda run: run.layout.recompute),
    ),
    Gap(
        path="layout.shard_size",
        why="DeepSpeed shards over all replicas",
        used=lambda run: run.layout.shard_size if run.num_copies > 1 and run.layout.zero_stage else None,
    ),
    Gap(
        path="precision.compute",
        why="DeepSpeed's configuration has FP32, BF16 and FP16",
        used=one_of(NumberFormat.FP8, NumberFormat.TF32, value=lambda run: run.workload.precision.compute),
    ),
    Gap(
        path="optimizer",
        why="DeepSpeed keeps FP32 state with master weights, or everything in BF16 (ZeRO 1 and up)",
        used=_formats,
    ),
)
