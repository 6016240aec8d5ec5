"""Bytes that a layer keeps for its backward pass, tensor by tensor, and what recomputation drops of them. Pure.

Axes: C = candidate layout, K = layer kind. The tensors are those of Korthikanti et al. (2022), "Reducing Activation
Recomputation in Large Transformer Models", section 4, generalised to grouped-query attention, gated MLPs and experts:
with dropout and scores they come to s b h (10 + 24 / t + 5 a s / (h t)) for a GPT layer, as in equation 2 there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, Recompute, RecomputeModule
from airflow_llmsched.domain.software import LossKernel
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import (
    MODULE_BIT,
    OFFLOAD_ORDER,
    RECOMPUTE_ORDER,
    FloatArray,
    IntArray,
    LayoutTable,
)
from airflow_llmsched.planner.perf.job import FORMAT_BYTES, TransformerJob
from airflow_llmsched.planner.perf.layers import LayerKind, distinct_kinds
from airflow_llmsched.planner.perf.memory_states import ceil_div, layers_with_ahead
from airflow_llmsched.planner.perf.parameters import num_mlp_matrices, shared_expert_size
from airflow_llmsched.planner.perf.stages import StageLayers, num_in_flight_C

SELECTIVE, FULL, MODULES = (
    RECOMPUTE_ORDER.index(policy) for policy in (Recompute.SELECTIVE, Recompute.FULL, Recompute.MODULES)
)

LAYER_COLUMNS = (
    "tp_C", "cp_C", "ep_C", "etp_C", "micro_batch_C", "recompute_C", "sequence_parallel_C", "modules_C",
)  # fmt: skip
"""What the bytes of one layer depend on."""

ACTIVATION_TERMS = ("activations", "logits", "recomputed_layer", "activation_gradients")
"""What :meth:`StageActivations.terms` returns."""

_MOST_BYTES = 2.0**56
"""More than any memory; more than a hundred of them still add up in 64 bits."""

_CORE, _NORMS, _ACT, _MLP, _QKV, _SECOND = (
    MODULE_BIT[module]
    for module in (
        RecomputeModule.CORE_ATTENTION,
        RecomputeModule.NORMS,
        RecomputeModule.MLP_ACTIVATION,
        RecomputeModule.MLP,
        RecomputeModule.QKV,
        RecomputeModule.EVERY_SECOND_PRODUCT,
    )
)
_EVERYTHING = 1 << 30
"""Stands for full recomputation, which drops whatever a layer can compute from its input."""

_ACTIVATIONS_AWAY = OFFLOAD_ORDER.index(Offload.ACTIVATIONS_HOST)

NUM_LAYERS_IN_TRANSIT = 2
"""Layers whose activations are in the accelerator's memory while they are offloaded: one computes, one travels."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptTensor:
    """One tensor of a layer and micro-batch that the backward pass reads. ``dropped_by`` are bits of modules."""

    name: str
    num_bytes_C: FloatArray
    dropped_by: int


def kept_tensors(job: TransformerJob, table: LayoutTable, kind: LayerKind) -> Sequence[KeptTensor]:
    """List what a layer keeps when nothing is recomputed, and for each tensor what would recompute it."""
    widths = _Widths(job=job, table=table)
    tensors = [
        KeptTensor(name=name, num_bytes_C=num_bytes_C, dropped_by=bits | (_EVERYTHING if name != "input" else 0))
        for name, num_bytes_C, bits in (*_attention(widths), *_mlp(widths, kind))
    ]
    return [each for each in tensors if np.any(each.num_bytes_C > 0)]


def kept_bytes(job: TransformerJob, table: LayoutTable, kind: LayerKind) -> FloatArray:
    """Return what a layer keeps of one micro-batch under each candidate's own recomputation."""
    dropped_C = dropped_bits(table)
    tensors = kept_tensors(job, table, kind)
    kept_C = sum_of((np.where(dropped_C & each.dropped_by, 0.0, each.num_bytes_C) for each in tensors), table)
    if job.software.fused_elementwise or not job.model.gated_mlp or kind.is_moe:
        return kept_C
    # Checkpointing by op saves the product that ends a layer although nothing reads it; a compiler drops it.
    is_saved_C = (table.recompute_C == MODULES) & (table.modules_C & _SECOND > 0)
    return np.asarray(kept_C + np.where(is_saved_C, _Widths(job=job, table=table).whole(job.model.hidden_size), 0.0))


def recomputed_bytes(job: TransformerJob, table: LayoutTable, kind: LayerKind) -> FloatArray:
    """Return what a layer's recomputation brings back, all of it while the layer goes backward."""
    dropped_C = dropped_bits(table)
    return sum_of(
        (np.where(dropped_C & each.dropped_by, each.num_bytes_C, 0.0) for each in kept_tensors(job, table, kind)), table
    )


def _whole_bytes(num_bytes_C: FloatArray) -> IntArray:
    """Round up. What no machine has stays so much: a huge micro-batch must not wrap around to less than nothing."""
    return np.ceil(np.minimum(num_bytes_C, _MOST_BYTES)).astype(np.int64)


def gradient_bytes(job: TransformerJob, table: LayoutTable, kind: LayerKind) -> FloatArray:
    """Return what the gradients of one layer's activations take at most: those of its MLP, or of its scores.

    With sequence parallelism, the input and its gradient are there whole besides, gathered and not yet scattered.
    """
    widths, e = _Widths(job=job, table=table), job.compute_bytes
    inside_C = sum_of((num_bytes_C for name, num_bytes_C, _ in _mlp(widths, kind) if name in _WIDE), table)
    if not job.software.fused_attention:
        inside_C = np.maximum(inside_C, 2 * e * _score_elements_C(widths))
    is_gathered_C = (table.tp_C > 1) & (table.sequence_parallel_C > 0)
    num_hidden_C = np.where(is_gathered_C, 2, 1)
    return np.asarray(inside_C + num_hidden_C * e * job.model.hidden_size * widths.tokens_C)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageActivations:
    """Activations of any stage, what depends on the layer alone computed once for each combination of its columns."""

    job: TransformerJob
    table: LayoutTable
    kept_KC: FloatArray
    again_KC: FloatArray
    gradient_KC: FloatArray
    loss_C: FloatArray
    masks_C: FloatArray

    @classmethod
    def of(cls, job: TransformerJob, table: LayoutTable) -> StageActivations:
        """Compute what one layer of each kind, the loss and the embedding need."""
        found = factor(table, LAYER_COLUMNS)
        kinds = distinct_kinds(job.model)

        def spread(bytes_of: Callable[[TransformerJob, LayoutTable, LayerKind], FloatArray]) -> FloatArray:
            return found.spread(np.array([bytes_of(job, found.table, kind) for kind in kinds]))

        return cls(
            job=job,
            table=table,
            kept_KC=spread(kept_bytes),
            again_KC=spread(recomputed_bytes),
            gradient_KC=spread(gradient_bytes),
            loss_C=found.spread(loss_bytes(job, found.table)),
            masks_C=found.spread(embedding_mask_bytes(job, found.table)),
        )

    def terms(self, stage: StageLayers) -> dict[str, IntArray]:
        """Return bytes by term for one stage.

        ``activations`` are there throughout. The rest is what comes on top at the worst moment: while the loss is
        computed (``logits``, on the last stage) or while the largest layer goes backward (``recomputed_layer`` and
        ``activation_gradients``); the other's terms are zero.
        """
        has_KC = layers_with_ahead(self.job.model, stage) > 0
        kept_C = self._kept_C(stage)
        is_away_C = self.table.offload_C == _ACTIVATIONS_AWAY
        if is_away_C.any():
            in_transit_C = NUM_LAYERS_IN_TRANSIT * np.where(has_KC, self.kept_KC, 0.0).max(axis=0)
            kept_C = np.where(is_away_C, np.minimum(in_transit_C, kept_C), kept_C)
        backward_KC = np.where(has_KC, self.again_KC + self.gradient_KC, -1.0)
        worst_C = np.argmax(backward_KC, axis=0)[None]
        again_C, gradient_C = (
            np.take_along_axis(each_KC, worst_C, axis=0)[0] for each_KC in (self.again_KC, self.gradient_KC)
        )
        loss_C = np.where(stage.is_last_C, self.loss_C, 0.0)
        is_loss_C = loss_C > again_C + gradient_C
        terms = {
            "activations": kept_C,
            "logits": np.where(is_loss_C, loss_C, 0.0),
            "recomputed_layer": np.where(is_loss_C, 0.0, again_C),
            "activation_gradients": np.where(is_loss_C, 0.0, gradient_C),
        }
        return {name: _whole_bytes(num_bytes_C) for name, num_bytes_C in terms.items()}

    def offloaded_C(self, stage: StageLayers) -> IntArray:
        """Return what a stage keeps of all its micro-batches in flight where activations are offloaded, else 0."""
        is_away_C = self.table.offload_C == _ACTIVATIONS_AWAY
        return _whole_bytes(np.where(is_away_C, self._kept_C(stage), 0.0))

    def moved_C(self, stage: StageLayers) -> FloatArray:
        """Return the bytes of one micro-batch's activations that go out and come back, both counted."""
        return np.where(self.table.offload_C == _ACTIVATIONS_AWAY, 2 * self._kept_of_one_C(stage), 0.0)

    def _kept_C(self, stage: StageLayers) -> FloatArray:
        return np.asarray(num_in_flight_C(self.table, stage.stage_C) * self._kept_of_one_C(stage))

    def _kept_of_one_C(self, stage: StageLayers) -> FloatArray:
        masks_C = np.where(stage.is_first_C, self.masks_C, 0.0)
        return np.asarray((layers_with_ahead(self.job.model, stage) * self.kept_KC).sum(axis=0) + masks_C)


def embedding_mask_bytes(job: TransformerJob, table: LayoutTable) -> FloatArray:
    """Return the dropout mask after the embedding; its output is the first layer's input."""
    widths = _Widths(job=job, table=table)
    return widths.masks(job.model.hidden_size)


def loss_bytes(job: TransformerJob, table: LayoutTable) -> FloatArray:
    """Return what the last norm, the output head and the loss hold at once.

    The head's input is gathered where the sequence is split; DTensor has it twice, as it arrives (rank by rank) and in
    order (along the sequence), and the first block is too small for the logits. Copies of those per kernel: FUSED, the
    logits and their gradient; VOCAB_PARALLEL, the logits and one FP32 tensor; EAGER, the logits (whose block is too
    small for what follows) and in FP32 the logarithms of the softmax, the loss's gradient and the logits', with one
    more where the vocabulary is split, whose backward pass in PyTorch holds the exponentials besides. Each further
    token that is predicted has logits of its own.
    """
    widths, e = _Widths(job=job, table=table), job.compute_bytes
    is_split_C = (table.tp_C > 1) & (table.sequence_parallel_C > 0)
    num_gathered = 1 if job.software.regathers_inputs else 2
    inputs_C = 2 * widths.whole(job.model.hidden_size) + np.where(
        is_split_C, num_gathered * e * job.model.hidden_size * widths.tokens_C, 0
    )
    fp32 = FORMAT_BYTES[NumberFormat.FP32]
    per_logit_C = {
        LossKernel.FUSED: np.full(len(table), 2 * e),
        LossKernel.VOCAB_PARALLEL: np.full(len(table), e + fp32),
        LossKernel.EAGER: e + np.where(table.tp_C > 1, 4, 3) * fp32,
    }[job.software.loss]
    logits_C = per_logit_C * ceil_div(job.model.vocab_size, table.tp_C) * widths.tokens_C
    return np.asarray((inputs_C + logits_C) * (1 + job.model.num_predict_ahead_layers))


def dropped_bits(table: LayoutTable) -> IntArray:
    """Return which modules each candidate recomputes, as bits."""
    return np.select(
        [table.recompute_C == FULL, table.recompute_C == SELECTIVE, table.recompute_C == MODULES],
        [np.full(len(table), _EVERYTHING), np.full(len(table), _CORE), table.modules_C],
        default=0,
    )


def sum_of(parts: Iterator[FloatArray], table: LayoutTable) -> FloatArray:
    """Add arrays of C."""
    total_C = np.zeros(len(table))
    for part_C in parts:
        total_C = total_C + part_C
    return total_C


_Part = tuple[str, FloatArray, int]

_WIDE = frozenset(
    f"{part}_{name}" for part in ("mlp", "expert") for name in ("products", "second_products", "activation")
)
"""Tensors of an MLP whose gradients exist at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Widths:
    """Bytes of tensors by how they are split over tensor-parallel ranks."""

    job: TransformerJob
    table: LayoutTable

    @property
    def tokens_C(self) -> FloatArray:
        """Tokens of a micro-batch on one context-parallel rank. Whole, but times widths they overflow 64 bits."""
        per_sequence_C = ceil_div(self.job.sequence_length_tokens, self.table.cp_C)
        return np.asarray(self.table.micro_batch_C * per_sequence_C, dtype=np.float64)

    @property
    def sequence_split_C(self) -> IntArray:
        return np.where(self.table.sequence_parallel_C > 0, self.table.tp_C, 1)

    @property
    def input_bytes(self) -> int:
        """Bytes of a kept value that only products read: Transformer Engine keeps it as it multiplied it."""
        is_narrow = self.job.precision.compute is NumberFormat.FP8 and self.job.software.keeps_narrow_inputs
        return 1 if is_narrow else self.job.compute_bytes

    def whole(self, width: int, *, value_bytes: int | None = None) -> FloatArray:
        """A tensor that only sequence parallelism splits."""
        return (value_bytes or self.job.compute_bytes) * width * self.tokens_C / self.sequence_split_C

    def product_inputs(self, width: int) -> FloatArray:
        """What the products that tensor parallelism splits read: whole unless it is gathered again."""
        if self.job.software.regathers_inputs:
            return self.whole(width, value_bytes=self.input_bytes)
        return np.asarray(float(self.input_bytes * width) * self.tokens_C)

    def masks(self, width: int) -> FloatArray:
        """One byte a value, where there is dropout."""
        return self.whole(width, value_bytes=1) * int(self.job.software.has_dropout)

    def split(self, width: int | IntArray, *, value_bytes: int | None = None) -> FloatArray:
        """A tensor that tensor parallelism splits."""
        return np.asarray((value_bytes or self.job.compute_bytes) * ceil_div(width, self.table.tp_C) * self.tokens_C)


def _attention(widths: _Widths) -> Iterator[_Part]:
    job, model, tp_C = widths.job, widths.job.model, widths.table.tp_C
    # Key and value heads are copied where there are more ranks than heads.
    num_kv_heads_C = ceil_div(model.num_kv_heads, tp_C) * tp_C
    key, value = widths.split(num_kv_heads_C * model.head_size), widths.split(num_kv_heads_C * model.value_head_size)
    yield "input", widths.whole(model.hidden_size), 0
    yield "attention_norm", widths.product_inputs(model.hidden_size), _NORMS | _SECOND
    if model.latent is not None:
        latents = (model.latent.query_latent_size or 0) + model.latent.kv_latent_size
        yield "latents", widths.whole(latents + model.latent.rope_head_size), 0
        yield "latent_norms", widths.product_inputs(latents), _QKV | _NORMS | _SECOND
    yield "query", widths.split(model.query_size), _QKV
    yield "key", key, _QKV | _SECOND
    yield "value", value, _QKV
    if model.qk_norm:
        yield "query_key_norms", widths.split(model.query_size) + key, _QKV | _NORMS | _SECOND
    yield from _scores(widths)
    yield "context", widths.split(model.context_size), 0
    if widths.input_bytes < job.compute_bytes:
        yield "context_as_multiplied", widths.split(model.context_size, value_bytes=widths.input_bytes), _SECOND
    yield "attention_mask", widths.masks(model.hidden_size), 0


def _scores(widths: _Widths) -> Iterator[_Part]:
    """Softmax, and with dropout its mask and result; a fused kernel keeps one FP32 sum a head and token."""
    job, e = widths.job, widths.job.compute_bytes
    if job.software.fused_attention:
        yield "score_sums", widths.split(job.model.num_heads, value_bytes=FORMAT_BYTES[NumberFormat.FP32]), _CORE
        return
    per_score = 2 * e + 1 if job.software.has_dropout else e
    yield "scores", np.asarray(per_score * _score_elements_C(widths)), _CORE | _SECOND


def _score_elements_C(widths: _Widths) -> FloatArray:
    heads_C = ceil_div(widths.job.model.num_heads, widths.table.tp_C)
    return np.asarray(heads_C * widths.tokens_C * float(widths.job.sequence_length_tokens))


def _mlp(widths: _Widths, kind: LayerKind) -> Iterator[_Part]:
    model = widths.job.model
    if not model.parallel_block:
        yield "middle", widths.whole(model.hidden_size), _SECOND
    if model.num_norms_per_layer > 1:
        yield "mlp_norm", widths.product_inputs(model.hidden_size), _NORMS | _SECOND
    num_after = max(model.num_norms_per_layer - 2, 0)  # norms of what attention and MLP give back
    yield "norms_after", num_after * widths.whole(model.hidden_size), _SECOND
    if model.experts is not None and kind.is_moe:
        yield from _routed_experts(widths)
    experts = model.experts if kind.is_moe else None
    width = experts.num_shared * shared_expert_size(experts) if experts else model.ffn_hidden_size
    yield from _hidden(widths, "mlp", widths.split(width), widths.split(width, value_bytes=widths.input_bytes))
    yield "mlp_mask", widths.masks(model.hidden_size), 0


def _routed_experts(widths: _Widths) -> Iterator[_Part]:
    """Each token's copies for its experts, on the rank that has most; router scores in FP32.

    A rank with all experts has exactly its tokens' copies. Where experts are spread, the fullest rank has more than the
    average, but no more than all tokens of its group can send to the experts it has.
    """
    job, table, experts = widths.job, widths.table, widths.job.model.experts
    if experts is None:
        return
    most_C = table.ep_C * np.minimum(experts.num_active, ceil_div(experts.num_routed, table.ep_C)) / experts.num_active
    load_C = np.where(table.ep_C > 1, np.minimum(np.maximum(job.software.expert_load_ratio, 1.0), most_C), 1.0)
    copies_C = experts.num_active * load_C * widths.tokens_C * table.etp_C / table.tp_C
    width_C = ceil_div(experts.expert_hidden_size, table.etp_C)
    yield "router", widths.whole(experts.num_routed, value_bytes=2 * FORMAT_BYTES[NumberFormat.FP32]), _MLP
    yield "expert_inputs", copies_C * job.model.hidden_size * widths.input_bytes, _MLP
    yield from _hidden(
        widths, "expert", copies_C * width_C * job.compute_bytes, copies_C * width_C * widths.input_bytes
    )


def _hidden(widths: _Widths, name: str, wide_C: FloatArray, activated_C: FloatArray) -> Iterator[_Part]:
    """Products into the wide side of an MLP, and what its activation function makes of them.

    Without fusion, a gated MLP keeps the function's own result too, before it is multiplied with the other branch.
    """
    model = widths.job.model
    yield f"{name}_products", wide_C, _MLP
    if num_mlp_matrices(model) > 2:
        yield f"{name}_second_products", wide_C, _MLP | _SECOND
        if not widths.job.software.fused_elementwise:
            yield f"{name}_gates", wide_C, _MLP | _ACT | _SECOND
    yield f"{name}_activation", activated_C, _MLP | _ACT | _SECOND
