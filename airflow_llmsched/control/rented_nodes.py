"""Which of an engine's nodes a run may use, if it has rented some. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.domain.topology import TopologyTree


def only_rented(tree: TopologyTree, leases: Iterable[Lease]) -> TopologyTree | None:
    """Return the part of an engine's tree that ``leases`` hold; None when the engine has none of their nodes.

    A node is known by the cloud's id or by its address.
    """
    names = {name for lease in leases for node in lease.nodes for name in (str(node.id), node.address) if name}
    nodes = tuple(node for node in tree.nodes if node.id in names)
    return replace(tree, nodes=nodes) if nodes else None
