"""Floating-point operations per token, forward and backward. Matrix products only; a multiply-add counts as 2. Pure.

Two conventions are in use and both are named here: *with* attention scores at full sequence length (Chowdhery et al.
2022, PaLM, appendix B; Narayanan et al. 2021) and *without* them (the "6 N" of Kaplan et al. 2020). Neither halves the
scores for causal masks, so that MFU compares with published figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.perf.layers import LayerKind, layer_kinds
from airflow_llmsched.planner.perf.ops import Part
from airflow_llmsched.planner.perf.parameters import attention_matrices, num_mlp_matrices, shared_expert_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFlops:
    """Forward operations per token of one layer."""

    projections_flop: int
    scores_flop: int
    mlp_flop: int
    router_flop: int

    @property
    def forward_flop(self) -> int:
        """The whole layer, scores included."""
        return self.matmul_flop + self.scores_flop

    @property
    def matmul_flop(self) -> int:
        """Products with weights: everything but the scores."""
        return self.projections_flop + self.mlp_flop + self.router_flop


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsPerToken:
    """Operations per trained token of the whole model. The parts are forward passes.

    ``predict_ahead_flop`` are the blocks of multi-token prediction with their logits, their scores in ``scores_flop``.
    """

    projections_flop: int
    scores_flop: int
    mlp_flop: int
    router_flop: int
    logits_flop: int
    predict_ahead_flop: int = 0

    @property
    def forward_flop(self) -> int:
        """Forward pass, attention scores included."""
        return self.forward_without_scores_flop + self.scores_flop

    @property
    def forward_without_scores_flop(self) -> int:
        """Forward pass by the convention that leaves attention scores out: 2 per multiplied parameter."""
        return self.projections_flop + self.mlp_flop + self.router_flop + self.logits_flop + self.predict_ahead_flop

    @property
    def backward_flop(self) -> int:
        """Backward pass: gradients to inputs and to weights, each as large as the forward pass."""
        return 2 * self.forward_flop

    @property
    def training_flop(self) -> int:
        """Forward and backward, scores included: what MFU counts. Recomputation is not in it."""
        return self.forward_flop + self.backward_flop

    @property
    def training_without_scores_flop(self) -> int:
        """Forward and backward by the other convention: 6 per multiplied parameter."""
        return 3 * self.forward_without_scores_flop


def flops_per_token(shape: ModelShape, *, sequence_length_tokens: int, causal: bool = False) -> FlopsPerToken:
    """Count for the whole model. Experts count as often as they serve a token (``num_active`` and all shared ones).

    ``causal`` counts scores as a kernel that skips masked blocks computes them, about half; MFU does not (see above).
    An encoder of images is not in it: its tokens are not the text's.
    """
    layers = _all_layers(shape, sequence_length_tokens=sequence_length_tokens, causal=causal)
    inside, ahead = layers[: shape.num_layers], layers[shape.num_layers :]
    logits = _logits_flop(shape)
    return FlopsPerToken(
        projections_flop=sum(layer.projections_flop for layer in inside),
        scores_flop=sum(layer.scores_flop for layer in layers),
        mlp_flop=sum(layer.mlp_flop for layer in inside),
        router_flop=sum(layer.router_flop for layer in inside),
        logits_flop=logits,
        predict_ahead_flop=sum(layer.matmul_flop + 4 * shape.hidden_size**2 + logits for layer in ahead),
    )


def part_flop(shape: ModelShape, *, sequence_length_tokens: int) -> Mapping[Part, int]:
    """Return forward operations per token of all layers, by the parts that recomputation tells apart.

    Those of multi-token prediction are among them; logits, which nothing computes again, are not (Korthikanti et al.
    2022, appendix A).
    """
    layers = _all_layers(shape, sequence_length_tokens=sequence_length_tokens)
    out_flop = 2 * shape.hidden_size * shape.context_size * len(layers)
    return {
        Part.QKV: sum(layer.projections_flop for layer in layers) - out_flop,
        Part.CORE: sum(layer.scores_flop for layer in layers),
        Part.OUT: out_flop,
        Part.MLP: sum(layer.mlp_flop for layer in layers),
        Part.ROUTING: sum(layer.router_flop for layer in layers),
    }


def layer_flops(shape: ModelShape, kind: LayerKind, *, sequence_length_tokens: int, causal: bool = False) -> LayerFlops:
    """Count one layer's forward pass per token: 2 n m for a matrix of (n, m); 2 (q + context) for each key seen.

    Latent attention is counted as training computes it, with keys and values of every head made from the latent. Cross
    attention leaves out keys, values and scores: they grow with the encoder's tokens.
    """
    experts = shape.experts if kind.is_moe else None
    if experts:
        wide = experts.num_active * experts.expert_hidden_size + experts.num_shared * shared_expert_size(experts)
    else:
        wide = shape.ffn_hidden_size
    num_keys = 0.0 if kind.is_cross else num_keys_per_token(kind, sequence_length_tokens, causal=causal)
    return LayerFlops(
        projections_flop=2 * _projection_weights(shape, kind),
        scores_flop=round(2 * (shape.query_size + shape.context_size) * num_keys),
        mlp_flop=num_mlp_matrices(shape) * 2 * shape.hidden_size * wide,
        router_flop=2 * shape.hidden_size * (experts.num_routed + experts.shared_gate) if experts else 0,
    )


def _all_layers(shape: ModelShape, *, sequence_length_tokens: int, causal: bool = False) -> list[LayerFlops]:
    """Count each layer of the model and then those of multi-token prediction, which are as the last one."""
    kinds = layer_kinds(shape)
    return [
        layer_flops(shape, kind, sequence_length_tokens=sequence_length_tokens, causal=causal)
        for kind in [*kinds, *[kinds[-1]] * shape.num_predict_ahead_layers]
    ]


def num_keys_per_token(kind: LayerKind, sequence_length_tokens: int, *, causal: bool) -> float:
    """Return how many keys a token meets on average.

    By the convention of MFU, the whole sequence or the window. ``causal``: the keys before it and its own; of a window
    w in a sequence s that is w - w (w - 1) / 2 s.
    """
    window = min(sequence_length_tokens, kind.window_tokens or sequence_length_tokens)
    return window - window * (window - 1) / (2 * sequence_length_tokens) if causal else window


def _projection_weights(shape: ModelShape, kind: LayerKind) -> int:
    """Weights of the attention's matrices that one token of text is multiplied with."""
    skipped = {"key", "value"} if kind.is_cross else set()
    return sum(matrix.size for matrix in attention_matrices(shape, kind) if matrix.name not in skipped)


def _logits_flop(shape: ModelShape) -> int:
    """Output head; with an embedding of another width also the projections to and from it."""
    if shape.embedding_size is None:
        return 2 * shape.hidden_size * shape.vocab_size
    return 2 * shape.embedding_size * (shape.vocab_size + 2 * shape.hidden_size)
