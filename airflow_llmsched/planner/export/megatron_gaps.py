"""What Megatron Core's GPT, data parallelism and optimizer cannot express. Both front ends inherit it."""

from __future__ import annotations

from collections.abc import Callable

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, PipelineSchedule, Recompute
from airflow_llmsched.domain.workload import OptimizerKind, Positions, TrainingStage
from airflow_llmsched.planner.export.gaps import NOT_FOR_OTHERS, Gap, compresses_unlike, one_of
from airflow_llmsched.planner.export.megatron_core import MODULES
from airflow_llmsched.planner.export.planned import PlannedRun

_BIASES = {(True, True, True), (True, False, False), (False, False, False)}
"""Of queries, keys and values; of attention's output; of the MLP."""

_SHAPE = (
    ("norm_has_weight", True, "norms have weights"),
    ("final_norm", True, "last norm is always there"),
    ("num_norms_per_layer", 2, "layers have two norms"),
    ("qk_norm_full_width", False, "query and key norms are one head wide"),
    ("qk_norm_has_bias", False, "query and key norms have no biases of their own"),
    ("embedding_norm", False, "embeddings have no norm"),
    ("embedding_size", None, "embeddings are as wide as the layers"),
    ("head_bias", False, "output head has no bias"),
    ("parallel_block", False, "attention and MLP follow each other"),
    ("cross_attention_layers", (), "GPT attends to its own text only"),
    ("encoder", None, "GPT reads text only"),
)
"""Fields of a shape, the one value of each that Megatron Core's GPT has, and how to say so."""


def _needs_model(run: PlannedRun) -> object | None:
    return "none" if run.workload.model is None else None


def _differs(name: str, usual: object) -> Callable[[PlannedRun], object | None]:
    def used(run: PlannedRun) -> object | None:
        value = usual if run.workload.model is None else getattr(run.workload.model, name)
        if value == usual:
            return None
        return str(value) if isinstance(value, (bool, int, tuple)) else type(value).__name__

    return used


def _biases(run: PlannedRun) -> object | None:
    model = run.workload.model
    if model is None:
        return None
    biases = (model.attention_qkv_bias, model.attention_out_bias, model.mlp_bias)
    router_differs = model.experts is not None and model.experts.router_bias is not model.mlp_bias
    return str(biases) if biases not in _BIASES or router_differs else None


def _positions(run: PlannedRun) -> object | None:
    return None if run.workload.model is None else run.workload.model.positions


def _modules(run: PlannedRun) -> object | None:
    if run.layout.recompute is not Recompute.MODULES:
        return None
    unknown = [module.value for module in run.layout.recompute_modules if module not in MODULES]
    return ", ".join(unknown) or None


def _activation_offload(run: PlannedRun) -> object | None:
    if run.layout.offload is not Offload.ACTIVATIONS_HOST:
        return None
    mixes = run.layout.pp > 1 or run.layout.recompute is not Recompute.NONE
    return run.layout.offload.value if mixes else None


def _lean_optimizer(run: PlannedRun) -> object | None:
    kind, state_format = run.workload.optimizer.kind, run.workload.optimizer.state_format
    is_lean = state_format is not NumberFormat.FP32 or run.layout.offload is Offload.OPTIMIZER_HOST
    can = kind is OptimizerKind.ADAMW and run.layout.zero_stage > 0
    return f"{kind.value} with zero_stage {run.layout.zero_stage}" if is_lean and not can else None


def _no_master(run: PlannedRun) -> object | None:
    precision, optimizer = run.workload.precision, run.workload.optimizer
    has_one = optimizer.master_weights or precision.parameters is NumberFormat.FP32
    is_wide = precision.compute in {NumberFormat.FP32, NumberFormat.TF32}
    return None if has_one or is_wide else False


CORE_GAPS = (
    NOT_FOR_OTHERS,
    Gap(path="compression", why="Megatron Core does not compress gradients", used=compresses_unlike()),
    Gap(path="model", why="Megatron Core trains Transformers", used=_needs_model),
    *(
        Gap(path=f"model.{name}", why=f"Megatron Core's {words}", used=_differs(name, usual))
        for name, usual, words in _SHAPE
    ),
    Gap(
        path="model.positions",
        why="Megatron Core has rotary or learned positions, or none",
        used=one_of(Positions.ALIBI, value=_positions),
    ),
    Gap(
        path="model.biases",
        why="Megatron Core has biases in all linear layers, in queries, keys and values alone, or in none",
        used=_biases,
    ),
    Gap(
        path="layout.schedule",
        why="Megatron Core has 1F1B and interleaved schedules",
        used=one_of(PipelineSchedule.ZERO_BUBBLE, value=lambda run: run.layout.schedule),
    ),
    Gap(
        path="layout.offload",
        why="Megatron Core offloads optimizer state or activations, and to the host",
        used=one_of(
            Offload.OPTIMIZER_NVME,
            Offload.PARAMETERS_HOST,
            Offload.PARAMETERS_NVME,
            value=lambda run: run.layout.offload,
        ),
    ),
    Gap(
        path="layout.offload",
        why="Megatron Core offloads activations without pipeline stages and without recomputation only",
        used=_activation_offload,
    ),
    Gap(
        path="layout.recompute_modules",
        why=f"Megatron Core computes these modules again: {', '.join(sorted(MODULES.values()))}",
        used=_modules,
    ),
    Gap(
        path="optimizer",
        why="Megatron Core offloads or narrows the state of Adam, sharded (zero_stage 1 or more)",
        used=_lean_optimizer,
    ),
    Gap(
        path="optimizer.master_weights",
        why="Megatron Core keeps a master copy of 16-bit weights",
        used=_no_master,
    ),
    Gap(
        path="precision.compute",
        why="Megatron Core has no setting for TF32",
        used=one_of(NumberFormat.TF32, value=lambda run: run.workload.precision.compute),
    ),
)


def lora_gap(why: str) -> Gap:
    """Return the gap of a tool that trains whole models."""
    return Gap(path="stage", why=why, used=one_of(TrainingStage.LORA, value=lambda run: run.workload.stage))
