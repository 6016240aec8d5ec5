from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import LaunchSetting
from airflow_llmsched.planner.export import rank_files
from tests.support.tool_options import planned


def on(*slots: tuple[str, int]):
    seen: dict[str, int] = {}
    placed = []
    for rank, (node, slot) in enumerate(slots):
        seen[node] = seen.get(node, -1) + 1
        placed.append(RankSlot(rank=rank, node=NodeId(node), slot=slot, local_rank=seen[node]))
    counts = tuple(count + 1 for count in seen.values())
    run = planned(ParallelLayout(dp=len(slots)), ranks_per_node=1)
    return replace(run, placement=Placement(slots=tuple(placed)), ranks_on_nodes=counts)


TWO = on(("b", 0), ("b", 5), ("a", 2))


def test_hosts_come_in_the_order_of_their_ranks() -> None:
    assert rank_files.hostfile(TWO) == "b slots=2\na slots=1\n"


def test_each_rank_is_on_the_socket_beside_its_accelerator() -> None:
    assert rank_files.rankfile(TWO) == "rank 0=b slot=0:*\nrank 1=b slot=1:*\nrank 2=a slot=0:*\n"


def test_srun_is_told_a_node_for_every_task() -> None:
    assert rank_files.slurm_hostfile(TWO) == "b\nb\na\n"


def test_the_table_has_card_and_numa_node_by_the_wiring_of_the_shape() -> None:
    assert rank_files.table(TWO).splitlines() == [
        "rank\tnode\tgpu\tnic\tnuma",
        "0\tb\t0\t0\t0",
        "1\tb\t5\t20\t1",
        "2\ta\t2\t8\t0",
    ]


def test_what_is_not_known_of_a_shape_is_left_empty_and_said() -> None:
    unknown = replace(TWO, node_shape="basement")
    assert rank_files.table(unknown).splitlines()[1] == "0\tb\t0\t\t"
    assert "basement" in rank_files.table_notes(unknown)[0]
    assert rank_files.rankfile(unknown).splitlines()[1] == "rank 1=b slot=0:*"


def test_nodes_with_the_same_slots_share_their_environment_and_settings_have_their_reason() -> None:
    setting = LaunchSetting(name="NCCL_MNNVL_ENABLE", value="1", why="NVLink joins these nodes")
    run = replace(on(("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 7)), launch_settings=(setting,))
    assert rank_files.environment(run) == (
        "# every rank\n# NVLink joins these nodes\nNCCL_MNNVL_ENABLE=1\n\n"
        "# ranks on a, b: the accelerators that the plan gave them there\n"
        "CUDA_DEVICE_ORDER=PCI_BUS_ID\nCUDA_VISIBLE_DEVICES=0,1\n\n"
        "# ranks on c: the accelerators that the plan gave them there\n"
        "CUDA_DEVICE_ORDER=PCI_BUS_ID\nCUDA_VISIBLE_DEVICES=7\n"
    )


def test_nothing_is_said_where_nothing_follows() -> None:
    assert rank_files.environment(replace(TWO, accelerator_vendor="")) == "# nothing follows from this placement\n"


def test_readers_are_told_how_to_use_each() -> None:
    assert "--hostfile" in rank_files.hostfile_notes(TWO)[0]
    assert "--rankfile" in rank_files.rankfile_notes(TWO)[0]
    assert "--distribution=arbitrary" in rank_files.slurm_hostfile_notes(TWO)[0]
    assert rank_files.environment_notes(TWO)
