"""A job configuration of torchtitan in TOML: batch, degrees, recomputation, precision, optimizer.

Names as in torchtitan 0.2.2, ``config/job_config.py``. Since 0.3 the same settings are options of the command line,
``--section.key value``.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.workload import (
    ExpertShape,
    LatentAttention,
    ModelShape,
    OptimizerKind,
    Positions,
    TrainingStage,
)
from airflow_llmsched.planner.export.accelerate import torn_shards
from airflow_llmsched.planner.export.gaps import NOT_FOR_OTHERS, Gap, compresses_unlike, one_of
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes
from airflow_llmsched.planner.export.text import comments, toml_text

_LLAMA3_8B = ModelShape(
    name="", num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_size=128, ffn_hidden_size=14336,
    vocab_size=128256,
)  # fmt: skip
_QWEN3_8B = ModelShape(
    name="", num_layers=36, hidden_size=4096, num_heads=32, num_kv_heads=8, head_size=128, ffn_hidden_size=12288,
    vocab_size=151936, qk_norm=True,
)  # fmt: skip
_LATENT = LatentAttention(kv_latent_size=512, rope_head_size=64, value_head_size=128, query_latent_size=1536)
_DEEPSEEK_16B = ModelShape(
    name="", num_layers=27, hidden_size=2048, num_heads=16, num_kv_heads=16, head_size=192, ffn_hidden_size=10944,
    vocab_size=102400, latent=replace(_LATENT, query_latent_size=None),
    experts=ExpertShape(num_routed=64, num_active=6, expert_hidden_size=1408, num_shared=2, num_dense_layers_first=1),
)  # fmt: skip
FLAVORS = MappingProxyType({
    _LLAMA3_8B: ("llama3", "8B"),
    replace(_LLAMA3_8B, num_layers=80, hidden_size=8192, num_heads=64, ffn_hidden_size=28672): ("llama3", "70B"),
    replace(_LLAMA3_8B, num_layers=126, hidden_size=16384, num_heads=128, ffn_hidden_size=53248): ("llama3", "405B"),
    replace(
        _QWEN3_8B, num_layers=28, hidden_size=1024, num_heads=16, ffn_hidden_size=3072, tied_embeddings=True
    ): ("qwen3", "0.6B"),
    replace(
        _QWEN3_8B, num_layers=28, hidden_size=2048, num_heads=16, ffn_hidden_size=6144, tied_embeddings=True
    ): ("qwen3", "1.7B"),
    replace(_QWEN3_8B, hidden_size=2560, ffn_hidden_size=9728, tied_embeddings=True): ("qwen3", "4B"),
    _QWEN3_8B: ("qwen3", "8B"),
    replace(_QWEN3_8B, num_layers=40, hidden_size=5120, num_heads=40, ffn_hidden_size=17408): ("qwen3", "14B"),
    replace(_QWEN3_8B, num_layers=64, hidden_size=5120, num_heads=64, ffn_hidden_size=25600): ("qwen3", "32B"),
    replace(
        _QWEN3_8B, num_layers=48, hidden_size=2048, num_kv_heads=4, ffn_hidden_size=6144,
        experts=ExpertShape(num_routed=128, num_active=8, expert_hidden_size=768),
    ): ("qwen3", "30B-A3B"),
    replace(
        _QWEN3_8B, num_layers=94, num_heads=64, num_kv_heads=4,
        experts=ExpertShape(num_routed=128, num_active=8, expert_hidden_size=1536),
    ): ("qwen3", "235B-A22B"),
    _DEEPSEEK_16B: ("deepseek_v3", "16B"),
    replace(
        _DEEPSEEK_16B, num_layers=60, hidden_size=5120, num_heads=128, num_kv_heads=128, ffn_hidden_size=12288,
        latent=_LATENT,
        experts=ExpertShape(
            num_routed=160, num_active=6, expert_hidden_size=1536, num_shared=2, num_dense_layers_first=1
        ),
    ): ("deepseek_v3", "236B"),
    replace(
        _DEEPSEEK_16B, num_layers=61, hidden_size=7168, num_heads=128, num_kv_heads=128, ffn_hidden_size=18432,
        vocab_size=129280, latent=_LATENT,
        experts=ExpertShape(
            num_routed=256, num_active=8, expert_hidden_size=2048, num_shared=1, num_dense_layers_first=3
        ),
    ): ("deepseek_v3", "671B"),
})  # fmt: skip
"""Shapes that torchtitan 0.2.2 registers (``models/*/__init__.py``), by model and flavor."""

SCHEDULES = {PipelineSchedule.ONE_F_ONE_B: "1F1B", PipelineSchedule.INTERLEAVED: "Interleaved1F1B"}
_OPTIMIZER = "AdamW"
_BY_ITSELF = frozenset({RecomputeModule.CORE_ATTENTION})
"""What torchtitan's attention computes again anyway: it is fused."""
_BY_OP = RecomputeModule.EVERY_SECOND_PRODUCT


def settings(run: PlannedRun) -> dict[str, dict[str, Any]]:
    """Return the sections of the file."""
    name, flavor = _flavor(run.workload.model)
    return {
        "job": {"description": run.workload.name},
        "model": {"name": name, "flavor": flavor, **_converters(run)},
        "optimizer": {"name": _OPTIMIZER, **_given("lr", run.workload.optimizer.learning_rate)},
        "lr_scheduler": _given("warmup_steps", run.workload.optimizer.warmup_steps),
        "training": _training(run),
        "parallelism": _parallelism(run),
        "activation_checkpoint": _checkpointing(run),
        "debug": {"seed": run.workload.seed},
    }


def render(run: PlannedRun) -> str:
    """Return the file, with what it leaves open as comments."""
    return comments(notes(run)) + toml_text(settings(run))


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what is not in the file."""
    found = [*common_notes(run)]
    name, flavor = _flavor(run.workload.model)
    if (name, flavor) not in FLAVORS.values():
        found.append(
            f"torchtitan registers no flavor of this shape: add {flavor!r} to torchtitan/models/{name}. Until then it "
            "refuses to start."
        )
    found.append("Add the tokenizer's path, data and checkpoints.")
    return tuple(found)


def _flavor(model: ModelShape | None) -> tuple[str, str]:
    if model is None:
        return "", ""
    experts = model.experts and replace(model.experts, correction_bias=False)  # torchtitan balances all by such a bias
    registered = FLAVORS.get(replace(model, name="", experts=experts))
    if registered is not None:
        return registered
    if model.latent is not None:
        return "deepseek_v3", model.name
    return ("qwen3" if model.qk_norm else "llama3"), model.name


def _converters(run: PlannedRun) -> dict[str, Any]:
    is_float8 = run.workload.precision.compute is NumberFormat.FP8
    return {"converters": ["quantize.linear.float8"]} if is_float8 else {}


def _given(key: str, value: object) -> dict[str, Any]:
    return {} if value is None else {key: value}


def _checkpointing(run: PlannedRun) -> dict[str, Any]:
    if run.layout.recompute is Recompute.FULL:
        return {"mode": "full"}
    if run.layout.recompute is Recompute.MODULES and _BY_OP in run.layout.recompute_modules:
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": "none"}


def _training(run: PlannedRun) -> dict[str, Any]:
    layout = run.layout
    # A pipeline splits the local batch into its micro-batches; without one, gradients are accumulated over them.
    local = layout.micro_batch_size * (layout.num_micro_batches if layout.pp > 1 else 1)
    return {
        "local_batch_size": local,
        "global_batch_size": layout.global_batch_size,
        **_given("seq_len", run.phase and run.phase.sequence_length_tokens),
        **_given("steps", run.num_steps),
        "dtype": "bfloat16" if _is_all_half(run) else "float32",
        "mixed_precision_param": "float32" if run.workload.precision.compute is NumberFormat.FP32 else "bfloat16",
        "mixed_precision_reduce": "float32",
        "enable_cpu_offload": layout.offload is Offload.PARAMETERS_HOST,
    }


def _parallelism(run: PlannedRun) -> dict[str, Any]:
    layout = run.layout
    is_sharded = layout.zero_stage > 0
    degrees: dict[str, Any] = {
        "data_parallel_replicate_degree": run.num_copies if is_sharded else layout.dp,
        "data_parallel_shard_degree": run.num_sharing // layout.cp if is_sharded else 1,
        # Weights that stay gathered after the forward pass leave gradients and optimizer state sharded: ZeRO 2.
        "fsdp_reshard_after_forward": "always" if layout.zero_stage == 3 else "never",
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
    }
    if layout.pp > 1 and run.workload.model is not None:
        degrees |= {
            "pipeline_parallel_schedule": SCHEDULES[_schedule(run)],
            "pipeline_parallel_microbatch_size": layout.micro_batch_size,
            **_stages(run),
        }
    if run.workload.model is not None and run.workload.model.experts is not None:
        degrees |= {"expert_parallel_degree": layout.ep, "expert_tensor_parallel_degree": run.expert_tp}
    return degrees


def _stages(run: PlannedRun) -> dict[str, Any]:
    if run.has_even_chunks:
        return {
            "pipeline_parallel_layers_per_stage": len(run.chunks[0]),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    names = [[f"layers.{layer}" for layer in chunk] for chunk in run.chunks]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "output"]
    return {"module_fqns_per_model_part": names}


def _schedule(run: PlannedRun) -> PipelineSchedule:
    return PipelineSchedule.INTERLEAVED if run.layout.vp > 1 else run.layout.schedule


def _is_all_half(run: PlannedRun) -> bool:
    optimizer, precision = run.workload.optimizer, run.workload.precision
    formats = {precision.compute, precision.parameters, optimizer.state_format}
    return not optimizer.master_weights and formats == {NumberFormat.BF16}


def _formats(run: PlannedRun) -> object | None:
    optimizer, precision = run.workload.optimizer, run.workload.precision
    has_master = optimizer.master_weights or precision.parameters is NumberFormat.FP32
    if _is_all_half(run) or (has_master and optimizer.state_format is NumberFormat.FP32):
        return None
    return f"{optimizer.state_format.value} state, master_weights {optimizer.master_weights}"


def _unsharded(run: PlannedRun) -> object | None:
    layout = run.layout
    return 0 if layout.zero_stage == 0 and layout.tp * layout.cp * layout.pp * layout.ep > 1 else None


def _expert_tp(run: PlannedRun) -> object | None:
    return run.expert_tp if run.layout.ep > 1 and run.expert_tp not in {1, run.layout.tp} else None


def _expert_groups(run: PlannedRun) -> object | None:
    return run.layout.ep if run.num_sharing * run.layout.tp % (run.layout.ep * run.expert_tp) else None


def _modules(run: PlannedRun) -> object | None:
    wanted = set(run.layout.recompute_modules) - _BY_ITSELF
    if run.layout.recompute is not Recompute.MODULES or wanted <= {_BY_OP}:
        return None
    return ", ".join(module.value for module in run.layout.recompute_modules)


def _architecture(run: PlannedRun) -> object | None:
    """Name what of the model torchtitan's Llama, Qwen and DeepSeek models do not have; other flavors can be added."""
    model = run.workload.model
    if model is None:
        return "none"
    wanted = (model.positions, model.gated_mlp, model.norm_has_weight, model.num_norms_per_layer)
    has_biases = model.norm_has_bias or model.attention_qkv_bias or model.attention_out_bias or model.mlp_bias
    odd = model.parallel_block or model.attention_window_tokens or model.encoder or model.qk_norm_full_width
    odd = odd or model.attention_sinks or model.num_predict_ahead_layers or model.embedding_size or model.head_bias
    return model.name if wanted != (Positions.ROTARY, True, True, 2) or has_biases or odd else None


GAPS = (
    NOT_FOR_OTHERS,
    Gap(path="compression", why="torchtitan does not compress gradients", used=compresses_unlike()),
    Gap(path="model", why="torchtitan's models are those of Llama, Qwen 3 and DeepSeek V3", used=_architecture),
    Gap(
        path="stage",
        why="torchtitan 0.2 has no LoRA",
        used=one_of(TrainingStage.LORA, value=lambda run: run.workload.stage),
    ),
    Gap(
        path="layout.zero_stage",
        why="torchtitan shards gradients and optimizer state together (ZeRO 2 or 3)",
        used=one_of(1, value=lambda run: run.layout.zero_stage),
    ),
    Gap(path="layout.zero_stage", why="torchtitan splits a model only under FSDP (ZeRO 2 or 3)", used=_unsharded),
    Gap(path="layout.shard_size", why="FSDP shards over whole context-parallel groups", used=torn_shards),
    Gap(path="layout.expert_tp", why="torchtitan splits experts as it splits layers, or not at all", used=_expert_tp),
    Gap(path="layout.ep", why="torchtitan's expert groups lie within a group that shards", used=_expert_groups),
    Gap(
        path="layout.schedule",
        why="torchtitan's zero-bubble schedules need two or more chunks a stage",
        used=one_of(PipelineSchedule.ZERO_BUBBLE, value=lambda run: run.layout.schedule),
    ),
    Gap(
        path="layout.sequence_parallel",
        why="torchtitan 0.2 always splits norms where it splits layers",
        used=lambda run: False if run.layout.tp > 1 and not run.layout.sequence_parallel else None,
    ),
    Gap(
        path="layout.offload",
        why="torchtitan offloads parameters, gradients and optimizer state to the host together, and nothing else",
        used=one_of(
            Offload.OPTIMIZER_HOST,
            Offload.OPTIMIZER_NVME,
            Offload.PARAMETERS_NVME,
            Offload.ACTIVATIONS_HOST,
            value=lambda run: run.layout.offload,
        ),
    ),
    Gap(
        path="layout.recompute_modules",
        why="torchtitan computes whole layers again, or every second product",
        used=_modules,
    ),
    Gap(
        path="precision.compute",
        why="torchtitan computes in FP32, BF16 or FP8",
        used=one_of(NumberFormat.FP16, NumberFormat.TF32, value=lambda run: run.workload.precision.compute),
    ),
    Gap(
        path="optimizer",
        why="torchtitan keeps weights and state in FP32, or both in BF16 without master weights",
        used=_formats,
    ),
    Gap(
        path="optimizer.kind",
        why="torchtitan has AdamW",
        used=one_of(OptimizerKind.SGD, OptimizerKind.SGD_MOMENTUM, value=lambda run: run.workload.optimizer.kind),
    ),
)
