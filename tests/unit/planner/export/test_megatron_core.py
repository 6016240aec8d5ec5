from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import Offload, ParallelLayout, Recompute, RecomputeModule
from airflow_llmsched.domain.plan import LaunchSetting
from airflow_llmsched.domain.software import LossKernel, Software
from airflow_llmsched.domain.workload import ExpertShape, LatentAttention
from airflow_llmsched.planner.export import megatron_core as core
from tests.support.models import LLAMA31_8B, QWEN3_30B_A3B, QWEN25_7B
from tests.support.tool_options import planned

DEEPSEEK_V3 = replace(
    LLAMA31_8B, name="DeepSeek-V3", num_layers=61, hidden_size=7168, num_heads=128, num_kv_heads=128, head_size=192,
    ffn_hidden_size=18432, vocab_size=129280, num_predict_ahead_layers=1,
    latent=LatentAttention(kv_latent_size=512, rope_head_size=64, value_head_size=128, query_latent_size=1536),
    experts=ExpertShape(
        num_routed=256, num_active=8, expert_hidden_size=2048, num_shared=1, num_dense_layers_first=3,
        correction_bias=True,
    ),
)  # fmt: skip
"""From its config.json (huggingface.co, 2025)."""


def test_latent_attention_says_its_widths() -> None:
    found = core.model_settings(DEEPSEEK_V3)
    assert found["multi_latent_attention"]
    assert (found["q_lora_rank"], found["kv_lora_rank"]) == (1536, 512)
    assert (found["qk_head_dim"], found["qk_pos_emb_head_dim"], found["v_head_dim"]) == (128, 64, 128)
    assert found["moe_layer_freq"] == [0] * 3 + [1] * 58
    assert found["moe_shared_expert_intermediate_size"] == 2048
    assert found["moe_router_enable_expert_bias"]
    assert found["mtp_num_layers"] == 1


def test_full_attention_layers_become_a_pattern_in_which_1_is_a_window() -> None:
    model = replace(
        LLAMA31_8B, num_layers=6, attention_window_tokens=1024, full_attention_layers=(2, 5), attention_sinks=True
    )
    found = core.model_settings(model)
    assert found["window_size"] == (1023, 0)
    assert found["window_attn_skip_freq"] == [1, 1, 0, 1, 1, 0]
    assert found["softmax_type"] == "learnable"


def test_named_expert_layers_and_a_gated_shared_expert() -> None:
    experts = ExpertShape(
        num_routed=4, num_active=1, expert_hidden_size=64, num_shared=1, shared_hidden_size=256, shared_gate=True,
        layers=(1, 3),
    )  # fmt: skip
    found = core.model_settings(replace(QWEN3_30B_A3B, num_layers=4, experts=experts))
    assert found["moe_layer_freq"] == [0, 1, 0, 1]
    assert found["moe_shared_expert_intermediate_size"] == 256
    assert found["moe_shared_expert_gate"]


def test_biases_of_queries_keys_and_values_alone() -> None:
    found = core.model_settings(QWEN25_7B)
    assert (found["add_bias_linear"], found["add_qkv_bias"]) == (False, True)


@pytest.mark.parametrize(
    ("stage", "strategy"), [(0, None), (1, None), (2, "optim_grads"), (3, "optim_grads_params")]
)  # fmt: skip
def test_zero_stages_have_a_strategy(stage: int, strategy: str | None) -> None:
    found = core.replica_settings(planned(ParallelLayout(dp=8, zero_stage=stage)))
    assert found.get("data_parallel_sharding_strategy") == strategy
    assert found.get("use_distributed_optimizer", False) is (stage > 0)


@pytest.mark.parametrize(("stage", "group"), [(0, "dp"), (1, "dp_replica")])
def test_switches_add_up_for_the_group_that_all_reduces_gradients(stage: int, group: str) -> None:
    run = planned(ParallelLayout(dp=8, zero_stage=stage, shard_size=4 if stage else None))
    assert core.network_settings(run) == {}
    told = replace(run, launch_settings=(LaunchSetting(name="NCCL_COLLNET_ENABLE", value="1", why="it can"),))
    assert core.network_settings(told) == {"use_sharp": True, "sharp_enabled_group": group}


def test_modules_are_named_as_megatron_does() -> None:
    modules = (RecomputeModule.NORMS, RecomputeModule.CORE_ATTENTION)
    run = planned(ParallelLayout(dp=8, recompute=Recompute.MODULES, recompute_modules=modules))
    assert core.layout_settings(run)["recompute_modules"] == ["layernorm", "core_attn"]


def test_an_offloaded_optimizer_is_precision_aware() -> None:
    run = planned(ParallelLayout(dp=8, zero_stage=1, offload=Offload.OPTIMIZER_HOST))
    found = core.optimizer_settings(run)
    assert found["optimizer_cpu_offload"]
    assert found["use_precision_aware_optimizer"]


def test_the_number_of_device_connections_is_noted_where_it_matters() -> None:
    def noted(layout: ParallelLayout) -> str:
        return " ".join(core.core_notes(planned(layout)))

    assert "must be 1." in noted(ParallelLayout(dp=2, tp=4, zero_stage=1))
    assert "more than 1" in noted(ParallelLayout(dp=2, tp=4, zero_stage=3))
    assert "CONNECTIONS" not in noted(ParallelLayout(dp=8))


def test_nothing_is_dropped_out_unless_the_plan_holds_the_masks() -> None:
    assert core.software_settings(planned(ParallelLayout(dp=8))) == {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    assert core.software_settings(planned(ParallelLayout(dp=8), software=Software(has_dropout=True))) == {}


def test_what_the_plan_takes_the_software_to_overlap_and_fuse_is_switched_on() -> None:
    tuned = Software(
        loss=LossKernel.FUSED,
        overlaps_tensor_parallel=True,
        overlaps_expert_parallel=True,
        deduplicates_dispatch=True,
    )
    split = ParallelLayout(dp=8, tp=4, ep=8, expert_tp=1)
    assert (
        core.software_settings(planned(split, QWEN3_30B_A3B, software=tuned)).items()
        >= {
            "cross_entropy_loss_fusion": True,
            "tp_comm_overlap": True,
            "overlap_moe_expert_parallel_comm": True,
            "moe_token_dispatcher_type": "flex",
            "moe_flex_dispatcher_backend": "deepep",
        }.items()
    )
    alone = core.software_settings(planned(ParallelLayout(dp=8), software=tuned))
    assert set(alone) == {"attention_dropout", "hidden_dropout", "cross_entropy_loss_fusion"}


def test_gradients_that_are_not_overlapped_are_not_said_to_be() -> None:
    apart = planned(ParallelLayout(dp=8, zero_stage=1), software=Software(overlaps_data_parallel=False))
    assert core.replica_settings(apart) == {"use_distributed_optimizer": True}
