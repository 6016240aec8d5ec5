"""Floating-point operations per token, forward and backward. Matrix products only; a multiply-add counts as 2. Pure.

Two conventions are in use and both are named here: *with* attention scores at full sequence length (Chowdhery et al.
2022, PaLM, appendix B; Narayanan et al. 2021) and *without* them (the "6 N" of Kaplan et al. 2020). Neither halves the
scores for causal masks, so that MFU compares with published figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.domain.layout import Recompute
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.perf.layers import LayerKind, layer_kinds
from airflow_llmsched.planner.perf.parameters import num_mlp_matrices


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
    """Operations per trained token of the whole model. The parts are forward passes."""

    projections_flop: int
    scores_flop: int
    mlp_flop: int
    router_flop: int
    logits_flop: int

    @property
    def forward_flop(self) -> int:
        """Forward pass, attention scores included."""
        return self.forward_without_scores_flop + self.scores_flop

    @property
    def forward_without_scores_flop(self) -> int:
        """Forward pass by the convention that leaves attention scores out: 2 per multiplied parameter."""
        return self.projections_flop + self.mlp_flop + self.router_flop + self.logits_flop

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

    def recomputed_flop(self, recompute: Recompute) -> int:
        """Operations done twice: the scores when selective, every layer (not the logits) when full.

        Korthikanti et al. 2022, section 5 and appendix A.
        """
        if recompute is Recompute.NONE:
            return 0
        return self.scores_flop if recompute is Recompute.SELECTIVE else self.forward_flop - self.logits_flop


def flops_per_token(shape: ModelShape, *, sequence_length_tokens: int) -> FlopsPerToken:
    """Count for the whole model. Experts count as often as they serve a token (``num_active`` and all shared ones)."""
    layers = [layer_flops(shape, kind, sequence_length_tokens=sequence_length_tokens) for kind in layer_kinds(shape)]
    return FlopsPerToken(
        projections_flop=sum(layer.projections_flop for layer in layers),
        scores_flop=sum(layer.scores_flop for layer in layers),
        mlp_flop=sum(layer.mlp_flop for layer in layers),
        router_flop=sum(layer.router_flop for layer in layers),
        logits_flop=2 * shape.hidden_size * shape.vocab_size,
    )


def layer_flops(shape: ModelShape, kind: LayerKind, *, sequence_length_tokens: int) -> LayerFlops:
    """Count one layer's forward pass per token: 2 n m for a matrix of (n, m); 4 * heads * head size * keys."""
    h, q, kv = shape.hidden_size, shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    num_keys = min(sequence_length_tokens, kind.window_tokens or sequence_length_tokens)
    experts = shape.experts if kind.is_moe else None
    width = (experts.num_active + experts.num_shared) * experts.expert_hidden_size if experts else shape.ffn_hidden_size
    return LayerFlops(
        projections_flop=2 * h * (q + 2 * kv) + 2 * q * h,
        scores_flop=4 * q * num_keys,
        mlp_flop=num_mlp_matrices(shape) * 2 * h * width,
        router_flop=2 * h * experts.num_routed if experts else 0,
    )
