"""Keys of published configs that change neither the number of parameters nor the work of a training step."""

from __future__ import annotations

import re
from typing import Any

_BOOKKEEPING = """
    _name_or_path architectures auto_map chunk_size_feed_forward dtype finetuning_task id2label is_decoder
    label2id model_type output_attentions output_hidden_states problem_type return_dict
    task_specific_params torch_dtype transformers_version use_cache gradient_checkpointing unsloth_version
    unsloth_fixed use_return_dict tokenizer_class torchscript cache_implementation name_or_path base_model_name_or_path
    pipeline_tag is_causal onnx max_length tokenizer_name tokenizer_type prefix is_llama_config max_model_len
    onnx_safe transformers.js_config
"""
_TOKENS = """
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id eod_token_id im_start_id im_end_id pad_id
    decoder_start_token_id image_token_id image_token_index video_token_id video_token_index audio_token_id
    vision_start_token_id vision_end_token_id boi_token_index eoi_token_index boi_token_id eoi_token_id
    vision_token_id ignore_index image_seq_length image_seq_len text_token_id mm_tokens_per_image image_grid_pinpoints
    vision_feature_select_strategy projector_hidden_act adapter_layer_norm_eps alignment_activation_fn
"""
_FUNCTIONS = """
    activation activation_function activation_type hidden_act hidden_activation swiglu_alpha swiglu_limit
    norm_eps norm_epsilon layer_norm_eps layer_norm_epsilon layernorm_epsilon rms_norm_eps attention_multiplier
    attn_temperature_tuning attn_scale floor_scale clip_qkv query_pre_attn_scalar attn_logit_softcapping
    final_logit_softcapping embedding_multiplier logits_scaling logit_scale residual_multiplier scale_emb scale_depth
    dim_model_base scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn
    attention_softmax_in_fp32 scale_attention_softmax_in_fp32 apply_query_key_layer_scaling fp32_residual_connection
    apply_residual_connection_post_layernorm slow_but_exact pretraining_tp softmax_scale attn_impl alibi_bias_max
    alibi_scale attn_implementation use_flash_attn use_flash_attention attn_pdrop softmax_precision norm_type
    layernorm_compute_dtype scale_embedding embedding_fraction layernorm_full_attention_beta
    layernorm_linear_attention_beta layernorm_mlp_beta
"""
_POSITIONS = """
    max_position_embeddings max_sequence_length max_seq_len n_ctx seq_length seq_len model_max_length
    original_max_position_embeddings initial_context_length rope_scaling rope_theta rope_parameters rope_ratio
    rope_local_base_freq rope_interleave rope_pct rotary_dim rotary_pct rotary_emb_base rotary_emb_fraction
    rotary_emb_scale_base partial_rotary_factor rotary no_rope_layers no_rope_layer_interval
    rope_type rope_mscale rope_attention_scaling mrope_section use_mrope
    rope_percent rope_interleaved use_dynamic_ntk use_logn_attn interpolate_factor full_attn_mod compression_ratio
"""
_ROUTING = """
    aux_loss_alpha seq_aux scoring_func routed_scaling_factor n_group topk_group norm_topk_prob ep_size
    output_router_logits router_aux_loss_coef router_jitter_noise input_jitter_noise router_z_loss_coef
    moe_gate moe_norm_min moe_capacity moe_aux_loss_lambda router_dtype moe_use_aux_free
    use_grouped_topk
"""
_TRAINING = """
    attention_dropout attn_dropout attention_dropout_prob classifier_dropout dropout embd_pdrop emb_dropout_prob
    attn_dropout_prob embed_dropout emb_pdrop embedding_dropout hidden_dropout hidden_dropout_prob
    activation_dropout resid_dropout resid_pdrop residual_dropout layerdrop drop_path_rate
    initializer_factor initializer_range init_std init_method init_device init_config initializer fp16 bf16 fp32
    use_cache_kernel use_cache_quantization quantization_bit softmax_in_fp32 pre_allocate_kv_cache
    use_softmax_v2 quantization quantization_config compression_config pre_seq_len
    prefix_projection verbose attention_probs_dropout_prob
"""
_GENERATION = """
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values
    repetition_penalty return_dict_in_generate suppress_tokens temperature tf_legacy_loss top_k top_p typical_p
    use_bfloat16
"""
_NEUTRAL_WHEN_OFF = frozenset(
    {"add_cross_attention", "cross_attention_hidden_size", "is_encoder_decoder", "pruned_heads", "tie_encoder_decoder"}
)
"""What older versions wrote into every nested config, and what says something only when it is on."""
_NEUTRAL = frozenset(
    word
    for text in (_BOOKKEEPING, _TOKENS, _FUNCTIONS, _POSITIONS, _ROUTING, _TRAINING, _GENERATION)
    for word in text.split()
)
_PATTERN = re.compile(r"_.*|summary_.*")


def is_neutral(key: str, value: Any = None) -> bool:
    """Whether ``key`` with that value says nothing about shape or work in any architecture known here."""
    return key in _NEUTRAL or _PATTERN.fullmatch(key) is not None or (key in _NEUTRAL_WHEN_OFF and not value)
