"""Facts about machines are values: frozen, named by keyword, with every rate in units that its name states."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from airflow_llmsched.domain.hardware import (
    Accelerator,
    Fabric,
    FabricTopology,
    Host,
    LinkLevel,
    NodeShape,
    NumberFormat,
    TierKind,
)

CHIP = Accelerator(
    name="chip", memory_bytes=2**30, memory_bandwidth_bytes_per_s=1e12, peak_flop_per_s={NumberFormat.BF16: 1e14},
    source="made up, 2026", host_bandwidth_bytes_per_s=30e9,
)  # fmt: skip
BOX = NodeShape(
    name="box", accelerator=CHIP, num_accelerators=8, intra_node_bandwidth_bytes_per_s=1e11,
    inter_node_bandwidth_bytes_per_s=1e10, usd_per_hour=10.0, source="made up, 2026",
)  # fmt: skip
HOST = Host(
    memory_bytes=800, memory_bandwidth_bytes_per_s=400e9, disk_bytes=1600, disk_read_bytes_per_s=16e9,
    disk_write_bytes_per_s=8e9, storage_bandwidth_bytes_per_s=4e9,
)  # fmt: skip


def mesh(topology: FabricTopology, *, num_accelerators: int = 8) -> LinkLevel:
    fabric = Fabric(name="wires", latency_s=1e-6, topology=topology, source="made up, 2026")
    return LinkLevel(num_accelerators=num_accelerators, bandwidth_bytes_per_s=84e9, fabric=fabric)


def test_a_node_shape_needs_no_more_than_links_and_a_price() -> None:
    assert BOX.overlaps_communication
    assert BOX.intra_node_latency_s < BOX.inter_node_latency_s
    assert set(BOX.memory_tiers) == {TierKind.HBM, TierKind.PEER_HBM}


def test_an_accelerator_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CHIP.memory_bytes = 1  # type: ignore[misc]


def test_number_formats_have_the_names_that_specs_use() -> None:
    assert [each.value for each in NumberFormat] == ["fp32", "tf32", "bf16", "fp16", "fp8", "fp4"]


def test_a_plain_node_is_two_levels_of_the_network() -> None:
    node, network = BOX.levels
    assert (node.num_accelerators, node.bandwidth_bytes_per_s) == (8, 1e11)
    assert (network.num_accelerators, network.bandwidth_bytes_per_s) == (None, 1e10)
    assert BOX.scale_up_size == 8


def test_a_rack_that_is_one_domain_takes_the_place_of_the_node() -> None:
    rack = replace(BOX, island=mesh(FabricTopology.SWITCHED, num_accelerators=72))
    assert [level.num_accelerators for level in rack.levels] == [72, None]
    assert rack.scale_up_size == 72
    assert rack.memory_tiers[TierKind.PEER_HBM].num_bytes == 71 * CHIP.memory_bytes


def test_a_bridge_between_two_cards_comes_before_the_node() -> None:
    bridged = replace(BOX, island=mesh(FabricTopology.FULL_MESH, num_accelerators=2))
    assert [level.num_accelerators for level in bridged.levels] == [2, 8, None]
    assert bridged.scale_up_size == 2


def test_tiers_are_shares_of_the_node_and_no_faster_than_the_way_to_them() -> None:
    tiers = replace(BOX, host=HOST).memory_tiers
    assert list(tiers) == list(TierKind)
    assert tiers[TierKind.HOST_DRAM].num_bytes == 100
    assert tiers[TierKind.HOST_DRAM].read_bytes_per_s == 30e9
    assert (tiers[TierKind.NVME].read_bytes_per_s, tiers[TierKind.NVME].write_bytes_per_s) == (2e9, 1e9)
    assert tiers[TierKind.NVME].num_bytes == 200
    assert tiers[TierKind.OBJECT_STORE].num_bytes is None
    assert tiers[TierKind.OBJECT_STORE].read_bytes_per_s == 0.5e9


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (HOST, 30e9),
        (replace(HOST, num_accelerators_per_host_link=2), 15e9),
        (replace(HOST, host_link_bandwidth_bytes_per_s=20e9), 20e9),
        (replace(HOST, host_link_bandwidth_bytes_per_s=90e9, num_accelerators_per_host_link=2), 30e9),
        (replace(HOST, memory_bandwidth_bytes_per_s=80e9), 10e9),
        (Host(), 0.0),
    ],
)
def test_the_way_to_host_memory_is_as_fast_as_its_narrowest_part(host: Host, expected: float) -> None:
    assert replace(BOX, host=host).host_bandwidth_bytes_per_s == expected
