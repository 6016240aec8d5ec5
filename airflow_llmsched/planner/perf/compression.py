"""Gradients made smaller before replicas exchange them: what it saves on the wire, costs to do, and risks. Pure.

Axis: C = candidate layout. It needs gradients whole on each replica: candidates whose ZeRO stage shards them exchange
them as ever. Priced as the methods that one can switch on are built: PyTorch's hooks of ``DistributedDataParallel`` and
DeepSpeed's 1-bit Adam. Not modelled: the first steps, which are exchanged whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.workload import CompressionKind, GradientCompression
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.perf.collectives import Span, all_gather_s, all_reduce_s, all_to_all_s
from airflow_llmsched.planner.perf.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What a kind of compression costs. All per parameter of a rank, in bytes of its accelerator's memory.

    Attributes:
        swept_bytes: read and written to compress, and to take up what did not fit.
        restored_bytes: read and written for what each member of the group sent.
        kept_bytes: residuals and other state that stays from step to step.
        is_hidden: the exchange runs beside the backward pass.
        risk: what it may do to training, with the source.
    """

    swept_bytes: float
    restored_bytes: float
    kept_bytes: float
    is_hidden: bool
    risk: str


METHODS: Mapping[CompressionKind, Method] = MappingProxyType({
    # velocity and residual are read and written, the gradient read, the residual read again to select
    CompressionKind.TOP_K: Method(
        swept_bytes=24.0, restored_bytes=0.0, kept_bytes=8.0, is_hidden=True,
        risk="Values wait hundreds of steps until they are sent. Published without loss of accuracy at 0.1% on "
        "networks of 2018, with warm-up, clipping on each rank and momentum correction, and without Adam (Lin et al. "
        "2018); without these it diverges. Not shown for large language models.",
    ),
    # two products read the matrix, the residual is read, added and written, the result written
    CompressionKind.POWER_SGD: Method(
        swept_bytes=24.0, restored_bytes=0.0, kept_bytes=4.0, is_hidden=True,
        risk="The error of a low rank is fed back one step late; too small a rank slows convergence or stalls it. "
        "Rank 4 kept the accuracy of an LSTM (Vogels et al. 2019), Transformers of 3 to 12 billion parameters took 512 "
        "to 896 (Ramesh et al. 2021). Compare the loss with an exact run first.",
    ),
    # values are read and written once narrow; of each member they are read, widened and added up
    CompressionKind.EIGHT_BIT: Method(
        swept_bytes=5.0, restored_bytes=9.0, kept_bytes=0.0, is_hidden=True,
        risk="One scale for a whole bucket: small gradients beside large ones become zero, and nothing feeds the error "
        "back (PyTorch's quantization_pertensor_hook). Loss spikes where gradients have outliers.",
    ),
    # errors of worker and server are read and written, the momentum read and written, signs packed
    CompressionKind.ONE_BIT: Method(
        swept_bytes=25.0, restored_bytes=0.0, kept_bytes=4.0, is_hidden=False,
        risk="The variance of Adam is frozen after the exact steps: converged like Adam for BERT when those were "
        "about 15% of all (Tang et al. 2021). Frozen too early it diverges, and what stops changing cannot follow "
        "new data.",
    ),
})  # fmt: skip

SPARSE_BYTES = 8
"""A value that is sent alone: FP32 and its index."""
_FACTOR_BYTES = 4
_SIGNS_PER_BYTE = 8
_FLOP_PER_RANK = 6
"""Two products with a matrix and one that restores it, a multiplication and an addition each."""


def exchange_s(
    compression: GradientCompression, parameters_C: FloatArray, span: Span, *, hidden_size: int, split_C: IntArray
) -> FloatArray:
    """Return the seconds that a group takes to exchange its gradients.

    Matrices are taken as ``hidden_size`` by ``hidden_size`` over ``split_C`` ranks: others of a Transformer are larger,
    and compress better. Sparse and 8-bit values cannot be added up on their way, and all go to all.
    """
    match compression.kind:
        case CompressionKind.TOP_K:
            sent_C = SPARSE_BYTES * compression.kept_ratio * parameters_C
            return all_gather_s(num_bytes=span.size_C * sent_C, span=span)
        case CompressionKind.EIGHT_BIT:
            return all_gather_s(num_bytes=span.size_C * parameters_C, span=span)
        case CompressionKind.ONE_BIT:
            sent_C = parameters_C / _SIGNS_PER_BYTE
            return all_to_all_s(num_bytes=sent_C, span=span) + all_gather_s(num_bytes=sent_C, span=span)
        case CompressionKind.POWER_SGD:
            rows_C = np.maximum(hidden_size / split_C, 1)
            left_C, right_C = (np.minimum(compression.rank / side, 0.5) for side in (rows_C, hidden_size))
            return all_reduce_s(num_bytes=_FACTOR_BYTES * left_C * parameters_C, span=span) + all_reduce_s(
                num_bytes=_FACTOR_BYTES * right_C * parameters_C, span=span
            )


def compress_s(
    compression: GradientCompression, parameters_C: FloatArray, size_C: IntArray, machine: Machine
) -> FloatArray:
    """Return the seconds that a rank of a group of ``size_C`` takes to compress and restore; none when alone."""
    method, chip = METHODS[compression.kind], machine.shape.accelerator
    restored_bytes = method.restored_bytes
    if compression.kind is CompressionKind.TOP_K:
        restored_bytes = 2 * SPARSE_BYTES * compression.kept_ratio
    swept_C = parameters_C * (method.swept_bytes + restored_bytes * size_C)
    seconds_C = swept_C / (chip.memory_bandwidth_bytes_per_s * machine.reached.memory_ratio)
    if compression.kind is CompressionKind.POWER_SGD:
        peak = chip.peak_flop_per_s.get(NumberFormat.FP32, max(chip.peak_flop_per_s.values()))
        seconds_C = np.maximum(seconds_C, _FLOP_PER_RANK * compression.rank * parameters_C / peak)
    return np.where(size_C > 1, seconds_C, 0.0)


def kept_bytes(compression: GradientCompression, parameters_C: IntArray) -> IntArray:
    """Return the bytes that a rank keeps from step to step."""
    return np.asarray(np.ceil(METHODS[compression.kind].kept_bytes * parameters_C), dtype=np.int64)


def pytorch_settings(compression: GradientCompression) -> str | None:
    """Return the line of a script that switches it on for ``DistributedDataParallel``; None: PyTorch has no such hook.

    Names as in PyTorch 2.13 (``torch.distributed.algorithms.ddp_comm_hooks``).
    """
    match compression.kind:
        case CompressionKind.POWER_SGD:
            return (
                "model.register_comm_hook(powerSGD_hook.PowerSGDState(process_group=None, "
                f"matrix_approximation_rank={compression.rank}, start_powerSGD_iter={compression.num_exact_steps}), "
                "powerSGD_hook.powerSGD_hook)"
            )
        case CompressionKind.EIGHT_BIT:
            return "model.register_comm_hook(None, quantization_hooks.quantization_pertensor_hook)"
        case _:
            return None
