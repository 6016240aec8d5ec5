"""A fleet of which nothing is known but how many nodes it has: all of them in one domain of every level. Pure."""

from __future__ import annotations

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL


def flat_tree(workload: WorkloadSpec, *, num_nodes: int, num_slots: int, shape: str) -> TopologyTree:
    """Return like nodes side by side, in one domain of every level that the workload's wishes name."""
    named = dict.fromkeys(wish.level for wish in workload.placement if wish.level != NODE_LEVEL)
    levels = tuple(named) or ("fleet",)
    return TopologyTree(
        levels=levels,
        nodes=tuple(
            TopologyNode(
                id=NodeId(f"node-{number:05d}"),
                path=tuple(f"{level}-0" for level in levels),
                shape=shape,
                num_slots=num_slots,
                num_free_slots=num_slots,
            )
            for number in range(num_nodes)
        ),
    )
