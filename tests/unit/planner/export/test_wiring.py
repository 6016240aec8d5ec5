from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.node_topology import DeviceLink, GpuPlace, NodeTopology, Path
from airflow_llmsched.planner.export.wiring import RankPlace, num_numa_nodes, rank_places, shape_of
from tests.support.tool_options import planned


def test_each_numa_node_and_each_card_has_an_equal_share_of_neighbouring_accelerators() -> None:
    places = list(rank_places(planned(ParallelLayout(dp=8))))
    assert [each.numa_node for each in places] == [0] * 4 + [1] * 4
    assert [each.nic for each in places] == [0, 4, 8, 12, 16, 20, 24, 28]  # 32 EFA cards, four to an accelerator


def test_of_a_shape_that_is_not_in_the_table_nothing_is_taken_for_granted() -> None:
    run = replace(planned(ParallelLayout(dp=2)), node_shape="basement")
    assert shape_of(run) is None
    assert [(each.nic, each.numa_node) for each in rank_places(run)] == [(None, None)] * 2


def test_a_matrix_of_the_node_is_believed_rather_than_the_usual_wiring() -> None:
    near, far = DeviceLink(path=Path.PXB), DeviceLink(path=Path.SYS)
    both = {"mlx5_2": near, "mlx5_3": near}
    wiring = NodeTopology(
        gpus=tuple(GpuPlace(index=index, numa_index=numa) for index, numa in enumerate((3, 3, 1, None))),
        nics=("mlx5_2", "mlx5_3", "mlx5_7"),
        nic_links={0: both, 1: both, 2: {"mlx5_7": near, "mlx5_3": far}},
    )
    run = replace(planned(ParallelLayout(dp=5)), wiring=wiring)
    assert [(each.nic, each.numa_node) for each in rank_places(run)] == [
        ("mlx5_2", 3),
        ("mlx5_3", 3),
        ("mlx5_7", 1),
        (None, None),
        (None, None),
    ], "two that are equally near to two cards take one each"
    assert num_numa_nodes(run) == 4
    assert (num_numa_nodes(planned(ParallelLayout(dp=8))), num_numa_nodes(replace(run, wiring=None))) == (2, 2)


@pytest.mark.parametrize(("numa_node", "num", "socket"), [(None, 1, 0), (0, 1, 0), (1, 2, 1), (3, 8, 0), (5, 8, 1)])
def test_numa_nodes_are_shared_out_to_two_sockets(numa_node, num, socket) -> None:
    place = RankPlace(rank=0, node="a", slot=0, local_rank=0, nic=None, numa_node=numa_node)
    assert place.socket(num) == socket
