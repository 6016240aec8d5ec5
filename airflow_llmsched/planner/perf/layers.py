"""Of which kinds a model's layers are: a cost that depends on the kind is computed once for each. Pure.

Axes: L = layer, K = kind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from airflow_llmsched.domain.workload import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What tells one layer from another of the same model.

    ``window_tokens`` is how far back a token attends (None: to the start). ``is_cross``: it attends to the encoder's
    output instead of the text.
    """

    is_moe: bool = False
    window_tokens: int | None = None
    is_cross: bool = False


@lru_cache
def layer_kinds(shape: ModelShape) -> Sequence[LayerKind]:
    """Return the kind of each layer, in order."""
    moe = moe_layers(shape)
    return tuple(
        LayerKind(
            is_moe=number in moe,
            window_tokens=None if number in shape.full_attention_layers else shape.attention_window_tokens,
            is_cross=number in shape.cross_attention_layers,
        )
        for number in range(shape.num_layers)
    )


@lru_cache
def distinct_kinds(shape: ModelShape) -> Sequence[LayerKind]:
    """Return each kind once, in the order in which they first appear."""
    return tuple(dict.fromkeys(layer_kinds(shape)))


def moe_layers(shape: ModelShape) -> Collection[int]:
    """Return the numbers of the layers with experts: those listed, or all but the first few."""
    experts = shape.experts
    if experts is None:
        return ()
    return range(experts.num_dense_layers_first, shape.num_layers) if experts.layers is None else experts.layers


def num_dense_layers(shape: ModelShape) -> int:
    """Layers with a dense MLP."""
    return shape.num_layers - len(moe_layers(shape))
