from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import ObjectiveWeights, ParallelismWish
from airflow_llmsched.engines.slurm.nodes import NodeRecord
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.topology import tree_of
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import workload
from tests.support.wirings import TWO_SOCKETS

SWITCHES = "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=m1\nSwitchName=spine Switches=leaf[1-2]\n"


def node(name: str, **changes: Any) -> NodeRecord:
    base: dict[str, Any] = {"states": ("IDLE",), "gres": "gpu:h100:8", "used": "", "partitions": ("low",)}
    return NodeRecord(name=name, address=name, **{**base, **changes})


def tree(*nodes: NodeRecord, switches: str = SWITCHES, **options: Any) -> TopologyTree:
    base = {"root": "/shared", "python": "/usr/bin/python3", "slots_per_node": 8}
    return tree_of(nodes, switches=switches, options=SlurmOptions.from_json({**base, **options}))


def test_nodes_hang_where_their_switches_do_with_what_is_free() -> None:
    found = tree(node("n1", used="gpu:h100:2(IDX:0,3)"), node("m1"), node_shapes={"m1": "dgx-a100"}, node_shape="dgx")
    assert found.levels == ("switch1", "switch0")
    n1, m1 = found.nodes
    assert (n1.path, n1.num_slots, n1.free_slots) == (("spine", "leaf1"), 8, (1, 2, 4, 5, 6, 7))
    assert (m1.path, m1.num_free_slots) == (("spine", "leaf2"), 8)
    assert (n1.shape, m1.shape) == ("dgx", "dgx-a100")


def test_nodes_of_other_partitions_and_without_accelerators_are_no_places() -> None:
    found = tree(node("n1"), node("n2", partitions=("high",)), node("n3", gres="(null)"), partition="low,debug")
    assert [each.id for each in found.nodes] == ["n1"]


def test_nodes_that_are_down_or_excluded_say_so() -> None:
    found = tree(node("n1", states=("DOWN",), reason="psu"), node("n2"), exclude=["n2"])
    assert [each.unusable_reason for each in found.nodes] == ["down: psu", "excluded by the engine's options"]
    assert found.num_usable_slots == 0


def test_whole_nodes_are_free_only_while_nobody_has_a_part() -> None:
    found = tree(node("n1", states=("MIXED",), used="gpu:h100:1(IDX:0)"), node("n2"), exclusive=True)
    assert [each.num_free_slots for each in found.nodes] == [0, 8]


def test_slots_of_jobs_that_ended_before_their_node_reported_are_free() -> None:
    silent = {"used": "gpu:h100:8", "has_reported": False}
    found = tree(node("n1", **silent), node("n2", states=("MIXED",), **silent))
    assert [each.num_free_slots for each in found.nodes] == [8, 0]


def test_slots_that_slurm_does_not_count_are_those_of_the_options() -> None:
    found = tree(node("n1", gres=""), node("n2", gres="", states=("ALLOCATED",)), gres="", slots_per_node=4)
    assert [(each.num_slots, each.num_free_slots) for each in found.nodes] == [(4, 4), (4, 0)]


def test_a_network_that_is_not_understood_can_be_left_out() -> None:
    found = tree(node("n1"), switches="TorusName=t", flat=True)
    assert (found.levels, found.nodes[0].path) == (("host",), ("n1",))


def test_the_level_that_nvlink_joins_is_named_by_the_options() -> None:
    blocks = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=m1\nBlockSizes=2\n"
    found = tree(node("n1"), node("m1"), switches=blocks, scale_up_level="block", switches_reduce=True)
    assert (found.scale_up_level, found.switches_reduce) == ("block", True)
    with pytest.raises(ValueError, match="unknown level 'block': the topology has switch1, switch0"):
        tree(node("n1"), scale_up_level="block")


def test_a_plan_on_slurms_nodes_sets_what_follows_from_rails_and_classes_that_the_options_name() -> None:
    said = {"node_shape": "dgx-h100", "fabric": {"rails": 8, "service_level": 3}}
    found = tree(node("n1"), node("n2"), **said)
    job = workload(parallelism=ParallelismWish(dp=16))
    (plan, *_) = search(job, found, node_shapes(), solver=FleetSolver()).plans
    assert plan.environment.items() >= {"NCCL_CROSS_NIC": "0", "NCCL_IB_SL": "3"}.items()
    silent = search(job, tree(node("n1"), node("n2"), node_shape="dgx-h100"), node_shapes(), solver=FleetSolver())
    assert not {"NCCL_CROSS_NIC", "NCCL_IB_SL"} & silent.plans[0].environment.keys()


def test_a_gang_goes_where_slurms_nodes_have_its_data_or_fail_least_if_the_options_say_so() -> None:
    nodes = [node(f"n{number}") for number in range(1, 5)]
    job = workload(parallelism=ParallelismWish(dp=16, tp=1, pp=1, cp=1), objective=ObjectiveWeights(reliability=1.0))
    job = replace(job, data=replace(job.data, source="/data/web"))
    chosen = []
    for said in ({}, {"n[1-2]": {"failures_per_hour": 1.0}}, {"n1,n4": {"data": [job.data.source]}}):
        found = tree(*nodes, switches="SwitchName=leaf Nodes=n[1-4]\n", node_shape="dgx-h100", node_terms=said)
        (plan, *_) = search(job, found, node_shapes(), solver=FleetSolver()).plans
        chosen.append(set(plan.placement.nodes))
    assert chosen == [{"n1", "n2"}, {"n3", "n4"}, {"n1", "n4"}]


def test_ranks_get_accelerators_of_one_numa_node_where_the_wiring_of_slurms_nodes_is_known(tmp_path: Path) -> None:
    file = tmp_path / "topo"
    file.write_text(TWO_SOCKETS, encoding="utf-8")
    options = SlurmOptions.from_json(
        {"root": "/shared", "python": "/python", "slots_per_node": 4, "wirings": {"slurm-node": str(file)}}
    )
    four = node("n1", gres="gpu:h100:4")
    plain = tree_of([four], switches=SWITCHES, options=options)
    wired = replace(plain, wirings=options.wirings.read())
    slots = []
    for where in (plain, wired):
        placed = FleetSolver().place(PlacementProblem(layout=ParallelLayout(dp=2), tree=where), time_limit_s=1, seed=0)
        assert isinstance(placed, Placed)
        slots.append(placed.placement.held_on(NodeId("n1")))
    assert slots == [(0, 1), (0, 2)]


def test_a_partition_that_has_no_node_is_told_with_those_that_have() -> None:
    with pytest.raises(ValueError, match=r"no node is in partition lwo; Slurm has nodes in high, low"):
        tree(node("n1"), node("n2", partitions=("high",)), partition="lwo")


def test_a_resource_that_no_node_has_is_told_with_what_they_have() -> None:
    with pytest.raises(ValueError, match=r"has the resource 'gpu:a100'; what they have: gpu:h100:8"):
        tree(node("n1"), node("n2"), gres="gpu:a100")


def test_a_cluster_without_nodes_is_empty() -> None:
    assert tree(partition="low").nodes == ()
