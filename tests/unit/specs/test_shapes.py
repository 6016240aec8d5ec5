"""Explicit shapes: sizes left out follow their rule, contradictions are named."""

from __future__ import annotations

from airflow_llmsched.domain.workload import ExpertShape, ModelShape, Positions
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
        "norm_has_bias": True,
        "norm_has_weight": False,
        "attention_qkv_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "qk_norm": True,
        "qk_norm_full_width": True,
        "attention_window_tokens": 5,
        "experts": {**EXPERTS, "num_shared": 1, "num_dense_layers_first": 1},
    }
    block = ShapeBlock.model_validate(every)
    assert set(every) == set(ShapeBlock.model_fields) == set(ModelShape.__dataclass_fields__) - {"name"}
    experts = ExpertShape(num_routed=8, num_active=2, expert_hidden_size=32, num_shared=1, num_dense_layers_first=1)
    expected = ModelShape(name="m", **{**every, "positions": Positions.LEARNED, "experts": experts})
    assert to_shape(block, name="m") == expected
    assert list(block_problems(block, ())) == []


def test_contradictions_are_named() -> None:
    assert problems(num_heads=5) == {("s", "num_heads")}
    assert problems(num_heads=5, head_size=8) == set()
    assert problems(num_kv_heads=3) == {("s", "num_kv_heads")}
    assert problems(positions="learned") == {("s", "max_positions")}
    assert problems(qk_norm_full_width=True) == {("s", "qk_norm_full_width")}
    assert problems(experts={**EXPERTS, "num_active": 9}) == {("s", "experts", "num_active")}
    assert problems(experts={**EXPERTS, "num_dense_layers_first": 2}) == {("s", "experts", "num_dense_layers_first")}
    assert problems(experts=EXPERTS) == set()


def test_more_heads_than_width_is_refused_and_not_divided_by() -> None:
    assert ("s", "num_heads") in problems(num_heads=100)


def test_a_shape_from_elsewhere_meets_the_same_rules() -> None:
    shape = to_shape(ShapeBlock.model_validate({**LEAST, "num_kv_heads": 3}), name="m")
    assert [each.path for each in shape_problems(shape, ())] == [("num_kv_heads",)]
