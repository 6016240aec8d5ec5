"""What the ends of a model compute for one micro-batch on one rank: embedding, output head and loss. Pure.

Axis: C = candidate layout. Embedding and head are split by words over tensor-parallel ranks, and so is the loss
(Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_llmsched.domain.software import LossKernel
from airflow_llmsched.planner.perf.job import FORMAT_BYTES
from airflow_llmsched.planner.perf.layer_work import LayerWork
from airflow_llmsched.planner.perf.ops import Operation, Part

FUSED_LOSS_BYTES = (10.0, 6.0)
"""Bytes per logit, forward and backward, where the loss is one kernel: FP32 read twice and scaled in place."""

PLAIN_LOSS_BYTES = (34.0, 16.0)
"""Operator by operator in FP32: conversion, maximum, difference, exponential, sum, quotient; product, conversion."""


def embedding_operations(work: LayerWork) -> Iterator[Operation]:
    """Rows are looked up, and their gradients added to the table's."""
    num_elements = work.job.model.hidden_size * work.tokens_C
    e, gradient = work.job.compute_bytes, FORMAT_BYTES[work.job.precision.gradients]
    yield Operation(
        part=Part.RESIDUAL,
        forward=work.device.sweep(2 * e * num_elements, num_kernels=3),
        backward=work.device.sweep((e + 2 * gradient) * num_elements, num_kernels=3),
    )


def head_operations(work: LayerWork) -> Iterator[Operation]:
    """The head, and once more for each block of multi-token prediction, which makes one input of two before its layer.

    DeepSeek-AI 2024, "DeepSeek-V3", section 2.2. The blocks' layers are counted with the last stage's.
    """
    model = work.job.model
    yield from _logits(work)
    for _ in range(model.num_predict_ahead_layers):
        yield work.elementwise(Part.NORMS, work.norm, 2 * model.hidden_size * work.own_tokens_C)
        yield work.product(Part.OUT, n=model.hidden_size / work.table.tp_C, k=2 * model.hidden_size)
        yield from _logits(work)


def _logits(work: LayerWork) -> Iterator[Operation]:
    """The last norm, logits (which stay in 16 bits when layers are narrower) and cross-entropy."""
    model, tp_C = work.job.model, work.table.tp_C
    yield work.elementwise(Part.NORMS, work.norm, model.hidden_size * work.own_tokens_C)
    yield work.product(Part.OUT, n=model.vocab_size / tp_C, k=model.hidden_size, wide=True)
    num_logits_C = work.tokens_C * model.vocab_size / tp_C
    is_fused = work.job.software.loss is LossKernel.FUSED
    forward, backward = FUSED_LOSS_BYTES if is_fused else PLAIN_LOSS_BYTES
    yield Operation(
        part=Part.RESIDUAL,
        forward=work.device.sweep(forward * num_logits_C, num_kernels=1 if is_fused else 8),
        backward=work.device.sweep(backward * num_logits_C, num_kernels=1 if is_fused else 3),
    )
