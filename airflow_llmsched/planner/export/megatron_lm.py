"""Arguments of Megatron-LM's ``pretrain_gpt.py``, named as in Megatron Core 0.19.2 (``training/arguments.py``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.workload import ModelShape, OptimizerKind
from airflow_llmsched.planner.export import megatron_core as core
from airflow_llmsched.planner.export.megatron_gaps import CORE_GAPS, lora_gap
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes
from airflow_llmsched.planner.export.text import arguments_text

GAPS = (*CORE_GAPS, lora_gap("Megatron-LM has no LoRA"))

_RENAMED = {"num_moe_experts": "num-experts", "lr_warmup_steps": "lr-warmup-iters"}
_FLAGS = {
    "gated_linear_unit": {True: ("--swiglu",), False: ()},
    "add_bias_linear": {True: (), False: ("--disable-bias-linear",)},
}
"""Fields whose flag has another name or sense than the field."""


def arguments(run: PlannedRun) -> tuple[str, ...]:
    """Return the argument list: layout, batch, model, precision, optimizer. Data and paths are the launch's own."""
    settings = core.layout_settings(run)
    if run.layout.vp > 1 and run.has_even_chunks:
        settings["num_virtual_stages_per_pipeline_rank"] = run.layout.vp
    settings |= core.replica_settings(run) | core.network_settings(run) | _batch(run)
    if run.layout.zero_stage > 1:
        settings |= {"ckpt_format": "fsdp_dtensor", "init_model_with_meta_device": True}
    if run.workload.model is not None:
        settings |= _model(run.workload.model, run) | core.software_settings(run)
    settings |= _precision(run) | core.optimizer_settings(run)
    if run.workload.optimizer.warmup_steps is not None and run.num_steps is not None:
        settings["lr_warmup_steps"] = run.workload.optimizer.warmup_steps
    if run.workload.optimizer.kind is OptimizerKind.SGD_MOMENTUM:
        settings["sgd_momentum"] = 0.9
    settings["seed"] = max(run.workload.seed, 1)  # Megatron-LM refuses 0
    return tuple(_arguments(settings))


def render(run: PlannedRun) -> str:
    """Return the argument list as text, an option a line."""
    return arguments_text(arguments(run))


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what the arguments leave to the reader."""
    return (*common_notes(run), *core.core_notes(run), "Add data, tokenizer and checkpoint arguments.")


def _batch(run: PlannedRun) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "micro_batch_size": run.layout.micro_batch_size,
        "global_batch_size": run.layout.global_batch_size,
    }
    if run.phase is not None:
        settings["seq_length"] = run.phase.sequence_length_tokens
    if run.num_steps is not None:
        settings["train_iters"] = run.num_steps
    return settings


def _model(model: ModelShape, run: PlannedRun) -> dict[str, Any]:
    settings = core.model_settings(model)
    if "num_query_groups" in settings:
        settings["group_query_attention"] = True
    longest = max((phase.sequence_length_tokens for phase in run.workload.batch), default=1)
    settings |= {
        "max_position_embeddings": max(model.max_positions, longest),
        "position_embedding_type": core.POSITIONS[model.positions],
        "vocab_size": model.vocab_size,
    }
    if not model.tied_embeddings:
        settings["untie_embeddings_and_output_weights"] = True
    return settings


def _precision(run: PlannedRun) -> dict[str, Any]:
    precision = run.workload.precision
    settings: dict[str, Any] = {}
    if precision.compute in {NumberFormat.BF16, NumberFormat.FP8}:
        settings["bf16"] = True
    if precision.compute is NumberFormat.FP16:
        settings["fp16"] = True
    if precision.compute is NumberFormat.FP8:
        settings["fp8_format"] = "hybrid"
    if precision.gradients is NumberFormat.BF16:
        settings["grad_reduce_in_bf16"] = True
    return settings


def _arguments(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if name in _FLAGS:
            yield from _FLAGS[name][value]
            continue
        option = f"--{_RENAMED.get(name, name).replace('_', '-')}"
        if value is True:
            yield option
        elif name.endswith("_freq"):
            yield from (option, _pattern(value))
        elif isinstance(value, tuple):
            yield from (option, ",".join(map(str, value)))
        elif isinstance(value, list):
            yield from (option, *map(str, value))
        elif value is not False:
            yield from (option, str(value))


def _pattern(values: list[int]) -> str:
    """A value for each layer, as the expression that Megatron-LM evaluates: ``[0]*3+[1]*58``."""
    return "+".join(f"[{value}]*{len(list(run))}" for value, run in groupby(values))
