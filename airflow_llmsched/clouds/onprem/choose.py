"""Which of a pool's free nodes a lease gets: those that hang closest together, and leave the others whole. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from airflow_llmsched.clouds.onprem.inventory import FleetNode


def choose(free: Sequence[FleetNode], num_nodes: int) -> tuple[FleetNode, ...] | None:
    """Return ``num_nodes`` of the free nodes, None when there are too few.

    The innermost domain that has room is taken; of several, the one with the least room left over; then the first by
    name. Deterministic, so that whoever decides again after a race decides alike.
    """
    depth = max((len(node.path) for node in free), default=0)
    for level in range(depth, -1, -1):
        domains: dict[tuple[str, ...], list[FleetNode]] = defaultdict(list)
        for node in free:
            domains[node.path[:level]].append(node)
        fitting = [(len(nodes), path) for path, nodes in domains.items() if len(nodes) >= num_nodes]
        if fitting:
            _, best = min(fitting)
            return tuple(sorted(domains[best], key=lambda node: (node.path, node.id))[:num_nodes])
    return None
