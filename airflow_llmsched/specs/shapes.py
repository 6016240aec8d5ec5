"""Model shapes from spec blocks, and what must hold within any shape."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_llmsched.domain.workload import ExpertShape, ModelShape, Positions
from airflow_llmsched.specs.problems import Problem
from airflow_llmsched.specs.schema import ShapeBlock
from airflow_llmsched.specs.tree import Path

_COPIED = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "vocab_size",
    "gated_mlp",
    "tied_embeddings",
    "positions",
    "max_positions",
    "norm_has_bias",
    "norm_has_weight",
    "attention_qkv_bias",
    "attention_out_bias",
    "mlp_bias",
    "qk_norm",
    "qk_norm_full_width",
    "attention_window_tokens",
)


def to_shape(block: ShapeBlock, *, name: str) -> ModelShape:
    """Build the shape, with sizes left out filled in by their rule."""
    experts = block.experts
    return ModelShape(
        name=name,
        num_kv_heads=block.num_kv_heads or block.num_heads,
        head_size=block.head_size or block.hidden_size // block.num_heads or 1,
        ffn_hidden_size=block.ffn_hidden_size or 4 * block.hidden_size,
        experts=ExpertShape(**experts.model_dump()) if experts else None,
        **{field: getattr(block, field) for field in _COPIED},
    )


def block_problems(block: ShapeBlock, path: Path) -> Iterator[Problem]:
    """Yield what is wrong with an explicit shape."""
    if block.head_size is None and block.hidden_size % block.num_heads:
        hint = f"must divide hidden_size={block.hidden_size}, or give head_size"
        yield Problem(path=(*path, "num_heads"), value=block.num_heads, hint=hint)
    yield from shape_problems(to_shape(block, name=""), path)


def shape_problems(shape: ModelShape, path: Path) -> Iterator[Problem]:
    """Yield what contradicts itself within a shape, wherever it came from."""
    if shape.num_heads % shape.num_kv_heads:
        hint = f"must divide num_heads={shape.num_heads}: each key and value head serves equally many query heads"
        yield Problem(path=(*path, "num_kv_heads"), value=shape.num_kv_heads, hint=hint)
    if shape.positions is Positions.LEARNED and not shape.max_positions:
        hint = "must be at least 1 with learned positions: it is the size of their table"
        yield Problem(path=(*path, "max_positions"), value=shape.max_positions, hint=hint)
    if shape.qk_norm_full_width and not shape.qk_norm:
        yield Problem(path=(*path, "qk_norm_full_width"), value=True, hint="needs qk_norm: true")
    if shape.experts is not None:
        yield from _expert_problems(shape.experts, shape.num_layers, (*path, "experts"))


def _expert_problems(experts: ExpertShape, num_layers: int, path: Path) -> Iterator[Problem]:
    if experts.num_active > experts.num_routed:
        hint = f"must be at most num_routed={experts.num_routed}"
        yield Problem(path=(*path, "num_active"), value=experts.num_active, hint=hint)
    if experts.num_dense_layers_first >= num_layers:
        hint = f"must be below num_layers={num_layers}, or leave experts out"
        yield Problem(path=(*path, "num_dense_layers_first"), value=experts.num_dense_layers_first, hint=hint)
