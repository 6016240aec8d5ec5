"""Seconds of single operations on one device: a roofline with rates that depend on shape. Pure. Axis: C = candidate.

Williams et al. (2009) for the roofline. How far a matrix product stays below its asymptotic rate is two saturations: in
the contracted depth, over which a tile's start and end are spread, and in the area of the result, which is what keeps
all multiprocessors busy in the last wave (NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave
quantisation, here without their steps, since libraries choose among many tiles).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_llmsched.domain.hardware import Accelerator, NumberFormat
from airflow_llmsched.domain.software import AttentionKernel
from airflow_llmsched.planner.perf.job import FORMAT_BYTES, TransformerJob
from airflow_llmsched.planner.perf.rates import Rates, attention_speedup, clock_ratio

Number = float | npt.NDArray[Any]

HALF_SEQUENCE_TOKENS = 500
"""Keys at which fused attention runs at half its rate (FlashAttention-2 on A100, Dao 2023, figures 5 and 6)."""

HALF_HEAD_SIZE = 32
"""Head size at which it does: 64 is about 0.85 of 128 there."""

FLASH_1_RATIO = 0.55
"""Rate of FlashAttention to that of FlashAttention-2 on A100: "about 2x" (Dao 2023, section 4.1)."""

RATED_HEAD_SIZE = 128
RAGGED_ROWS = 64
"""Rows that a group of a grouped product wastes on average: half of a tile of 128."""

BACKWARD_ATTENTION_RATIO = 2.5
"""Fused attention backward to forward: five products instead of two, as scores are computed again (Dao et al. 2022)."""


class Part(StrEnum):
    """Parts of a layer, as far as recomputation tells them apart."""

    NORMS = "norms"
    QKV = "qkv"
    CORE = "core"
    OUT = "out"
    RESIDUAL = "residual"
    MLP = "mlp"
    ACTIVATION = "activation"
    ROUTING = "routing"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """Seconds of one pass, by what they go into, and how many kernels it launches."""

    matmul_s: Number = 0.0
    attention_s: Number = 0.0
    elementwise_s: Number = 0.0
    num_kernels: Number = 0.0

    def __add__(self, other: Pass) -> Pass:
        """One after the other."""
        return Pass(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def times(self, factor: Number) -> Pass:
        """Several times."""
        return Pass(**{each.name: getattr(self, each.name) * factor for each in fields(self)})

    @property
    def total_s(self) -> Number:
        """All of it, on the device."""
        return self.matmul_s + self.attention_s + self.elementwise_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One operation of a layer. ``weight_gradient`` is a part of ``backward`` that nothing in the pass waits for."""

    part: Part
    forward: Pass
    backward: Pass
    weight_gradient: Pass = Pass()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What operations cost on one accelerator, for one job's formats and software."""

    peak_flop_per_s: float
    wide_peak_flop_per_s: float
    operand_bytes: float
    bandwidth_bytes_per_s: float
    matmul_ratio: float
    wide_matmul_ratio: float
    is_narrow: bool
    attention_ratio: float
    rates: Rates

    @classmethod
    def of(cls, job: TransformerJob, accelerator: Accelerator, rates: Rates) -> Device:
        """Raises ``KeyError`` when the accelerator lacks the job's number format."""
        compute = job.precision.compute
        peak = sustained_peak_flop_per_s(accelerator, compute)
        clock = clock_ratio(accelerator)
        is_narrow = FORMAT_BYTES[compute] < 2
        wide = accelerator.peak_flop_per_s.get(NumberFormat.BF16, peak) if is_narrow else peak
        return cls(
            peak_flop_per_s=peak,
            wide_peak_flop_per_s=wide,
            operand_bytes=FORMAT_BYTES[compute],
            bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s * rates.memory_ratio,
            matmul_ratio=min(1.0, clock * (rates.narrow_matmul_ratio if is_narrow else rates.matmul_ratio)),
            wide_matmul_ratio=min(1.0, clock * rates.matmul_ratio),
            is_narrow=is_narrow,
            attention_ratio=min(
                1.0, clock * attention_speedup(accelerator) * _attention_ratio(job.software.attention_kernel, rates)
            ),
            rates=rates,
        )

    def product(
        self, m: Number, n: Number, k: Number, *, num_groups: Number = 1, ragged: bool = False, wide: bool = False
    ) -> Pass:
        """``num_groups`` products of (m, k) with (k, n) in one kernel; ``wide`` ones stay in 16 bits."""
        rows = np.asarray(m, dtype=np.float64) + (RAGGED_ROWS if ragged else 0)
        area = num_groups * rows * n
        peak = self.wide_peak_flop_per_s * self.wide_matmul_ratio if wide else self.peak_flop_per_s * self.matmul_ratio
        below = (1 + self.rates.matmul_half_depth_size / k) * (1 + self.rates.matmul_half_area_size / area)
        operand_bytes = 2.0 if wide else self.operand_bytes
        moved_bytes = num_groups * ((m * k + k * n) * operand_bytes + m * n * 2.0)
        flop_s = 2 * area * k / peak * below
        return Pass(
            matmul_s=np.maximum(flop_s, moved_bytes / self.bandwidth_bytes_per_s) + self.rates.kernel_s, num_kernels=1
        )

    def sweep(self, num_bytes: Number, *, num_kernels: float = 1) -> Pass:
        """Elementwise work and reductions along rows: as long as its traffic takes."""
        return Pass(
            elementwise_s=num_bytes / self.bandwidth_bytes_per_s + num_kernels * self.rates.kernel_s,
            num_kernels=num_kernels,
        )

    def fused_attention(self, *, flop: Number, num_keys: Number, head_size: int, num_bytes: Number) -> Pass:
        """A forward pass of attention that keeps scores on chip; ``flop`` are those it does."""
        reached = self.attention_ratio / (
            (1 + HALF_SEQUENCE_TOKENS / np.asarray(num_keys))
            * (1 + HALF_HEAD_SIZE / head_size)
            / (1 + HALF_HEAD_SIZE / RATED_HEAD_SIZE)
        )
        flop_s = flop / (self.wide_peak_flop_per_s * reached)
        return Pass(
            attention_s=np.maximum(flop_s, num_bytes / self.bandwidth_bytes_per_s) + self.rates.kernel_s,
            num_kernels=1,
        )


def sustained_peak_flop_per_s(accelerator: Accelerator, compute: NumberFormat) -> float:
    """Return the peak of a format as far as power allows: halving operands at most halves the energy of an operation.

    So 4 bits are at most twice as fast as 8, though Blackwell Ultra's data sheet says three times. Raises ``KeyError``
    for a format that the accelerator lacks.
    """
    peak = accelerator.peak_flop_per_s[compute]
    if compute is not NumberFormat.FP4 or NumberFormat.FP8 not in accelerator.peak_flop_per_s:
        return peak
    return min(peak, 2 * accelerator.peak_flop_per_s[NumberFormat.FP8])


def _attention_ratio(kernel: AttentionKernel, rates: Rates) -> float:
    match kernel:
        case AttentionKernel.CURRENT:
            return rates.attention_ratio
        case AttentionKernel.FLASH_2:
            return rates.attention_ratio * rates.older_attention_ratio
        case AttentionKernel.FLASH_1:
            return rates.attention_ratio * rates.older_attention_ratio * FLASH_1_RATIO
