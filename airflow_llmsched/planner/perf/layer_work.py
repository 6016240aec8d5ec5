"""What one layer computes for one micro-batch on one rank: its operations, with their shapes after every split. Pure.

Axis: C = candidate layout. Products with a weight run three times: forward, for the gradient to their input and for
that to the weight. Passes over memory are counted in reads and writes of a tensor; hand-written or compiled kernels
need fewer than the plain operators of a framework. Splits follow Shoeybi et al. (2019) and Korthikanti et al. (2022)
for tensor and sequence parallelism, and Megatron-Core for experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.workload import LatentAttention, Positions
from airflow_llmsched.planner.layout_table import FloatArray, LayoutTable
from airflow_llmsched.planner.perf.job import FORMAT_BYTES, TransformerJob
from airflow_llmsched.planner.perf.layers import LayerKind
from airflow_llmsched.planner.perf.ops import BACKWARD_ATTENTION_RATIO, Device, Number, Operation, Part, Pass
from airflow_llmsched.planner.perf.parameters import num_mlp_matrices, shared_expert_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Reads and writes of a tensor, and kernels, for one kind of elementwise work: fused and plain."""

    forward: float
    backward: float
    plain_forward: float
    plain_backward: float
    plain_kernels: int = 3


NORM = Passes(forward=2, backward=3, plain_forward=2, plain_backward=4, plain_kernels=2)
RMS_NORM = Passes(forward=2, backward=3, plain_forward=13, plain_backward=16, plain_kernels=6)
"""Frameworks have a kernel for layer norm; RMS norm is made of operators in FP32 where nothing joins them."""

RESIDUAL = Passes(forward=3, backward=2, plain_forward=3, plain_backward=3, plain_kernels=2)
PLAIN_ACTIVATION = Passes(forward=2, backward=3, plain_forward=2, plain_backward=3, plain_kernels=1)
GATED_ACTIVATION = Passes(forward=3, backward=5, plain_forward=5, plain_backward=9, plain_kernels=2)
ROTARY = Passes(forward=2, backward=2, plain_forward=10, plain_backward=10, plain_kernels=6)
TRANSPOSE = Passes(forward=1, backward=1, plain_forward=2, plain_backward=2)
BIAS = Passes(forward=2, backward=1, plain_forward=2, plain_backward=1, plain_kernels=1)
PERMUTE = Passes(forward=6, backward=6, plain_forward=10, plain_backward=10, plain_kernels=8)
ROUTING = Passes(forward=8, backward=8, plain_forward=16, plain_backward=16, plain_kernels=10)
"""Softmax, the largest k and the auxiliary loss, in FP32."""


KERNELS_PER_NARROW_EXPERT = 3
"""Launches of one expert's product in a narrow format: its operands are scaled along rows and along columns, each by
itself, before it (Transformer Engine's GroupedLinear, 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWork:
    """Builds the operations of layers of one kind. Sizes are those of one rank and one micro-batch."""

    job: TransformerJob
    table: LayoutTable
    device: Device

    @property
    def tokens_C(self) -> FloatArray:
        """Tokens whose matrix products a tensor-parallel group shares."""
        return np.asarray(self.table.micro_batch_C * self.job.sequence_length_tokens / self.table.cp_C)

    @property
    def own_tokens_C(self) -> FloatArray:
        """Tokens whose norms and residuals this rank handles: its share with sequence parallelism, else all."""
        return np.where(self.table.sequence_parallel_C > 0, self.tokens_C / self.table.tp_C, self.tokens_C)

    @property
    def expert_load_C(self) -> FloatArray:
        """Tokens of the fullest rank's experts relative to the average; a rank that has all experts is average."""
        return np.where(self.table.ep_C > 1, self.job.software.expert_load_ratio, 1.0)

    @property
    def norm(self) -> Passes:
        """Passes of this model's norm; one without shift is an RMS norm."""
        return NORM if self.job.model.norm_has_bias or not self.job.model.norm_has_weight else RMS_NORM

    def operations(self, kind: LayerKind) -> Iterator[Operation]:
        """Yield what a layer does, in order."""
        model, table = self.job.model, self.table
        h, q, key, value, context = (
            model.hidden_size, model.query_size, model.key_size, model.value_size, model.context_size,
        )  # fmt: skip
        yield self.elementwise(Part.NORMS, self.norm, h * self.own_tokens_C)
        yield from self.latents(model.latent) if model.latent else self.inputs()
        if model.qk_norm:
            yield self.elementwise(Part.NORMS, self.norm, (q + key) / table.tp_C * self.tokens_C)
        if model.positions is Positions.ROTARY:
            yield self.elementwise(Part.QKV, ROTARY, (q + key) / table.tp_C * self.tokens_C)
        yield self.elementwise(Part.QKV, TRANSPOSE, (q + key + value + context) / table.tp_C * self.tokens_C)
        yield from self.core(kind)
        yield self.product(Part.OUT, n=h, k=context / table.tp_C)
        yield self.elementwise(Part.RESIDUAL, RESIDUAL, h * self.own_tokens_C)
        for _ in range(model.num_norms_per_layer - 1):
            yield self.elementwise(Part.NORMS, self.norm, h * self.own_tokens_C)
        if kind.is_moe:
            yield from self.experts()
        else:
            yield from self.mlp(model.ffn_hidden_size)
        yield self.elementwise(Part.RESIDUAL, RESIDUAL, h * self.own_tokens_C)

    def inputs(self) -> Iterator[Operation]:
        """Queries, keys and values in one product; key and value heads are copied where there are few."""
        model, tp_C = self.job.model, self.table.tp_C
        copies_C = np.maximum(1, tp_C / model.num_kv_heads)
        wide_C = model.query_size + (model.key_size + model.value_size) * copies_C
        yield self.product(Part.QKV, n=wide_C / tp_C, k=model.hidden_size)

    def latents(self, latent: LatentAttention) -> Iterator[Operation]:
        """Multi-head latent attention: down to the latents, whole on each rank, a norm on each, and up to the heads."""
        model, tp_C = self.job.model, self.table.tp_C
        down = (latent.query_latent_size or 0) + latent.kv_latent_size
        yield self.product(Part.QKV, n=down + latent.rope_head_size, k=model.hidden_size)
        yield self.elementwise(Part.NORMS, self.norm, down * self.tokens_C)
        yield self.product(Part.QKV, n=model.query_size / tp_C, k=latent.query_latent_size or model.hidden_size)
        per_head = model.head_size - latent.rope_head_size + latent.value_head_size
        yield self.product(Part.QKV, n=model.num_heads * per_head / tp_C, k=latent.kv_latent_size)

    def core(self, kind: LayerKind) -> Iterator[Operation]:
        """Attention itself. Fused kernels skip what a causal mask hides; unfused ones write all scores to memory."""
        job, model, table = self.job, self.job.model, self.table
        sequence = job.sequence_length_tokens
        window = min(sequence, kind.window_tokens or sequence)
        q, kv, context = model.query_size, model.key_size + model.value_size, model.context_size
        if job.software.fused_attention:
            keys = window * (1 - window / (2 * sequence))
            flop_C = 2 * self.tokens_C * keys * (q + context) / table.tp_C
            moved_C = job.compute_bytes * self.tokens_C * (q + context + kv * table.cp_C) / table.tp_C
            forward = self.device.fused_attention(
                flop=flop_C, num_keys=window, head_size=model.head_size, num_bytes=moved_C
            )
            yield Operation(
                part=Part.CORE,
                forward=forward,
                backward=forward.times(BACKWARD_ATTENTION_RATIO),
            )
            return
        heads_C = table.micro_batch_C * model.num_heads / table.tp_C
        rows_C = sequence / table.cp_C
        scores = self.device.product(rows_C, sequence, model.head_size, num_groups=heads_C, wide=True)
        summed = self.device.product(rows_C, model.value_head_size, sequence, num_groups=heads_C, wide=True)
        yield Operation(
            part=Part.CORE, forward=_attention(scores + summed), backward=_attention(scores + summed.times(3))
        )
        yield self.softmax(heads_C, heads_C * rows_C * sequence)

    def softmax(self, heads_C: FloatArray, scores_C: FloatArray) -> Operation:
        """Masked softmax and dropout of scores in memory: fused, or plain where no kernel serves so many heads."""
        software, e = self.job.software, self.job.compute_bytes
        dropout = 2 * e + 1 if software.has_dropout else 0
        forward = self.device.sweep((2 * e + dropout) * scores_C, num_kernels=1 + (dropout > 0))
        backward = self.device.sweep((3 * e + dropout) * scores_C, num_kernels=1 + (dropout > 0))
        plain = self.device.sweep((8 * e + 2) * scores_C, num_kernels=5)
        is_plain_C = np.asarray(heads_C % software.num_heads_per_softmax != 0, dtype=np.float64)
        return Operation(
            part=Part.CORE, forward=forward + plain.times(is_plain_C), backward=backward + plain.times(is_plain_C)
        )

    def mlp(self, width: int) -> Iterator[Operation]:
        """A dense MLP of ``width``, or shared experts together as one."""
        model, tp_C = self.job.model, self.table.tp_C
        yield self.product(Part.MLP, n=(num_mlp_matrices(model) - 1) * width / tp_C, k=model.hidden_size)
        activation = GATED_ACTIVATION if model.gated_mlp else PLAIN_ACTIVATION
        yield self.elementwise(Part.ACTIVATION, activation, width / tp_C * self.tokens_C)
        yield self.product(Part.MLP, n=model.hidden_size, k=width / tp_C)

    def experts(self) -> Iterator[Operation]:
        """Routing, sorting tokens by expert before and after they travel, the experts of this rank, and the way back.

        Each rank of an expert-tensor group has the copies of all of that group.
        """
        model, table, experts = self.job.model, self.table, self.job.model.experts
        assert experts is not None
        own_C = self.tokens_C / table.tp_C
        copies_C = own_C * experts.num_active * table.etp_C * self.expert_load_C
        num_local_C = np.maximum(experts.num_routed / table.ep_C, 1)
        yield self.product(Part.ROUTING, n=experts.num_routed, k=model.hidden_size, m=own_C)
        yield self.elementwise(Part.ROUTING, ROUTING, 2 * experts.num_routed * own_C)
        yield self.elementwise(Part.ROUTING, PERMUTE, model.hidden_size * copies_C)
        width_C = experts.expert_hidden_size / table.etp_C
        rows_C = copies_C / num_local_C
        yield self.product(
            Part.MLP, n=(num_mlp_matrices(model) - 1) * width_C, k=model.hidden_size, m=rows_C, num_groups=num_local_C
        )
        activation = GATED_ACTIVATION if model.gated_mlp else PLAIN_ACTIVATION
        yield self.elementwise(Part.ACTIVATION, activation, width_C * copies_C)
        yield self.product(Part.MLP, n=model.hidden_size, k=width_C, m=rows_C, num_groups=num_local_C)
        if model.mlp_bias:  # products of dense layers add a bias by themselves, grouped ones do not
            wide_C = (num_mlp_matrices(model) - 1) * width_C + model.hidden_size
            yield self.elementwise(Part.MLP, BIAS, wide_C * copies_C)
        if experts.num_shared:
            yield from self.mlp(experts.num_shared * shared_expert_size(experts))

    def product(
        self, part: Part, *, n: Number, k: Number, m: Number | None = None, num_groups: Number | None = None,
        wide: bool = False,
    ) -> Operation:  # fmt: skip
        """A product with weights of (k, n) and its two gradients.

        Gradients to weights are added up over micro-batches, and operands of narrow formats converted first. A grouped
        product is one on the device, but the host launches it expert by expert, conversions included.
        """
        rows = self.tokens_C if m is None else m
        groups = 1 if num_groups is None else num_groups
        ragged = num_groups is not None

        def once(m: Number, n: Number, k: Number, *, ragged: bool = False) -> Pass:
            found = self.device.product(m, n, k, num_groups=groups, ragged=ragged, wide=wide)
            if num_groups is None:
                return found
            return replace(found, num_kernels=groups * (KERNELS_PER_NARROW_EXPERT if self.device.is_narrow else 1))

        to_weight = once(k, n, rows) + self.accumulation(groups * n * k)
        return Operation(
            part=part,
            forward=once(rows, n, k, ragged=ragged) + self.conversion(groups * rows * k, wide=wide),
            backward=once(rows, k, n, ragged=ragged) + to_weight + self.conversion(groups * rows * n, wide=wide),
            weight_gradient=to_weight,
        )

    def accumulation(self, num_weights: Number) -> Pass:
        """Adding one micro-batch's gradients to those before: in the product's own kernel, or after it."""
        gradient_bytes = FORMAT_BYTES[self.job.precision.gradients]
        if self.job.software.fused_accumulation:
            return self.device.sweep(2 * gradient_bytes * num_weights, num_kernels=0)
        return self.device.sweep((2 * gradient_bytes + self.job.compute_bytes) * num_weights)

    def conversion(self, num_operands: Number, *, wide: bool) -> Pass:
        """Reading 16 bits twice, for the largest value and to scale, and writing a narrow format, once more transposed.

        So does tensor-wise current scaling (Transformer Engine), of which other recipes of 8 bits save or add a part.
        With 4 bits outliers are spread by a Hadamard transform first, which writes and reads its result (NVIDIA 2025,
        "Pretraining Large Language Models with NVFP4").
        """
        if wide or not self.device.is_narrow:
            return Pass()
        transform_bytes = 2 * 2 if self.device.operand_bytes < 1 else 0
        return self.device.sweep((2 * 2 + transform_bytes + 2 * self.device.operand_bytes) * num_operands)

    def elementwise(self, part: Part, passes: Passes, num_elements: Number) -> Operation:
        """Work without matrix products on a tensor of ``num_elements``."""
        e = self.job.compute_bytes
        if self.job.software.fused_elementwise:
            kernels = 1 if passes.forward else 0
            forward, backward = passes.forward, passes.backward
        else:
            kernels, forward, backward = passes.plain_kernels, passes.plain_forward, passes.plain_backward
        return Operation(
            part=part,
            forward=self.device.sweep(forward * e * num_elements, num_kernels=kernels),
            backward=self.device.sweep(backward * e * num_elements, num_kernels=kernels),
        )


def _attention(products: Pass) -> Pass:
    return Pass(attention_s=products.matmul_s, elementwise_s=products.elementwise_s, num_kernels=products.num_kernels)
