"""A fleet of which nothing is known but how many nodes it has: all of them in one domain of every level. Pure."""

from __future__ import annotations

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL

ISLAND_LEVEL = "island"
"""Level of the nodes that the fastest links join, where the shape has such links between nodes."""


def flat_tree(
    workload: WorkloadSpec, *, num_nodes: int, num_slots: int, shape: NodeShape, switches_reduce: bool = False
) -> TopologyTree:
    """Return like nodes side by side, in one domain of every level that the workload's wishes name.

    Nodes of a shape whose fastest links reach beyond them are in islands, as many in each as those links can join.
    """
    per_island = shape.scale_up_size // shape.num_accelerators if shape.island_joins_nodes else num_nodes
    named = dict.fromkeys(wish.level for wish in workload.placement if wish.level not in {NODE_LEVEL, ISLAND_LEVEL})
    outer, inner = tuple(named), (ISLAND_LEVEL,) if shape.island_joins_nodes else ()
    levels = (*outer, *inner) or ("fleet",)
    return TopologyTree(
        levels=levels,
        nodes=tuple(
            TopologyNode(
                id=NodeId(f"node-{number:05d}"),
                path=(*(f"{level}-0" for level in levels[:-1]), f"{levels[-1]}-{number // per_island}"),
                shape=shape.name,
                num_slots=num_slots,
                num_free_slots=num_slots,
            )
            for number in range(num_nodes)
        ),
        scale_up_level=inner[0] if inner else None,
        switches_reduce=switches_reduce,
    )
