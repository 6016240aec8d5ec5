"""Exact parameter counts of a decoder-only Transformer, by part and by both conventions of "active". Pure."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.domain.workload import ModelShape, Positions
from airflow_llmsched.planner.perf.layers import LayerKind, layer_kinds, num_dense_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters by part. Parts add up to ``total``; a tied output head has none of its own.

    ``routed_experts`` counts every routed expert, ``active_routed_experts`` only those that serve one token. ``mlp``
    holds dense MLPs and shared experts, which serve every token.
    """

    token_embedding: int
    position_embedding: int
    output_head: int
    attention: int
    mlp: int
    routed_experts: int
    active_routed_experts: int
    router: int
    norms: int

    @property
    def embedding(self) -> int:
        """Token and position embeddings and an untied output head: what "non-embedding" figures leave out."""
        return self.token_embedding + self.position_embedding + self.output_head

    @property
    def non_embedding(self) -> int:
        """Everything but embeddings and output head, as model cards quote it (Qwen2.5-7B: 6.53B of 7.61B)."""
        return self.attention + self.mlp + self.routed_experts + self.router + self.norms

    @property
    def total(self) -> int:
        """All stored parameters."""
        return self.embedding + self.non_embedding

    @property
    def active(self) -> int:
        """Parameters that one token touches, embeddings and router included (Mixtral-8x7B: 12.9B of 46.7B)."""
        return self.total - self.routed_experts + self.active_routed_experts

    @property
    def active_without_input_embedding(self) -> int:
        """The other convention: ``active`` less the input embeddings, which are looked up and not multiplied.

        A tied matrix still serves as the output head and stays counted.
        """
        tied = self.output_head == 0
        return self.active - self.position_embedding - (0 if tied else self.token_embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer, split by how tensor parallelism treats them.

    ``*_split`` are divided by the tensor-parallel degree (matrices, and biases of column-parallel ones), ``replicated``
    are not (norms, router, biases of row-parallel matrices). ``experts_split`` are routed experts, which expert
    parallelism divides too.
    """

    attention_split: int
    mlp_split: int
    experts_split: int
    expert_biases_replicated: int
    router: int
    norms: int
    attention_biases_replicated: int
    mlp_biases_replicated: int

    @property
    def replicated(self) -> int:
        """Parameters that every tensor-parallel rank holds whole, routed experts' biases apart."""
        return self.router + self.norms + self.attention_biases_replicated + self.mlp_biases_replicated

    @property
    def attention(self) -> int:
        """Attention matrices and their biases, query and key norms excluded."""
        return self.attention_split + self.attention_biases_replicated

    @property
    def mlp(self) -> int:
        """Dense MLP or shared experts."""
        return self.mlp_split + self.mlp_biases_replicated

    @property
    def experts(self) -> int:
        """All routed experts."""
        return self.experts_split + self.expert_biases_replicated

    @property
    def total(self) -> int:
        """The whole layer."""
        return self.attention + self.mlp + self.experts + self.router + self.norms


def count_parameters(shape: ModelShape) -> ParameterCount:
    """Count exactly. Two norms per layer and one at the end; biases only where ``shape`` says so.

    Not expressible in ``ModelShape`` and so not counted here: latent attention (MLA), extra norms, router biases,
    attention sinks, embedding projections.
    """
    layers = [layer_parameters(shape, kind) for kind in layer_kinds(shape)]
    experts = shape.experts
    active_ratio = (experts.num_active, experts.num_routed) if experts else (0, 1)
    routed = sum(layer.experts for layer in layers)
    table = shape.vocab_size * shape.hidden_size
    return ParameterCount(
        token_embedding=table,
        position_embedding=shape.max_positions * shape.hidden_size if shape.positions is Positions.LEARNED else 0,
        output_head=0 if shape.tied_embeddings else table,
        attention=sum(layer.attention for layer in layers),
        mlp=sum(layer.mlp for layer in layers),
        routed_experts=routed,
        active_routed_experts=routed * active_ratio[0] // active_ratio[1],
        router=sum(layer.router for layer in layers),
        norms=sum(layer.norms for layer in layers) + norm_parameters(shape),
    )


def count_lora_parameters(shape: ModelShape, *, rank: int) -> int:
    """Trainable parameters of LoRA on every matrix of attention and MLP, routed experts included (Hu et al. 2021).

    A matrix of (n, m) gets two factors, (n, rank) and (rank, m). Embeddings, head and router stay frozen, without
    adapters.
    """
    h, q, kv = shape.hidden_size, shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    attention = rank * ((h + q) + 2 * (h + kv) + (q + h))

    def mlp(width: int) -> int:
        return num_mlp_matrices(shape) * rank * (h + width)

    num_dense = num_dense_layers(shape)
    total = shape.num_layers * attention + num_dense * mlp(shape.ffn_hidden_size)
    if shape.experts:
        per_layer = (shape.experts.num_routed + shape.experts.num_shared) * mlp(shape.experts.expert_hidden_size)
        total += (shape.num_layers - num_dense) * per_layer
    return total


def layer_parameters(shape: ModelShape, kind: LayerKind) -> LayerParameters:
    """Count one layer of a kind."""
    h, q, kv = shape.hidden_size, shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    num_matrices = num_mlp_matrices(shape)
    experts = shape.experts if kind.is_moe else None
    num_always_on = experts.num_shared if experts else 1
    width = experts.expert_hidden_size if experts else shape.ffn_hidden_size
    matrices = num_matrices * h * width
    column_biases = (num_matrices - 1) * width if shape.mlp_bias else 0
    row_bias = h if shape.mlp_bias else 0
    num_routed = experts.num_routed if experts else 0
    return LayerParameters(
        attention_split=h * (q + 2 * kv) + q * h + (q + 2 * kv if shape.attention_qkv_bias else 0),
        mlp_split=num_always_on * (matrices + column_biases),
        experts_split=num_routed * (matrices + column_biases),
        expert_biases_replicated=num_routed * row_bias,
        router=h * num_routed,
        norms=2 * norm_parameters(shape) + qk_norm_parameters(shape),
        attention_biases_replicated=h if shape.attention_out_bias else 0,
        mlp_biases_replicated=num_always_on * row_bias,
    )


def num_mlp_matrices(shape: ModelShape) -> int:
    """3 for a gated MLP (gate, up, down), 2 for a plain one."""
    return 3 if shape.gated_mlp else 2


def norm_parameters(shape: ModelShape) -> int:
    """Scale where norms have weights, and shift where they have a bias."""
    return shape.hidden_size * (int(shape.norm_has_weight) + int(shape.norm_has_bias))


def qk_norm_parameters(shape: ModelShape) -> int:
    """One scale per head element, shared by all heads, or per element of the whole query and key."""
    if not shape.qk_norm:
        return 0
    num_heads = shape.num_heads + shape.num_kv_heads if shape.qk_norm_full_width else 2
    return num_heads * shape.head_size
