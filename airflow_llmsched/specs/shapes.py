"""Model shapes from spec blocks, and what must hold within any shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_llmsched.domain.workload import EncoderShape, ExpertShape, LatentAttention, ModelShape, Positions
from airflow_llmsched.specs.problems import Problem
from airflow_llmsched.specs.schema import ShapeBlock
from airflow_llmsched.specs.tree import Path

_RULED = frozenset({"num_kv_heads", "head_size", "ffn_hidden_size"})
_BLOCKS = {"experts": ExpertShape, "latent": LatentAttention, "encoder": EncoderShape}


def to_shape(block: ShapeBlock, *, name: str) -> ModelShape:
    """Build the shape, with sizes left out filled in by their rule."""
    fields = {name: _frozen(value) for name, value in block.model_dump().items()}
    for each, kind in _BLOCKS.items():
        fields[each] = None if fields[each] is None else kind(**fields[each])
    return ModelShape(
        name=name,
        num_kv_heads=block.num_kv_heads or block.num_heads,
        head_size=block.head_size or block.hidden_size // block.num_heads or 1,
        ffn_hidden_size=block.ffn_hidden_size or 4 * block.hidden_size,
        **{each: value for each, value in fields.items() if each not in _RULED},
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(inner) for name, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value


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
    for needing in ("qk_norm_full_width", "qk_norm_has_bias"):
        if getattr(shape, needing) and not shape.qk_norm:
            yield Problem(path=(*path, needing), value=True, hint="needs qk_norm: true")
    yield from _attention_problems(shape, path)
    if shape.experts is not None:
        yield from _expert_problems(shape.experts, shape.num_layers, (*path, "experts"))


def _attention_problems(shape: ModelShape, path: Path) -> Iterator[Problem]:
    for name in ("full_attention_layers", "cross_attention_layers"):
        yield from _list_problems(getattr(shape, name), shape.num_layers, (*path, name))
    if shape.full_attention_layers and shape.attention_window_tokens is None:
        hint = "needs attention_window_tokens: without it all layers attend to the start"
        yield Problem(path=(*path, "full_attention_layers"), value=shape.full_attention_layers, hint=hint)
    if shape.latent is None:
        return
    if shape.latent.rope_head_size > shape.head_size:
        hint = f"must be at most head_size={shape.head_size}, of which it is a part"
        yield Problem(path=(*path, "latent", "rope_head_size"), value=shape.latent.rope_head_size, hint=hint)
    if shape.num_kv_heads != shape.num_heads:
        hint = f"must be num_heads={shape.num_heads} with latent attention: every head makes its own from the latent"
        yield Problem(path=(*path, "num_kv_heads"), value=shape.num_kv_heads, hint=hint)


def _expert_problems(experts: ExpertShape, num_layers: int, path: Path) -> Iterator[Problem]:
    if experts.num_active > experts.num_routed:
        hint = f"must be at most num_routed={experts.num_routed}"
        yield Problem(path=(*path, "num_active"), value=experts.num_active, hint=hint)
    if experts.num_dense_layers_first >= num_layers:
        hint = f"must be below num_layers={num_layers}, or leave experts out"
        yield Problem(path=(*path, "num_dense_layers_first"), value=experts.num_dense_layers_first, hint=hint)
    for name in ("shared_hidden_size", "shared_gate"):
        if getattr(experts, name) and not experts.num_shared:
            yield Problem(path=(*path, name), value=getattr(experts, name), hint="needs num_shared of at least 1")
    if experts.layers is None:
        return
    yield from _list_problems(experts.layers, num_layers, (*path, "layers"))
    if not experts.layers or experts.num_dense_layers_first:
        hint = "must name at least one layer, and stand alone: leave num_dense_layers_first out"
        yield Problem(path=(*path, "layers"), value=experts.layers, hint=hint)


def _list_problems(layers: tuple[int, ...], num_layers: int, path: Path) -> Iterator[Problem]:
    if list(layers) != sorted({number for number in layers if number < num_layers}):
        hint = f"must rise, each from 0 to {num_layers - 1}"
        yield Problem(path=path, value=layers, hint=hint)
