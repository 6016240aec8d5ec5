"""The packaged facts about hardware hold together, and agree with figures typed in from vendors' own pages."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from airflow_llmsched.domain.hardware import FabricTopology, NumberFormat, TierKind, Transport
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.hardware import (
    IDLE_RATIO,
    LOCAL_SHAPE,
    accelerators,
    fabrics,
    node_shape,
    node_shapes,
    read_accelerator,
    read_fabric,
    read_shape,
)
from airflow_llmsched.units import GB, GIB, TB

WIDEST_FIRST = ("fp32", "tf32", "bf16", "fp8", "fp4")
CHIP_ROW: dict[str, Any] = {
    "memory_gib": 16, "memory_bandwidth_bytes_per_s": 1e12, "peak_flop_per_s": {"bf16": 1e14}, "reserved_gib": 1,
    "source": "made up, 2026",
}  # fmt: skip
SHAPE_ROW: dict[str, Any] = {
    "accelerator": "l4", "num_accelerators": 2, "intra_node": "pcie4", "intra_node_bandwidth_bytes_per_s": 3e10,
    "inter_node": "tcp", "num_nics": 1, "nic_bandwidth_bytes_per_s": 1e10, "usd_per_hour": 1.0, "source": "2026",
}  # fmt: skip


def test_every_fact_has_a_source_with_a_year() -> None:
    for entry in (*accelerators().values(), *fabrics().values(), *node_shapes().values()):
        assert re.search(r"\b20[12]\d\b|v2\.2x", entry.source), entry.name


def test_a_source_that_was_read_names_the_day_and_one_that_was_not_says_so() -> None:
    for entry in (*accelerators().values(), *fabrics().values(), *node_shapes().values()):
        assert not re.search(r"read 20\d\d-\d\d(?!-\d\d)", entry.source), entry.name
        assert "from memory" not in entry.source or "not checked" in entry.source, entry.name


def test_elastic_fabrics_follow_the_generation_of_the_nitro_card() -> None:
    """AWS EFA user guide, supported instance types: Nitro v3 to v6, read 2026-11-30; of P6e AWS says v4."""
    known = {
        "p4d.24xlarge": "efa1", "g5.48xlarge": "efa1", "p5.48xlarge": "efa2", "g6.48xlarge": "efa2",
        "g6e.48xlarge": "efa2", "trn1.32xlarge": "efa2", "trn1n.32xlarge": "efa2", "p5en.48xlarge": "efa3",
        "trn2.48xlarge": "efa3", "p6-b200.48xlarge": "efa4", "g7e.48xlarge": "efa4", "p6e-gb200.36xlarge": "efa4",
    }  # fmt: skip
    assert {name: node_shape(name).inter_node.name for name in known} == known


def test_every_price_says_where_it_is_from() -> None:
    for shape in node_shapes().values():
        assert shape.price_source, shape.name


def test_every_kind_that_the_planner_promises_is_there() -> None:
    """Issue 5, point 2; a die of an MI250X is a device of its own."""
    named = {
        "v100-16gb", "v100-32gb", "a100-40gb", "a100-80gb", "h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "b200",
        "b300", "gb200", "gb300", "l4", "l40s", "a10g", "rtx-pro-6000", "mi250x-gcd", "mi300x", "mi325x", "mi355x",
        "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "trainium1", "trainium2", "gaudi2", "gaudi3",
    }  # fmt: skip
    assert named <= set(accelerators())


def test_no_fact_is_held_that_no_node_shape_needs() -> None:
    shapes = node_shapes().values()
    assert set(accelerators()) == {shape.accelerator.name for shape in shapes}
    used = {level.fabric.name for shape in shapes for level in shape.levels} | {each.intra_node.name for each in shapes}
    assert set(fabrics()) == used


def test_rates_are_ordered_as_physics_has_it() -> None:
    for shape in node_shapes().values():
        chip = shape.accelerator
        rates = [level.bandwidth_bytes_per_s for level in shape.levels]
        assert rates == sorted(rates, reverse=True), shape.name
        assert rates[0] <= chip.memory_bandwidth_bytes_per_s, shape.name
        assert 0 < chip.reserved_bytes < chip.memory_bytes
        assert 0 < shape.usd_per_hour / shape.num_accelerators < 30


@pytest.mark.parametrize("name", [name for name, chip in accelerators().items() if chip.vendor])
def test_narrower_formats_are_no_slower(name: str) -> None:
    peaks = accelerators()[name].peak_flop_per_s
    rates = [peaks[NumberFormat(each)] for each in WIDEST_FIRST if NumberFormat(each) in peaks]
    assert all(wide <= narrow for wide, narrow in pairwise(rates))
    if {NumberFormat.BF16, NumberFormat.FP16} <= peaks.keys():
        assert peaks[NumberFormat.BF16] == peaks[NumberFormat.FP16]


@pytest.mark.parametrize(
    ("name", "number_format", "peak_tflop_per_s"),
    [
        ("v100-32gb", "fp16", 125),
        ("a100-80gb", "bf16", 312),
        ("h100-sxm", "bf16", 989.5),
        ("h100-pcie", "bf16", 756.5),
        ("h200-sxm", "fp8", 1979),
        ("b200", "fp8", 4500),
        ("gb200", "fp4", 10000),
        ("b300", "bf16", 2250),
        ("l40s", "bf16", 362),
        ("mi300x", "fp8", 2614.9),
        ("tpu-v5e", "bf16", 197),
        ("trainium2", "bf16", 667),
        ("gaudi2", "bf16", 432),
    ],
)
def test_published_peaks_are_dense(name: str, number_format: str, peak_tflop_per_s: float) -> None:
    """Vendors' sheets, with sparsity divided out: NVIDIA V100 to GB200, AMD, Google Cloud, AWS Neuron, Intel."""
    assert accelerators()[name].peak_flop_per_s[NumberFormat(number_format)] == peak_tflop_per_s * 1e12


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("dgx-2", 150),  # NVLink 2: 300 GB/s both ways
        ("p4d.24xlarge", 300),  # NVLink 3: 600
        ("dgx-h100", 450),  # NVLink 4: 900
        ("dgx-b300", 900),  # NVLink 5: 1.8 TB/s
        ("gb200-nvl72", 900),
        ("mi300x-8x", 448),  # seven links of 128 GB/s
        ("mi355x-8x", 537.6),  # seven links of 153.6 GB/s
        ("ct5p-hightpu-4t", 600),  # ICI: 1,200 GB/s a chip
        ("ct6e-standard-4t", 400),  # ICI: 800 GB/s a chip
        ("gaudi3-8x", 525),  # 21 ports of 200 Gb/s
    ],
)
def test_links_inside_a_node_are_counted_one_way(name: str, gb_per_s: float) -> None:
    assert node_shape(name).intra_node_bandwidth_bytes_per_s == gb_per_s * GB


@pytest.mark.parametrize(
    ("name", "gbit_per_s"),
    [
        ("p3dn.24xlarge", 100),
        ("p4d.24xlarge", 400),
        ("p5.48xlarge", 3200),
        ("p5en.48xlarge", 3200),
        ("p6-b200.48xlarge", 3200),
        ("p6-b300.48xlarge", 6400),
        ("p6e-gb200.36xlarge", 1600),
        ("a3-highgpu-8g", 800),
        ("a3-megagpu-8g", 1600),
        ("a4-highgpu-8g", 3200),
        ("Standard_ND96amsr_A100_v4", 1600),
        ("Standard_ND96isr_H100_v5", 3200),
        ("dgx-b300", 6400),
        ("ct6e-standard-4t", 400),
    ],
)
def test_the_cards_of_a_node_carry_what_its_vendor_says(name: str, gbit_per_s: float) -> None:
    shape = node_shape(name)
    assert shape.num_nics * shape.nic_bandwidth_bytes_per_s == gbit_per_s / 8 * GB
    assert shape.inter_node_bandwidth_bytes_per_s * shape.num_accelerators == gbit_per_s / 8 * GB


def test_rails_divide_the_cards_of_a_node() -> None:
    for shape in node_shapes().values():
        assert shape.num_nics % shape.num_rails == 0, shape.name


def test_grace_blackwell_racks_are_one_domain_of_72() -> None:
    racks = [shape for shape in node_shapes().values() if shape.accelerator.name in {"gb200", "gb300"}]
    assert len(racks) >= 7
    for shape in racks:
        assert (shape.num_accelerators, shape.scale_up_size) == (4, 72)


def test_a_tpu_host_is_part_of_a_pod() -> None:
    sizes = {node_shape(name).scale_up_size for name in ("ct5lp-hightpu-4t", "ct6e-standard-4t")}
    assert sizes == {256}
    assert node_shape("ct5p-hightpu-4t").levels[0].fabric.topology is FabricTopology.TORUS_3D


def test_switches_add_up_from_the_third_nvswitch_on() -> None:
    able = {name for name, fabric in fabrics().items() if name.startswith("nv") and fabric.reduces_in_network}
    assert able == {"nvswitch3", "nvswitch4"}
    for name in ("p4d.24xlarge", "dgx-2"):
        assert not node_shape(name).intra_node.reduces_in_network
    assert node_shape("p5.48xlarge").intra_node.reduces_in_network


def test_elastic_fabrics_run_on_the_card_and_plain_tcp_on_the_host() -> None:
    assert node_shape("p5.48xlarge").inter_node.transport is Transport.DPU
    assert node_shape("dgx-h100").inter_node.transport is Transport.CARD
    assert node_shape("a2-highgpu-8g").inter_node.transport is Transport.HOST


def test_two_gpus_share_a_way_to_the_host_on_a100_boards_and_none_on_h100_boards() -> None:
    assert node_shape("Standard_ND96asr_v4").host_bandwidth_bytes_per_s == 15.75 * GB
    assert node_shape("Standard_ND96isr_H100_v5").host_bandwidth_bytes_per_s == 63 * GB
    assert node_shape("p5.48xlarge").host_bandwidth_bytes_per_s == 31.5 * GB


def test_tiers_grow_slower_the_farther_they_are() -> None:
    for shape in node_shapes().values():
        rates = [
            tier.read_bytes_per_s for tier in shape.memory_tiers.values() if tier.kind is not TierKind.OBJECT_STORE
        ]
        assert rates == sorted(rates, reverse=True), shape.name


def test_the_tiers_of_a_known_node() -> None:
    """p4d.24xlarge: 1,152 GiB, eight drives of 1 TB that read 16 GB/s together, one plain interface of 100 Gb/s."""
    tiers = node_shape("p4d.24xlarge").memory_tiers
    assert tiers[TierKind.HOST_DRAM].num_bytes == 144 * GIB
    assert tiers[TierKind.NVME].num_bytes == 1 * TB
    assert tiers[TierKind.NVME].read_bytes_per_s == 2 * GB
    assert tiers[TierKind.OBJECT_STORE].read_bytes_per_s == 12.5 * GB / 8


def test_hosts_are_sized_as_their_makers_ship_them() -> None:
    """DGX B200 user guide: 2 TB; Microsoft Learn: 2,948 GiB on NDv2 and 28,000 on ND H100 v5; EC2: 30,400 GB on P5."""
    assert node_shape("dgx-b200").host.memory_bytes == 2048 * GIB
    assert node_shape("BM.GPU.B200.8").host.memory_bytes == 4096 * GIB
    assert node_shape("Standard_ND40rs_v2").host.disk_bytes == pytest.approx(2948 * GIB, rel=1e-3)
    assert node_shape("Standard_ND96isr_H100_v5").host.disk_bytes == pytest.approx(28_000 * GIB, rel=1e-3)
    assert node_shape("p5.48xlarge").host.disk_bytes == 30.4 * TB
    assert node_shape("BM.GPU.H100.8").num_nics == 16


def test_idle_power_is_measured_or_a_tenth_of_the_limit() -> None:
    assert accelerators()["b200"].idle_w == 141
    assert accelerators()["mi300x"].idle_w == IDLE_RATIO * 750
    for chip in accelerators().values():
        assert chip.idle_w <= 0.5 * chip.power_limit_w, chip.name


def test_the_local_shape_is_one_process_on_one_core_with_a_price() -> None:
    shape = node_shape(LOCAL_SHAPE)
    assert shape.num_accelerators == 1
    assert 0 < shape.usd_per_hour < 1
    assert shape.accelerator.memory_bytes < 4 * GIB
    assert not shape.overlaps_communication
    assert shape.intra_node_latency_s == shape.inter_node_latency_s == 1e-3


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


def test_rows_that_hold_no_more_than_they_must_are_read() -> None:
    assert read_accelerator("x", CHIP_ROW).memory_bytes == 16 * GIB
    assert read_fabric("x", {"latency_s": 1e-6, "source": "2026"}).topology is FabricTopology.SWITCHED
    assert read_shape("x", SHAPE_ROW).inter_node_bandwidth_bytes_per_s == 5e9


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"memory_gb": 16}, r"accelerators\.x\.memory_gb.*unknown key"),
        ({"peak_flop_per_s": {"bf17": 1e14}}, r"accelerators\.x = 'bf17'.*known: fp32"),
    ],
)
def test_an_accelerator_with_a_word_that_nobody_knows_is_refused(row: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError, match=path):
        read_accelerator("x", {**CHIP_ROW, **row})


@pytest.mark.parametrize(("key", "value"), [("topology", "ring"), ("transport", "pigeon"), ("latency_us", 1)])
def test_a_fabric_with_a_word_that_nobody_knows_is_refused(key: str, value: object) -> None:
    with pytest.raises(SpecError, match=r"fabrics\.x.*unknown"):
        read_fabric("x", {"latency_s": 1e-6, "source": "2026", key: value})


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"accelerator": "l5"}, r"shapes\.x\.accelerator = 'l5'.*known:.*l40s"),
        ({"inter_node": "string"}, r"shapes\.x\.inter_node.*unknown"),
        ({"num_gpus": 2}, r"shapes\.x\.num_gpus.*unknown key"),
        ({"host": {"memory_gb": 2}}, r"shapes\.x\.host\.memory_gb.*unknown key"),
        (
            {"island": {"num_accelerators": 2, "bandwidth_bytes_per_s": 1e11, "fabric": "rope"}},
            r"shapes\.x\.island\.fabric.*unknown",
        ),
    ],
)
def test_a_shape_with_a_word_that_nobody_knows_is_refused(row: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError, match=path):
        read_shape("x", {**SHAPE_ROW, **row})
