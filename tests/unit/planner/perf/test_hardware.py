from __future__ import annotations

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE, accelerators, node_shape, node_shapes
from airflow_llmsched.units import GB, GIB


def test_every_fact_has_a_source_with_a_year() -> None:
    for entry in (*accelerators().values(), *node_shapes().values()):
        assert "20" in entry.source, entry.name


def test_rates_are_ordered_as_physics_has_it() -> None:
    for shape in node_shapes().values():
        chip = shape.accelerator
        assert shape.inter_node_bandwidth_bytes_per_s <= shape.intra_node_bandwidth_bytes_per_s
        assert shape.intra_node_bandwidth_bytes_per_s <= chip.memory_bandwidth_bytes_per_s
        assert 0 < chip.achievable_compute_ratio < 1
        assert 0 < chip.reserved_bytes < chip.memory_bytes
        assert 0 < shape.usd_per_hour / shape.num_accelerators < 20


def test_published_peaks_are_dense() -> None:
    """NVIDIA datasheets: 312 TFLOP/s on A100, 989.5 on H100 SXM, BF16 without sparsity."""
    assert accelerators()["a100-80gb"].peak_flop_per_s[NumberFormat.BF16] == 312e12
    assert accelerators()["h100-sxm"].peak_flop_per_s[NumberFormat.BF16] == 989.5e12


def test_network_rates_are_the_nodes_divided_among_its_accelerators() -> None:
    """EFA: 3,200 Gb/s on p5.48xlarge, 400 on p4d.24xlarge."""
    assert node_shape("p5.48xlarge").inter_node_bandwidth_bytes_per_s * 8 == 3200 / 8 * GB
    assert node_shape("p4d.24xlarge").inter_node_bandwidth_bytes_per_s * 8 == 400 / 8 * GB


def test_the_local_shape_is_one_process_on_one_core_with_a_price() -> None:
    shape = node_shape(LOCAL_SHAPE)
    assert shape.num_accelerators == 1
    assert 0 < shape.usd_per_hour < 1
    assert shape.accelerator.memory_bytes < 4 * GIB
    assert not shape.overlaps_communication


def test_a_price_can_be_set() -> None:
    assert node_shape(LOCAL_SHAPE, usd_per_hour=0.0).usd_per_hour == 0.0
    assert "set by the user" in node_shape("p5.48xlarge", usd_per_hour=20.0).source
    assert node_shape("p5.48xlarge").usd_per_hour != 20.0


def test_an_unknown_shape_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"p5\.48xlarge"):
        node_shape("p5.48xlarg")


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(SpecError, match="zero or more"):
        node_shape(LOCAL_SHAPE, usd_per_hour=-1.0)
