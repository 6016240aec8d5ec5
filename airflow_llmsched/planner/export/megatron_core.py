"""What Megatron-LM and Megatron-Bridge share: Megatron Core's configuration of model, layout and precision.

Field names as in Megatron Core 0.19.2: ``TransformerConfig``, ``ModelParallelConfig``, ``OptimizerConfig``
and ``DistributedDataParallelConfig``. Both front ends take their names from these classes.
"""

from __future__ import annotations

from typing import Any

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, Recompute, RecomputeModule
from airflow_llmsched.domain.software import LossKernel
from airflow_llmsched.domain.workload import ExpertShape, ModelShape, OptimizerKind, Positions
from airflow_llmsched.planner.export.planned import PlannedRun

POSITIONS = {Positions.ROTARY: "rope", Positions.LEARNED: "learned_absolute", Positions.NONE: "none"}
SHARDING = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Sharding strategies of Megatron FSDP, by ZeRO stage."""
MODULES = {
    RecomputeModule.CORE_ATTENTION: "core_attn",
    RecomputeModule.NORMS: "layernorm",
    RecomputeModule.MLP: "mlp",
}
OPTIMIZERS = {OptimizerKind.ADAMW: "adam", OptimizerKind.SGD_MOMENTUM: "sgd", OptimizerKind.SGD: "sgd"}


def layout_settings(run: PlannedRun) -> dict[str, Any]:
    """Return the degrees, what is computed again and what is offloaded, as fields of the model's configuration."""
    layout = run.layout
    settings: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "sequence_parallel": run.uses_sequence_parallel,
    }
    if run.workload.model is not None and run.workload.model.experts is not None:
        settings["expert_tensor_parallel_size"] = run.expert_tp
    if not run.has_even_chunks:
        settings["pipeline_model_parallel_layout"] = _chunk_pattern(run)
    settings |= _recompute(run)
    if layout.offload is Offload.ACTIVATIONS_HOST and run.workload.model is not None:
        # The last layer's activations are used at once: Megatron Core refuses to offload them.
        settings["cpu_offloading_num_layers"] = run.workload.model.num_layers - 1
    return settings


def _chunk_pattern(run: PlannedRun) -> str:
    """Return uneven chunks in Megatron Core's letters: embedding, transformer layers, predictions ahead, loss."""
    chunks = [f"t*{len(chunk)}" for chunk in run.chunks]
    num_ahead = run.workload.model.num_predict_ahead_layers if run.workload.model is not None else 0
    chunks[0] = f"E{chunks[0]}"
    chunks[-1] += "m" * num_ahead + "L"
    return "|".join(chunks)


def model_settings(model: ModelShape) -> dict[str, Any]:
    """Return the model's shape as fields of its configuration, defaults of Megatron Core left out."""
    settings: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_heads,
        "kv_channels": model.head_size,
    }
    if model.num_kv_heads < model.num_heads:
        settings["num_query_groups"] = model.num_kv_heads
    settings["normalization"] = "LayerNorm" if model.norm_has_bias else "RMSNorm"
    settings["gated_linear_unit"] = model.gated_mlp
    settings["add_bias_linear"] = model.mlp_bias
    if model.attention_qkv_bias and not model.mlp_bias:
        settings["add_qkv_bias"] = True
    if model.qk_norm:
        settings["qk_layernorm"] = True
    if model.attention_sinks:
        settings["softmax_type"] = "learnable"
    if model.num_predict_ahead_layers:
        settings["mtp_num_layers"] = model.num_predict_ahead_layers
    return settings | _window(model) | _latent(model) | _experts(model)


def _window(model: ModelShape) -> dict[str, Any]:
    if model.attention_window_tokens is None:
        return {}
    # A token sees itself and the ``window - 1`` before it; the second number counts those after it.
    settings: dict[str, Any] = {"window_size": (model.attention_window_tokens - 1, 0)}
    if model.full_attention_layers:
        full = set(model.full_attention_layers)
        settings["window_attn_skip_freq"] = [int(layer not in full) for layer in range(model.num_layers)]
    return settings


def _latent(model: ModelShape) -> dict[str, Any]:
    latent = model.latent
    if latent is None:
        return {}
    settings: dict[str, Any] = {
        "multi_latent_attention": True,
        "kv_lora_rank": latent.kv_latent_size,
        "qk_head_dim": model.head_size - latent.rope_head_size,
        "qk_pos_emb_head_dim": latent.rope_head_size,
        "v_head_dim": latent.value_head_size,
    }
    if latent.query_latent_size is not None:
        settings["q_lora_rank"] = latent.query_latent_size
    return settings


def _experts(model: ModelShape) -> dict[str, Any]:
    experts = model.experts
    if experts is None:
        return {}
    settings: dict[str, Any] = {
        "num_moe_experts": experts.num_routed,
        "moe_router_topk": experts.num_active,
        "moe_ffn_hidden_size": experts.expert_hidden_size,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
    }
    has_experts = [int(layer in _expert_layers(model, experts)) for layer in range(model.num_layers)]
    if not all(has_experts):
        settings["moe_layer_freq"] = has_experts
    if experts.num_shared:
        width = experts.shared_hidden_size or experts.expert_hidden_size
        settings["moe_shared_expert_intermediate_size"] = experts.num_shared * width
    if experts.shared_gate:
        settings["moe_shared_expert_gate"] = True
    if experts.correction_bias:
        settings["moe_router_score_function"] = "sigmoid"
        settings["moe_router_enable_expert_bias"] = True
    return settings


def _expert_layers(model: ModelShape, experts: ExpertShape) -> frozenset[int]:
    return frozenset(
        range(experts.num_dense_layers_first, model.num_layers) if experts.layers is None else experts.layers
    )


def _recompute(run: PlannedRun) -> dict[str, Any]:
    match run.layout.recompute:
        case Recompute.FULL:
            return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        case Recompute.SELECTIVE:
            return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
        case Recompute.MODULES:
            modules = [MODULES[module] for module in run.layout.recompute_modules]
            return {"recompute_granularity": "selective", "recompute_modules": modules}
    return {}


def replica_settings(run: PlannedRun) -> dict[str, Any]:
    """Return how replicas share out state, as fields of the data-parallel configuration."""
    stage = run.layout.zero_stage
    overlaps = run.workload.software.overlaps_data_parallel
    settings: dict[str, Any] = {"overlap_grad_reduce": True} if overlaps else {}
    if stage:
        settings["use_distributed_optimizer"] = True
        if overlaps:
            settings["overlap_param_gather"] = True
        if run.num_copies > 1:
            settings["num_distributed_optimizer_instances"] = run.num_copies
    if stage > 1:
        settings |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": SHARDING[stage]}
    return settings


def software_settings(run: PlannedRun) -> dict[str, Any]:
    """Return what the plan takes the software to do, as fields of the model's configuration.

    Megatron Core has dropout unless told otherwise, and its masks would take memory that was not planned.
    """
    software, model = run.workload.software, run.workload.model
    settings: dict[str, Any] = {}
    if not software.has_dropout:
        settings |= {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    if software.loss is LossKernel.FUSED:
        settings["cross_entropy_loss_fusion"] = True
    if software.overlaps_tensor_parallel and run.uses_sequence_parallel:
        settings["tp_comm_overlap"] = True
    if model is not None and model.experts is not None and run.layout.ep > 1:
        if software.overlaps_expert_parallel:
            settings["overlap_moe_expert_parallel_comm"] = True
        if software.deduplicates_dispatch:
            settings |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    return settings


def network_settings(run: PlannedRun) -> dict[str, Any]:
    """Return which groups the network's switches add up for, as fields of the distributed configuration.

    Switches hold few such groups: Megatron keeps them to one kind of its own.
    """
    if not run.network_adds_up:
        return {}
    return {"use_sharp": True, "sharp_enabled_group": "dp_replica" if run.layout.zero_stage else "dp"}


def optimizer_settings(run: PlannedRun) -> dict[str, Any]:
    """Return the optimizer and the formats of its state, as fields of its configuration."""
    optimizer = run.workload.optimizer
    settings: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer.kind]}
    if optimizer.kind is OptimizerKind.SGD:
        settings["sgd_momentum"] = 0.0
    if optimizer.learning_rate is not None:
        settings["lr"] = optimizer.learning_rate
    offloads = run.layout.offload is Offload.OPTIMIZER_HOST
    if offloads or optimizer.state_format is not NumberFormat.FP32:
        settings["use_precision_aware_optimizer"] = True
    if optimizer.state_format is not NumberFormat.FP32:
        settings["exp_avg_dtype"] = settings["exp_avg_sq_dtype"] = optimizer.state_format.value
    if offloads:
        settings["optimizer_cpu_offload"] = True
    return settings


def core_notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what neither front end is told by a plan."""
    found = []
    if run.layout.tp > 1 or run.layout.cp > 1:
        wanted = "more than 1, or unset" if run.layout.zero_stage > 1 else "1"
        found.append(f"On accelerators before Blackwell, CUDA_DEVICE_MAX_CONNECTIONS must be {wanted}.")
    if run.workload.model is not None:
        found.append(
            "The shape holds what costs memory or time. Rotary base, norm epsilon and the kind of activation are "
            "the model's own: add them."
        )
    return tuple(found)
