"""Environment of every rank that a plan's network counts on: only what follows from where its groups are. Pure.

Names and values: NCCL's user guide, environment variables (read 2026-11-30). NVLS inside an NVLink domain needs none:
NCCL switches it on where there is hardware for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.plan import LaunchSetting
from airflow_llmsched.planner.perf.placed_machine import NODE, Ground, PlacedMachine

NETWORK_ADDS_UP = "NCCL_COLLNET_ENABLE"
JOINS_NODES = "NCCL_MNNVL_ENABLE"
CROSSES_RAILS = "NCCL_CROSS_NIC"
TRAFFIC_CLASS = "NCCL_IB_TC"
SERVICE_LEVEL = "NCCL_IB_SL"


def launch_settings(layout: ParallelLayout, machine: PlacedMachine) -> tuple[LaunchSetting, ...]:
    """Return the settings of a layout on ``machine``, which has this one candidate."""
    if machine.shape.accelerator.vendor != "nvidia":
        return ()
    return tuple(_settings(layout, machine))


def _settings(layout: ParallelLayout, machine: PlacedMachine) -> Iterator[LaunchSetting]:
    ground = machine.grounds[int(machine.ground_C[0])]
    stride, size = gradient_group(layout)
    if machine.outer.reduces and ground.scale_up.spread(stride=stride, size=size).num_domains > 1:
        yield LaunchSetting(
            name=NETWORK_ADDS_UP,
            value="1",
            why="switches of the network add gradients up (SHARP), which needs NVIDIA's SHARP plugin of NCCL",
        )
    yield from _of_the_network(layout, machine, ground)
    nodes = ground.levels[NODE].spread(stride=1, size=max(layout.tp, layout.expert_tp or 1))
    if nodes.num_domains > 1:
        yield LaunchSetting(
            name=JOINS_NODES,
            value="1",
            why="tensor-parallel groups are joined by NVLink over several nodes, which needs an IMEX domain of them; "
            "without, NCCL 2.25 and later refuses to start instead of taking the network",
        )


def _of_the_network(layout: ParallelLayout, machine: PlacedMachine, ground: Ground) -> Iterator[LaunchSetting]:
    """Yield what follows from the network's rails and classes, for gangs that send over it."""
    facts = machine.facts
    if ground.scale_up.spread(stride=1, size=layout.world_size).num_domains == 1:
        return
    if facts.num_rails > 1:
        stride, size = gradient_group(layout)
        crosses = ground.crosses_rails(stride=stride, size=size)
        yield LaunchSetting(
            name=CROSSES_RAILS,
            value="1" if crosses else "0",
            why=f"the network has {facts.num_rails} rails, "
            + ("and groups have other rails on one node than on another" if crosses else "which meet only farther up"),
        )
    for name, value in ((TRAFFIC_CLASS, facts.traffic_class), (SERVICE_LEVEL, facts.service_level)):
        if value is not None:
            yield LaunchSetting(name=name, value=str(value), why="the network serves collectives of this class first")


def gradient_group(layout: ParallelLayout) -> tuple[int, int]:
    """Return how far apart the ranks are numbered that add gradients up by an all-reduce, and how many they are.

    All replicas without ZeRO; with it, the copies of a shard, of which there may be one.
    """
    replicas = layout.dp * layout.cp
    shard = (layout.shard_size or replicas) if layout.zero_stage else 1
    return layout.tp * shard, replicas // shard
