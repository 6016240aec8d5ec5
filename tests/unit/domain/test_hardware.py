"""Facts about machines are values: frozen, named by keyword, with every rate in units that its name states."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from airflow_llmsched.domain.hardware import Accelerator, NodeShape, NumberFormat

CHIP = Accelerator(
    name="chip", memory_bytes=2**30, memory_bandwidth_bytes_per_s=1e12, peak_flop_per_s={NumberFormat.BF16: 1e14},
    source="made up, 2026",
)  # fmt: skip


def test_a_node_shape_needs_no_more_than_links_and_a_price() -> None:
    shape = NodeShape(
        name="box", accelerator=CHIP, num_accelerators=8, intra_node_bandwidth_bytes_per_s=1e11,
        inter_node_bandwidth_bytes_per_s=1e10, usd_per_hour=10.0, source="made up, 2026",
    )  # fmt: skip
    assert shape.overlaps_communication
    assert shape.intra_node_latency_s < shape.inter_node_latency_s
    assert 0 < shape.achievable_bandwidth_ratio <= 1


def test_an_accelerator_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CHIP.memory_bytes = 1  # type: ignore[misc]


def test_number_formats_have_the_names_that_specs_use() -> None:
    assert [each.value for each in NumberFormat] == ["fp32", "tf32", "bf16", "fp16", "fp8"]
