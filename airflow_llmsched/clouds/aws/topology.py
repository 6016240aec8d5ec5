"""Where EC2 says that instances hang in its network (``DescribeInstanceTopology``). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree

MAX_IDS = 100
"""EC2's limit of instances in one ``DescribeInstanceTopology``."""


def tree(lease: Lease, rows: Iterable[Mapping[str, Any]], *, num_slots: int) -> TopologyTree:
    """Return the lease's nodes with EC2's network nodes as levels, topmost first.

    EC2 names three or four, and only for some instance types. Unless it names as many for each node of the lease, all
    are put below their zone and nothing deeper: a guess would put strangers side by side.
    """
    by_id = {row["InstanceId"]: tuple(row.get("NetworkNodes", ())) for row in rows}
    nodes = [node for node in lease.nodes if not node.state.is_gone]
    depths = {len(by_id.get(str(node.id), ())) for node in nodes}
    depth = depths.pop() if len(depths) == 1 else 0
    where = (lease.pool.region, lease.pool.zone)
    return TopologyTree(
        levels=("region", "zone", *(f"network-{level}" for level in range(1, depth + 1))),
        nodes=tuple(
            TopologyNode(
                id=node.id,
                path=(*where, *by_id.get(str(node.id), ())[:depth]),
                shape=lease.pool.shape,
                num_slots=num_slots,
                num_free_slots=num_slots,
            )
            for node in nodes
        ),
    )
