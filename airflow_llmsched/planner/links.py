"""How searches are told what was measured of links, and how that is said of a plan. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace

from airflow_llmsched.domain.fleet import cluster_of
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.units import GB

AsMeasured = Callable[[TopologyTree, str], TopologyTree]
"""Returns a tree of nodes of one shape, which is named, with what was measured in place of what it claims."""


def as_claimed(tree: TopologyTree, _shape: str) -> TopologyTree:
    """Return the tree as it is: nobody has measured anything."""
    return tree


def reckoned_tree(tree: TopologyTree, plan: Plan, as_measured: AsMeasured) -> TopologyTree:
    """Return the tree with links as they were when ``plan`` was found: for its shape, in a fleet for its cluster."""
    clusters = {cluster_of(node) for node in plan.placement.nodes}
    nodes = tuple(node for node in tree.nodes if node.shape == plan.node_shape and cluster_of(node.id) in clusters)
    return replace(tree, network=as_measured(replace(tree, nodes=nodes), plan.node_shape).network)


def measured_words(tree: TopologyTree) -> str:
    """Say which links of a tree runs' own checks measured, when and where; empty without any."""
    told = [check_words(each) for each in tree.network if each.measured_on is not None]
    return "\n".join(["Links are as checks of nodes measured them:", *(f"  {each}" for each in told)]) if told else ""


def check_words(link: NetworkLevel) -> str:
    """Say what checks measured of a level, when and between which nodes; empty where none did."""
    measured = link.measured_on
    if measured is None:
        return ""
    day = datetime.datetime.fromtimestamp(measured.at_s, tz=datetime.UTC).date().isoformat()
    first, last, number = measured.nodes[0], measured.nodes[-1], len(measured.nodes)
    where = f"{first} and {last}" if number == 2 else f"{number} nodes, {first} to {last}"
    inside = "between all nodes" if link.level is None else f"within one {link.level}"
    return f"{inside}: {link.bandwidth_bytes_per_s / GB:,.3g} GB/s of each accelerator, {day}, on {where}"
