"""Exact parameter counts of a decoder-only Transformer, by part and by both conventions of "active". Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from airflow_llmsched.domain.workload import (
    ALL_LINEAR,
    ExpertShape,
    LatentAttention,
    LoraTarget,
    ModelShape,
    Positions,
)
from airflow_llmsched.planner.perf.layers import LayerKind, layer_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters by part. Parts add up to ``total``, ``predict_ahead`` and biases of tied heads apart.

    ``routed_experts`` counts every routed expert, ``active_routed_experts`` only those that serve one token. ``mlp``
    holds dense MLPs and shared experts, which serve every token. ``output_head`` is the untied matrix and a bias.
    ``encoder`` is an encoder of images with its projector. ``predict_ahead`` are the blocks of multi-token prediction
    without the embedding and head they share: published totals leave them out, and so does ``total``.
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
    correction_biases: int = 0
    encoder: int = 0
    predict_ahead: int = 0
    has_tied_embeddings: bool = False

    @property
    def embedding(self) -> int:
        """Token and position embeddings and an untied output head: what "non-embedding" figures leave out."""
        return self.token_embedding + self.position_embedding + self.output_head

    @property
    def non_embedding(self) -> int:
        """Everything but embeddings and output head, as model cards quote it (Qwen2.5-7B: 6.53B of 7.61B)."""
        return self.attention + self.mlp + self.routed_experts + self.router + self.norms + self.encoder

    @property
    def total(self) -> int:
        """All stored parameters, but for those that predict further ahead (DeepSeek-V3: 671B)."""
        return self.embedding + self.non_embedding

    @property
    def total_with_predict_ahead(self) -> int:
        """All that a run with multi-token prediction trains and stores (DeepSeek-V3: 682.5B)."""
        return self.total + self.predict_ahead

    @property
    def trained(self) -> int:
        """``total`` less what has no gradient: biases of routers that a rule sets (DeepSeek-V3)."""
        return self.total - self.correction_biases

    @property
    def active(self) -> int:
        """Parameters that one token of text touches, embeddings and router included (Mixtral-8x7B: 12.9B of 46.7B)."""
        return self.total - self.routed_experts + self.active_routed_experts - self.encoder

    @property
    def active_without_input_embedding(self) -> int:
        """The other convention: ``active`` less the input embeddings, which are looked up and not multiplied.

        A tied matrix still serves as the output head and stays counted (GPT-OSS-20B: 3.6B, untied).
        """
        return self.active - self.position_embedding - (0 if self.has_tied_embeddings else self.token_embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer, split by how tensor parallelism treats them.

    ``*_split`` are divided by the tensor-parallel degree (matrices, and biases of column-parallel ones), the others are
    not: norms, router, biases of row-parallel matrices, and the projections to MLA's latents. ``experts_split`` are
    routed experts, which expert parallelism divides too.
    """

    attention_split: int
    mlp_split: int
    experts_split: int
    expert_biases_replicated: int
    router: int
    norms: int
    attention_replicated: int
    mlp_replicated: int

    @property
    def replicated(self) -> int:
        """Parameters that every tensor-parallel rank holds whole, routed experts' biases apart."""
        return self.router + self.norms + self.attention_replicated + self.mlp_replicated

    @property
    def attention(self) -> int:
        """Attention matrices and their biases, query and key norms excluded."""
        return self.attention_split + self.attention_replicated

    @property
    def mlp(self) -> int:
        """Dense MLP or shared experts."""
        return self.mlp_split + self.mlp_replicated

    @property
    def experts(self) -> int:
        """All routed experts."""
        return self.experts_split + self.expert_biases_replicated

    @property
    def total(self) -> int:
        """The whole layer."""
        return self.attention + self.mlp + self.experts + self.router + self.norms


def count_parameters(shape: ModelShape) -> ParameterCount:
    """Count exactly what ``shape`` says, as the publisher's files store it."""
    kinds = layer_kinds(shape)
    layers = [layer_parameters(shape, kind) for kind in kinds]
    routed = sum(layer.experts for layer in layers)
    experts = shape.experts
    num_moe = sum(kind.is_moe for kind in kinds)
    return ParameterCount(
        token_embedding=embedding_parameters(shape),
        position_embedding=position_parameters(shape),
        output_head=head_parameters(shape),
        attention=sum(layer.attention for layer in layers),
        mlp=sum(layer.mlp for layer in layers),
        routed_experts=routed,
        active_routed_experts=routed * experts.num_active // experts.num_routed if experts else 0,
        router=sum(layer.router for layer in layers),
        norms=sum(layer.norms for layer in layers) + norm_parameters(shape) * (shape.final_norm + shape.embedding_norm),
        correction_biases=num_moe * experts.num_routed if experts and experts.correction_bias else 0,
        encoder=shape.encoder.num_parameters if shape.encoder else 0,
        predict_ahead=shape.num_predict_ahead_layers * predict_ahead_parameters(shape),
        has_tied_embeddings=shape.tied_embeddings,
    )


def embedding_parameters(shape: ModelShape) -> int:
    """Token embedding table, with rows that only inputs have (Llama 3.2 Vision's image tokens)."""
    return (shape.vocab_size + shape.num_extra_embedding_rows) * (shape.embedding_size or shape.hidden_size)


def position_parameters(shape: ModelShape) -> int:
    """Table of learned positions, if any."""
    return shape.max_positions * shape.hidden_size if shape.positions is Positions.LEARNED else 0


def head_parameters(shape: ModelShape) -> int:
    """What the output head has of its own: nothing when tied, but for a bias.

    Projections between an embedding of another width and the layers (OPT-350m) are counted with it.
    """
    width = shape.embedding_size or shape.hidden_size
    table = 0 if shape.tied_embeddings else shape.vocab_size * width
    bias = shape.vocab_size if shape.head_bias else 0
    return table + bias + (2 * width * shape.hidden_size if shape.embedding_size else 0)


def predict_ahead_parameters(shape: ModelShape) -> int:
    """One block of multi-token prediction: a layer like the last, a projection of two inputs to one, three norms.

    DeepSeek-AI 2024, "DeepSeek-V3", section 2.2; the embedding and the head are the model's own.
    """
    layer = layer_parameters(shape, layer_kinds(shape)[-1]).total
    return layer + 2 * shape.hidden_size**2 + 3 * norm_parameters(shape)


def count_trained_parameters(shape: ModelShape, *, freezes_encoder: bool = False) -> int:
    """Parameters with a gradient when no adapters are: all, multi-token prediction included, but what a rule sets."""
    count = count_parameters(shape)
    ruled = count.correction_biases
    if shape.experts and shape.experts.correction_bias and layer_kinds(shape)[-1].is_moe:
        ruled += shape.num_predict_ahead_layers * shape.experts.num_routed
    return count.total_with_predict_ahead - ruled - (count.encoder if freezes_encoder else 0)


def count_lora_parameters(shape: ModelShape, *, rank: int, targets: Collection[LoraTarget] = ALL_LINEAR) -> int:
    """Trainable parameters of LoRA on the matrices of ``targets`` (Hu et al. 2021).

    A matrix of (n, m) gets two factors, (n, rank) and (rank, m); queries, keys and values count as three matrices
    where code fuses them. Embeddings and router stay frozen, without adapters.
    """
    adapted = [
        matrix.number * (matrix.num_rows + matrix.num_columns)
        for kind in layer_kinds(shape)
        for matrix in layer_matrices(shape, kind)
        if not _TARGETS[matrix.name].isdisjoint(targets)
    ]
    if LoraTarget.OUTPUT_HEAD in targets:
        adapted.append(shape.vocab_size + (shape.embedding_size or shape.hidden_size))
    return rank * sum(adapted)


_TARGETS = {
    "query": {LoraTarget.QUERY},
    "query_down": {LoraTarget.QUERY},
    "query_up": {LoraTarget.QUERY},
    "key": {LoraTarget.KEY},
    "value": {LoraTarget.VALUE},
    "key_value_down": {LoraTarget.KEY, LoraTarget.VALUE},
    "key_value_up": {LoraTarget.KEY, LoraTarget.VALUE},
    "attention_out": {LoraTarget.ATTENTION_OUT},
    **{prefix + name: {LoraTarget(name)} for prefix in ("", "shared_") for name in ("gate", "up", "down")},
    **{f"expert_{name}": {LoraTarget.EXPERTS} for name in ("gate", "up", "down")},
}
"""To which targets each matrix of a layer belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Weights of one linear layer: ``number`` of them alike (experts), named by what they do."""

    name: str
    num_rows: int
    num_columns: int
    number: int = 1

    @property
    def size(self) -> int:
        """Elements of all of them."""
        return self.number * self.num_rows * self.num_columns


def layer_matrices(shape: ModelShape, kind: LayerKind) -> Sequence[Matrix]:
    """List the linear layers of attention, MLP and experts; the router is none of them."""
    h, experts = shape.hidden_size, shape.experts if kind.is_moe else None
    matrices = list(attention_matrices(shape, kind))
    groups = [(1, shape.ffn_hidden_size, "")]
    if experts:
        groups = [
            (experts.num_routed, experts.expert_hidden_size, "expert_"),
            (experts.num_shared, shared_expert_size(experts), "shared_"),
        ]
    for number, width, prefix in groups:
        names = ("gate", "up") if shape.gated_mlp else ("up",)
        matrices += [Matrix(name=prefix + name, num_rows=width, num_columns=h, number=number) for name in names]
        matrices.append(Matrix(name=prefix + "down", num_rows=h, num_columns=width, number=number))
    return [matrix for matrix in matrices if matrix.number]


def layer_parameters(shape: ModelShape, kind: LayerKind) -> LayerParameters:
    """Count one layer of a kind."""
    experts = shape.experts if kind.is_moe else None
    matrices, column_biases, row_bias = _mlp(shape, experts.expert_hidden_size if experts else shape.ffn_hidden_size)
    attention_split, attention_replicated = _attention(shape, kind)
    mlp_split, mlp_replicated = matrices + column_biases, row_bias
    if experts:
        shared, shared_column_biases, shared_row_bias = _mlp(shape, shared_expert_size(experts))
        mlp_split = experts.num_shared * (shared + shared_column_biases)
        mlp_replicated = experts.num_shared * (shared_row_bias + (shape.hidden_size if experts.shared_gate else 0))
    num_routed = experts.num_routed if experts else 0
    return LayerParameters(
        attention_split=attention_split,
        mlp_split=mlp_split,
        experts_split=num_routed * (matrices + column_biases),
        expert_biases_replicated=num_routed * row_bias,
        router=num_routed * (shape.hidden_size + experts.router_bias + experts.correction_bias) if experts else 0,
        norms=shape.num_norms_per_layer * norm_parameters(shape) + _inner_norm_parameters(shape, kind),
        attention_replicated=attention_replicated,
        mlp_replicated=mlp_replicated,
    )


def num_mlp_matrices(shape: ModelShape) -> int:
    """3 for a gated MLP (gate, up, down), 2 for a plain one."""
    return 3 if shape.gated_mlp else 2


def shared_expert_size(experts: ExpertShape) -> int:
    """Inner width of one shared expert."""
    return experts.shared_hidden_size or experts.expert_hidden_size


def norm_parameters(shape: ModelShape) -> int:
    """Scale where norms have weights, and shift where they have a bias."""
    return shape.hidden_size * (int(shape.norm_has_weight) + int(shape.norm_has_bias))


def qk_norm_parameters(shape: ModelShape) -> int:
    """One scale per head element, shared by all heads, or per element of the whole query and key; and its shift."""
    if not shape.qk_norm:
        return 0
    num_heads = shape.num_heads + shape.num_kv_heads if shape.qk_norm_full_width else 2
    return num_heads * shape.head_size * (2 if shape.qk_norm_has_bias else 1)


def _attention(shape: ModelShape, kind: LayerKind) -> tuple[int, int]:
    """Parameters that tensor parallelism splits, and those that it does not; biases with their matrices."""
    if kind.is_cross:
        # without biases, but with one trained gate each for attention and MLP (Llama 3.2 Vision)
        return sum(matrix.size for matrix in attention_matrices(shape, kind)), 2
    split = shape.num_heads if shape.attention_sinks else 0
    replicated = shape.hidden_size if shape.attention_out_bias else 0
    for matrix in attention_matrices(shape, kind):
        has_bias = shape.attention_qkv_bias and matrix.name in _INPUTS
        size = matrix.size + (matrix.num_rows if has_bias else 0)
        if matrix.name in _DOWN:
            replicated += size
        else:
            split += size
    return split, replicated


_DOWN = frozenset({"query_down", "key_value_down"})
_INPUTS = _DOWN | {"query", "key", "value"}


def attention_matrices(shape: ModelShape, kind: LayerKind) -> Iterator[Matrix]:
    """Yield the linear layers of attention: four, or five for latent attention."""
    h, latent = shape.hidden_size, None if kind.is_cross else shape.latent
    if latent is None:
        sizes = {"query": shape.query_size, "key": shape.key_size, "value": shape.value_size}
        for name, size in sizes.items():
            yield Matrix(name=name, num_rows=size, num_columns=h)
    else:
        yield from _latent_matrices(shape, latent)
    yield Matrix(name="attention_out", num_rows=h, num_columns=shape.context_size)


def _latent_matrices(shape: ModelShape, latent: LatentAttention) -> Iterator[Matrix]:
    """MLA's way to queries, keys and values. The part of the key with the position comes straight from the input."""
    h, q_latent, kv_latent = shape.hidden_size, latent.query_latent_size, latent.kv_latent_size
    if q_latent is None:
        # published models give this one no bias, whatever attention_qkv_bias says
        yield Matrix(name="query_up", num_rows=shape.query_size, num_columns=h)
    else:
        yield Matrix(name="query_down", num_rows=q_latent, num_columns=h)
        yield Matrix(name="query_up", num_rows=shape.query_size, num_columns=q_latent)
    yield Matrix(name="key_value_down", num_rows=kv_latent + latent.rope_head_size, num_columns=h)
    per_head = shape.head_size - latent.rope_head_size + latent.value_head_size
    yield Matrix(name="key_value_up", num_rows=shape.num_heads * per_head, num_columns=kv_latent)


def _mlp(shape: ModelShape, width: int) -> tuple[int, int, int]:
    """Matrices, biases on the wide side and bias on the narrow side of one MLP."""
    num_matrices = num_mlp_matrices(shape)
    biases = ((num_matrices - 1) * width, shape.hidden_size) if shape.mlp_bias else (0, 0)
    return num_matrices * shape.hidden_size * width, *biases


def _inner_norm_parameters(shape: ModelShape, kind: LayerKind) -> int:
    """Norms on queries and keys, and on MLA's latents; cross attention always has the former."""
    if kind.is_cross:
        return 2 * shape.head_size
    latent = shape.latent
    on_latents = (latent.query_latent_size or 0) + latent.kv_latent_size if latent else 0
    return qk_norm_parameters(shape) + on_latents
