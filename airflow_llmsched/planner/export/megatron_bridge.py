"""Overrides of a Megatron-Bridge recipe, in Hydra's ``key=value`` form.

Names as in Megatron-Bridge 0.6.2 (``training/config.py``, ``models/gpt_provider.py``) on Megatron Core.
"""

from __future__ import annotations

from typing import Any

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload
from airflow_llmsched.domain.workload import LoraTarget, OptimizerKind, Positions, TrainingStage
from airflow_llmsched.planner.export import megatron_core as core
from airflow_llmsched.planner.export.gaps import Gap
from airflow_llmsched.planner.export.megatron_gaps import CORE_GAPS
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes

MIXED_PRECISION = {
    NumberFormat.BF16: "bf16_mixed",
    NumberFormat.FP16: "fp16_mixed",
    NumberFormat.FP8: "bf16_with_fp8_delayed_scaling_mixed",
}

_ADAPTED = {
    "linear_qkv": {LoraTarget.QUERY, LoraTarget.KEY, LoraTarget.VALUE},
    "linear_proj": {LoraTarget.ATTENTION_OUT},
    "linear_fc1": {LoraTarget.GATE, LoraTarget.UP},
    "linear_fc2": {LoraTarget.DOWN},
}
"""Megatron Core's linear layers, by the matrices that are one in each. Those of experts have the MLP's names."""


def overrides(run: PlannedRun) -> dict[str, Any]:
    """Return what a recipe's values are replaced by, by dotted key."""
    found = {f"model.{name}": value for name, value in _model(run).items()}
    replicas = core.replica_settings(run)
    found |= {f"ddp.{name}": value for name, value in replicas.items()}
    found["optimizer.use_distributed_optimizer"] = run.layout.zero_stage > 0
    if run.layout.zero_stage > 1:
        found |= {"dist.use_megatron_fsdp": True, "checkpoint.ckpt_format": "fsdp_dtensor"}
    found |= {f"dist.{name}": value for name, value in core.network_settings(run).items()}
    found |= {f"optimizer.{name}": value for name, value in core.optimizer_settings(run).items()}
    if run.workload.optimizer.kind is OptimizerKind.SGD_MOMENTUM:
        found["optimizer.sgd_momentum"] = 0.9
    found |= _batch(run)
    compute = run.workload.precision.compute
    if compute in MIXED_PRECISION:
        found["mixed_precision"] = MIXED_PRECISION[compute]
    if run.workload.stage is TrainingStage.LORA:
        found |= _adapters(run)
    found["rng.seed"] = max(run.workload.seed, 1)  # Megatron refuses 0
    return found


def render(run: PlannedRun) -> str:
    """Return one override a line."""
    return "".join(f"{key}={_value(value)}\n" for key, value in overrides(run).items())


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what the recipe must bring."""
    found = [*common_notes(run), *core.core_notes(run)]
    found.append("Take a recipe of the model's family: functions, such as its activation, cannot be overridden.")
    if run.workload.stage is TrainingStage.LORA:
        found.append("The recipe must be one with LoRA: peft.dim changes its rank and switches nothing on.")
    return tuple(found)


def _adapters(run: PlannedRun) -> dict[str, Any]:
    targets = set(run.workload.lora_targets)
    found: dict[str, Any] = {"peft.target_modules": [name for name, parts in _ADAPTED.items() if parts & targets]}
    if run.workload.lora_rank is not None:
        found["peft.dim"] = run.workload.lora_rank
    return found


def _model(run: PlannedRun) -> dict[str, Any]:
    settings = core.layout_settings(run)
    if run.layout.offload is Offload.ACTIVATIONS_HOST:
        settings["cpu_offloading"] = True
    settings["virtual_pipeline_model_parallel_size"] = run.layout.vp if run.layout.vp > 1 else None
    model = run.workload.model
    if model is None:
        return settings
    settings |= core.model_settings(model) | {
        "vocab_size": model.vocab_size,
        "position_embedding_type": core.POSITIONS[model.positions],
        "share_embeddings_and_output_weights": model.tied_embeddings,
    }
    if run.phase is not None:
        settings["seq_length"] = run.phase.sequence_length_tokens
    return settings | core.software_settings(run)


def _batch(run: PlannedRun) -> dict[str, Any]:
    found: dict[str, Any] = {
        "train.micro_batch_size": run.layout.micro_batch_size,
        "train.global_batch_size": run.layout.global_batch_size,
    }
    if run.num_steps is not None:
        found["train.train_iters"] = run.num_steps
        if run.workload.optimizer.warmup_steps is not None:
            found["scheduler.lr_warmup_iters"] = run.workload.optimizer.warmup_steps
    if run.phase is not None:
        found["dataset.seq_length"] = run.phase.sequence_length_tokens
    return found


def _value(value: Any) -> str:
    """A value as Hydra's grammar has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_value, value))}]"
    return str(value)


def _no_positions(run: PlannedRun) -> object | None:
    is_without = run.workload.model is not None and run.workload.model.positions is Positions.NONE
    return Positions.NONE.value if is_without else None


def _partial_targets(run: PlannedRun) -> object | None:
    """Name targets of which Megatron Core cannot adapt one without the other."""
    if run.workload.stage is not TrainingStage.LORA or run.workload.model is None:
        return None
    model, targets = run.workload.model, set(run.workload.lora_targets)
    together = [*_ADAPTED.values()]
    if not model.gated_mlp:
        together[2] = {LoraTarget.UP}
    if model.experts is not None:
        together.append({LoraTarget.UP, LoraTarget.DOWN, LoraTarget.EXPERTS})
    torn = [parts for parts in together if parts & targets and not parts <= targets]
    beyond = {LoraTarget.OUTPUT_HEAD} & targets
    return ", ".join(sorted({*beyond, *(target for parts in torn for target in parts & targets)})) or None


GAPS = (
    *CORE_GAPS,
    Gap(
        path="lora.targets",
        why="Megatron Core adapts queries, keys and values together, gate and up, and experts with the MLP's matrices",
        used=_partial_targets,
    ),
    Gap(path="model.positions", why="Megatron-Bridge's GPT has rotary or learned positions", used=_no_positions),
)
