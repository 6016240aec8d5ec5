"""Of which kinds a model's layers are: a cost that depends on the kind is computed once for each. Pure.

Axes: L = layer, K = kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_llmsched.domain.workload import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What tells one layer from another of the same model.

    ``window_tokens`` is how far back a token attends (None: to the start).
    """

    is_moe: bool = False
    window_tokens: int | None = None


def layer_kinds(shape: ModelShape) -> Sequence[LayerKind]:
    """Return the kind of each layer, in order."""
    num_dense = num_dense_layers(shape)
    return [
        LayerKind(is_moe=number >= num_dense, window_tokens=shape.attention_window_tokens)
        for number in range(shape.num_layers)
    ]


def distinct_kinds(shape: ModelShape) -> Sequence[LayerKind]:
    """Return each kind once, in the order in which they first appear."""
    return list(dict.fromkeys(layer_kinds(shape)))


def num_dense_layers(shape: ModelShape) -> int:
    """Layers with a dense MLP: all, or the first few of a mixture of experts."""
    return shape.num_layers if shape.experts is None else min(shape.experts.num_dense_layers_first, shape.num_layers)
