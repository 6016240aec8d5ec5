"""Accelerators and node shapes: dense peaks, memory and links, as the vendor states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class NumberFormat(StrEnum):
    """Format of the matrix operands, and of stored weights where named so."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device. ``peak_flop_per_s`` is dense, by operand format.

    ``reserved_bytes`` is what driver, runtime and communication library hold before the first tensor.
    ``achievable_compute_ratio`` is the share of the peak that the matrix products of training layers reach.
    ``kernel_overhead_s`` is what each kernel costs besides its work.
    """

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[NumberFormat, float]
    source: str
    reserved_bytes: int = 0
    achievable_compute_ratio: float = 0.5
    kernel_overhead_s: float = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """One kind of machine. Bandwidths are one-way and per accelerator; price is the list price of the whole node.

    Latencies are one hop of a collective. ``achievable_bandwidth_ratio`` is the share of a link or of memory that large
    transfers reach. ``overlaps_communication`` is False where collectives take the processor that computes.
    """

    name: str
    accelerator: Accelerator
    num_accelerators: int
    intra_node_bandwidth_bytes_per_s: float
    inter_node_bandwidth_bytes_per_s: float
    usd_per_hour: float
    source: str
    intra_node_latency_s: float = 4e-6
    inter_node_latency_s: float = 14e-6
    achievable_bandwidth_ratio: float = 0.8
    overlaps_communication: bool = True
