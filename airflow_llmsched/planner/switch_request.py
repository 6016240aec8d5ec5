"""What a plan would have programmable switches do: add gradients up, and serve its traffic first. Pure."""

from __future__ import annotations

from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.switches import SwitchRequest
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.launch_settings import NETWORK_ADDS_UP, gradient_group


def switch_request(gang: AttemptKey, plan: Plan, tree: TopologyTree) -> SwitchRequest | None:
    """Return what to ask for; None for a gang that needs nothing of the network's switches.

    One aggregation tree for each group of replicas, in the innermost domain that holds the whole gang (the empty path
    is the fleet). Raises ``KeyError`` for a node that is not in the tree.
    """
    adds_up = any(setting.name == NETWORK_ADDS_UP for setting in plan.launch_settings)
    traffic_class = tree.facts.traffic_class
    leaves_node = len({slot.node for slot in plan.placement.slots}) > 1
    if not leaves_node or not (adds_up or traffic_class is not None):
        return None
    nodes: dict[NodeId, TopologyNode] = {node.id: node for node in tree.nodes}
    paths = [nodes[node].path for node in plan.placement.nodes]
    _, size = gradient_group(plan.layout)
    return SwitchRequest(
        gang=gang,
        domains=(_common(paths),),
        num_trees=plan.layout.world_size // size if adds_up else 0,
        traffic_class=traffic_class,
    )


def _common(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the innermost domain that holds all of them."""
    common: list[str] = []
    for parts in zip(*paths, strict=True):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return tuple(common)
