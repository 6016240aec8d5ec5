from __future__ import annotations

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.node_topology import DeviceLink, GpuPlace, NodeTopology, Path

NVLINK = DeviceLink(path=Path.NVLINK, num_links=4)
NODE = NodeTopology(
    gpus=tuple(GpuPlace(index=index, numa_index=index // 2) for index in range(4)),
    nics=("mlx5_1", "mlx5_0"),
    gpu_links={0: {1: NVLINK, 2: DeviceLink(path=Path.SYS)}, 2: {3: NVLINK}},
    nic_links={
        0: {"mlx5_0": DeviceLink(path=Path.PIX), "mlx5_1": DeviceLink(path=Path.NODE)},
        1: dict.fromkeys(("mlx5_0", "mlx5_1"), DeviceLink(path=Path.PXB)),
    },
)


def test_links_of_two_accelerators_are_the_same_from_either() -> None:
    assert (NODE.num_nvlinks(0, 1), NODE.num_nvlinks(1, 0)) == (4, 4)
    assert (NODE.num_nvlinks(0, 2), NODE.num_nvlinks(1, 2)) == (0, 0)


def test_the_nearest_cards_are_all_that_are_equally_near() -> None:
    assert NODE.nearest_nics(0) == ("mlx5_0",)
    assert NODE.nearest_nics(1) == ("mlx5_1", "mlx5_0")
    assert NODE.nearest_nics(3) == ()


def test_accelerators_that_nvlink_joins_over_others_are_one_island() -> None:
    assert NODE.nvlink_islands() == ((0, 1), (2, 3))
    chain = {0: {1: NVLINK}, 1: {2: NVLINK}, 2: {3: NVLINK}}
    assert NodeTopology(gpus=NODE.gpus, gpu_links=chain).nvlink_islands() == ((0, 1, 2, 3),)


def test_ways_are_listed_from_near_to_far() -> None:
    assert [path.distance_rank for path in (Path.NVLINK, Path.PIX, Path.SYS)] == [0, 1, 5]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpus": (GpuPlace(index=0), GpuPlace(index=0))}, "there twice"),
        ({"nics": ("a", "a")}, "there twice"),
        ({"gpu_links": {0: {9: NVLINK}}}, "GPU 9"),
        ({"gpu_links": {1: {0: NVLINK}}}, "GPU 1"),
        ({"nic_links": {0: {"b": NVLINK}}}, "cards b"),
    ],
)
def test_links_of_devices_that_are_not_there_are_refused(changes: dict, why: str) -> None:
    base: dict = {"gpus": (GpuPlace(index=0), GpuPlace(index=1)), "nics": ("a",)}
    with pytest.raises(ValueError, match=why):
        NodeTopology(**{**base, **changes})


def test_it_is_kept_as_json() -> None:
    assert codec.from_json(NodeTopology, codec.to_json(NODE)) == NODE
