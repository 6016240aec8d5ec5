"""A lease's nodes where EC2 says that they hang in its network (``DescribeInstanceTopology``). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.topology.aws import Instance, instance_of, network_below_zone
from airflow_llmsched.topology.fields import Fields

MAX_IDS = 100
"""EC2's limit of instances in one ``DescribeInstanceTopology``."""


def tree(lease: Lease, rows: Iterable[Mapping[str, Any]], *, num_slots: int) -> TopologyTree:
    """Return the lease's nodes with EC2's network nodes as levels, topmost first.

    EC2 names three or four, and only for some instance types. Unless it names as many for each node of the lease, all
    are put below their zone and nothing deeper: an instance that has just begun to run would else count as far away.
    Instances that NVLink joins are one level more, where EC2 says of each node with which others it is.
    """
    known = {each.id: each for each in (instance_of(Fields(row, "DescribeInstanceTopology")) for row in rows)}
    nodes = [node for node in lease.nodes if not node.state.is_gone]
    instances = {str(node.id): known.get(str(node.id), Instance(id=str(node.id))) for node in nodes}
    depths = {len(each.network_nodes) for each in instances.values()}
    network = network_below_zone(instances, depth=depths.pop() if len(depths) == 1 else 0)
    return TopologyTree(
        levels=("region", "zone", *network.levels),
        scale_up_level=network.scale_up_level,
        nodes=tuple(
            TopologyNode(
                id=node.id,
                path=(lease.pool.region, lease.pool.zone, *network.paths[str(node.id)]),
                shape=lease.pool.shape,
                num_slots=num_slots,
                num_free_slots=num_slots,
            )
            for node in nodes
        ),
    )
