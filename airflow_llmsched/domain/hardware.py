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
    """One device. ``peak_flop_per_s`` is dense, by operand format."""

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[NumberFormat, float]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """One kind of machine. Bandwidths are one-way and per accelerator; price is the list price of the whole node."""

    name: str
    accelerator: Accelerator
    num_accelerators: int
    intra_node_bandwidth_bytes_per_s: float
    inter_node_bandwidth_bytes_per_s: float
    usd_per_hour: float
    source: str
