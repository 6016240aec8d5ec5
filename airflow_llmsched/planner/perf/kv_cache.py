"""Bytes of keys and values that decoding keeps: what generation (RLHF, evaluation) adds to a rank. Pure."""

from __future__ import annotations

from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.perf.layers import LayerKind, layer_kinds


def kv_cache_bytes(shape: ModelShape, *, num_tokens: int, bytes_per_value: int) -> int:
    """Return what one sequence of ``num_tokens`` keeps in all layers; a layer with a window keeps no more than that.

    Cross attention keeps what it made of the encoder's output, which does not grow with the text: not counted.
    """
    return bytes_per_value * sum(
        layer_kv_values(shape, kind) * min(num_tokens, kind.window_tokens or num_tokens)
        for kind in layer_kinds(shape)
        if not kind.is_cross
    )


def kv_cache_bytes_per_token(shape: ModelShape, *, bytes_per_value: int) -> int:
    """Return what one more token adds while all windows are unfilled."""
    return kv_cache_bytes(shape, num_tokens=1, bytes_per_value=bytes_per_value)


def layer_kv_values(shape: ModelShape, kind: LayerKind) -> int:
    """Return values per token and layer: keys and values of all heads, or MLA's latent and the shared rotary key."""
    if shape.latent and not kind.is_cross:
        return shape.latent.kv_latent_size + shape.latent.rope_head_size
    return shape.key_size + shape.value_size
