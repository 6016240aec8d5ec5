"""Explicit shapes: sizes left out follow their rule, contradictions are named."""

from __future__ import annotations

import pytest

from airflow_llmsched.domain.workload import EncoderShape, ExpertShape, LatentAttention, ModelShape, Positions
from airflow_llmsched.specs.schema import ShapeBlock
from airflow_llmsched.specs.shapes import block_problems, shape_problems, to_shape

LEAST = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256}
EXPERTS = {"num_routed": 8, "num_active": 2, "expert_hidden_size": 32}


def problems(**changes: object) -> set[tuple[str | int, ...]]:
    return {each.path for each in block_problems(ShapeBlock.model_validate({**LEAST, **changes}), ("s",))}


def test_sizes_left_out_follow_from_the_others() -> None:
    expected = ModelShape(
        name="m",
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=4,
        head_size=16,
        ffn_hidden_size=256,
        vocab_size=256,
    )
    assert to_shape(ShapeBlock.model_validate(LEAST), name="m") == expected


def test_every_key_of_the_block_reaches_the_shape() -> None:
    more_of_experts = {
        "num_shared": 1, "num_dense_layers_first": 0, "shared_hidden_size": 9, "shared_gate": True,
        "router_bias": True, "correction_bias": True, "layers": [0, 2],
    }  # fmt: skip
    encoder = {
        "num_layers": 2, "hidden_size": 8, "num_layer_parameters": 100, "num_other_parameters": 10,
        "num_projector_parameters": 1,
    }  # fmt: skip
    every = {
        "num_layers": 3,
        "hidden_size": 65,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_size": 7,
        "ffn_hidden_size": 11,
        "vocab_size": 300,
        "gated_mlp": False,
        "tied_embeddings": True,
        "positions": "learned",
        "max_positions": 9,
        "embedding_size": 5,
        "num_extra_embedding_rows": 8,
        "norm_has_bias": True,
        "norm_has_weight": False,
        "num_norms_per_layer": 4,
        "embedding_norm": True,
        "final_norm": False,
        "parallel_block": True,
        "head_bias": True,
        "attention_qkv_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "qk_norm": True,
        "qk_norm_full_width": True,
        "qk_norm_has_bias": True,
        "attention_window_tokens": 5,
        "full_attention_layers": [1],
        "cross_attention_layers": [2],
        "attention_sinks": True,
        "latent": None,
        "experts": {**EXPERTS, **more_of_experts},
        "num_predict_ahead_layers": 1,
        "encoder": encoder,
    }
    block = ShapeBlock.model_validate(every)
    assert set(every) == set(ShapeBlock.model_fields) == set(ModelShape.__dataclass_fields__) - {"name"}
    assert set(EXPERTS | more_of_experts) == set(ExpertShape.__dataclass_fields__)
    assert set(encoder) == set(EncoderShape.__dataclass_fields__)
    experts = ExpertShape(**{**EXPERTS, **more_of_experts, "layers": (0, 2)})
    expected = ModelShape(
        name="m",
        **{
            **every, "positions": Positions.LEARNED, "experts": experts, "encoder": EncoderShape(**encoder),
            "full_attention_layers": (1,), "cross_attention_layers": (2,),
        },
    )  # fmt: skip
    assert to_shape(block, name="m") == expected
    assert list(block_problems(block, ())) == []


def test_latent_attention_reaches_the_shape() -> None:
    latent = {"kv_latent_size": 8, "rope_head_size": 4, "value_head_size": 6, "query_latent_size": None}
    shape = to_shape(ShapeBlock.model_validate({**LEAST, "latent": latent}), name="m")
    assert shape.latent == LatentAttention(**latent)
    assert problems(latent=latent) == set()
    assert problems(latent={**latent, "rope_head_size": 17}) == {("s", "latent", "rope_head_size")}
    assert problems(latent=latent, num_kv_heads=2) == {("s", "num_kv_heads")}


def test_contradictions_are_named() -> None:
    assert problems(num_heads=5) == {("s", "num_heads")}
    assert problems(num_heads=5, head_size=8) == set()
    assert problems(num_kv_heads=3) == {("s", "num_kv_heads")}
    assert problems(positions="learned") == {("s", "max_positions")}
    assert problems(qk_norm_full_width=True) == {("s", "qk_norm_full_width")}
    assert problems(experts={**EXPERTS, "num_active": 9}) == {("s", "experts", "num_active")}
    assert problems(experts={**EXPERTS, "num_dense_layers_first": 2}) == {("s", "experts", "num_dense_layers_first")}
    assert problems(experts=EXPERTS) == set()
    assert problems(experts={**EXPERTS, "shared_gate": True}) == {("s", "experts", "shared_gate")}
    assert problems(experts={**EXPERTS, "layers": []}) == {("s", "experts", "layers")}
    assert problems(qk_norm_has_bias=True) == {("s", "qk_norm_has_bias")}


@pytest.mark.parametrize("layers", [[1, 0], [0, 0], [2]])
def test_lists_of_layers_rise_and_end_at_the_last(layers: list[int]) -> None:
    assert problems(experts={**EXPERTS, "layers": layers}) == {("s", "experts", "layers")}
    bounded = {"attention_window_tokens": 4}
    assert problems(full_attention_layers=layers, **bounded) == {("s", "full_attention_layers")}
    assert problems(cross_attention_layers=layers) == {("s", "cross_attention_layers")}


def test_layers_without_a_window_need_one_to_be_without() -> None:
    assert problems(full_attention_layers=[1]) == {("s", "full_attention_layers")}


def test_more_heads_than_width_is_refused_and_not_divided_by() -> None:
    assert ("s", "num_heads") in problems(num_heads=100)


def test_a_shape_from_elsewhere_meets_the_same_rules() -> None:
    shape = to_shape(ShapeBlock.model_validate({**LEAST, "num_kv_heads": 3}), name="m")
    assert [each.path for each in shape_problems(shape, ())] == [("num_kv_heads",)]
