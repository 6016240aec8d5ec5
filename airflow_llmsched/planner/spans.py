"""Which links the groups of a layout span where its ranks really are: for a plan to say, and for its reader. Pure."""

from __future__ import annotations

import numpy as np

from airflow_llmsched.domain.hardware import Fabric, NodeShape
from airflow_llmsched.domain.layout import ParallelLayout, RankGroup
from airflow_llmsched.domain.plan import GroupSpan
from airflow_llmsched.planner.perf.placed_machine import NODE, Ground, PlacedMachine
from airflow_llmsched.planner.placement.wishes import stride_and_size

CLOSEST_FIRST = (RankGroup.TP, RankGroup.CP, RankGroup.EP, RankGroup.DP, RankGroup.PP)
"""Kinds of groups in the order in which ranks are numbered."""


def group_spans(layout: ParallelLayout, machine: PlacedMachine) -> tuple[GroupSpan, ...]:
    """Return where the groups of more than one rank are on ``machine``, which has this one candidate."""
    spans = (_group_span(group, *stride_and_size(layout, group), machine) for group in CLOSEST_FIRST)
    return tuple(each for each in spans if each.num_ranks > 1)


def _group_span(group: RankGroup, stride: int, size: int, machine: PlacedMachine) -> GroupSpan:
    ground = machine.grounds[int(machine.ground_C[0])]
    link = machine.span(stride_C=np.array([stride]), size_C=np.array([size])).farthest
    fabric = _fabric(machine.shape, ground, stride=stride, size=size)
    leaves_domain = ground.scale_up.spread(stride=stride, size=size).num_domains > 1
    return GroupSpan(
        group=group,
        num_ranks=size,
        num_nodes=ground.levels[NODE].spread(stride=stride, size=size).num_domains,
        level=_level(ground, stride=stride, size=size),
        fabric=fabric.name,
        bytes_per_s=float(np.asarray(link.bytes_per_s).ravel()[0]),
        transport=fabric.transport,
        reduces=machine.outer.reduces if leaves_domain else fabric.reduces_in_network,
    )


def _level(ground: Ground, *, stride: int, size: int) -> str | None:
    innermost_first = reversed(list(ground.levels.items()))
    held = (name for name, level in innermost_first if level.spread(stride=stride, size=size).num_domains == 1)
    return next(held, None)


def _fabric(shape: NodeShape, ground: Ground, *, stride: int, size: int) -> Fabric:
    """Return the network that the farthest members of such groups talk over."""
    if ground.scale_up.spread(stride=stride, size=size).num_domains > 1:
        return shape.inter_node
    leaves_node = ground.levels[NODE].spread(stride=stride, size=size).num_domains > 1
    is_bridged = ground.bridges is not None and ground.bridges.spread(stride=stride, size=size).num_domains == 1
    return shape.island.fabric if shape.island is not None and (leaves_node or is_bridged) else shape.intra_node
