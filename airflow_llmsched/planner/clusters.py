"""Plans on a fleet's clusters: each at its own prices, the preferred ones first, and no gang over two. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_llmsched.domain.fleet import Cluster
from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import CapacityWish, WorkloadSpec

Search = Callable[[TopologyTree, Mapping[str, NodeShape]], PlanSearch]
"""Searches for plans on a tree, with node shapes by the names that the tree has for them."""


def search_clusters(
    workload: WorkloadSpec,
    tree: TopologyTree,
    shapes: Mapping[str, NodeShape],
    *,
    clusters: Sequence[Cluster],
    search: Search,
) -> PlanSearch:
    """Return the plans of the most preferred clusters on which one keeps deadline and budget; else of all of them.

    The spec's filters (``capacity.regions`` and ``jurisdictions``) leave clusters out, and the notes say so.

    Args:
        workload: What to train.
        tree: A fleet's nodes, whose outermost level is the cluster.
        shapes: Node shapes by name, at list price.
        clusters: The terms of each cluster; nodes of others are not used.
        search: Plans on nodes of one kind at a time. A cluster's nodes of one shape are a kind of their own.

    Raises what ``search`` raises.
    """
    out = {each.name: reason for each in clusters if (reason := _left_out(each, workload.capacity))}
    nodes: dict[str, list[TopologyNode]] = {}
    for node in tree.nodes:
        nodes.setdefault(node.path[0], []).append(node)
    notes = [*_notes(out), *_notes(_unseen(nodes))]
    found: list[PlanSearch] = []
    admitted = [each for each in clusters if each.name not in out and each.name in nodes]
    for preference in sorted({each.preference for each in admitted}, reverse=True):
        alike = [each for each in admitted if each.preference == preference]
        kinds = {kind: shape for each in alike for kind, shape in _kinds(each, shapes).items()}
        renamed = tuple(_of_kind(node, each.name, kinds) for each in alike for node in nodes[each.name])
        found.append(search(replace(tree, nodes=renamed), kinds))
        if any(_keeps(plan, workload) for plan in found[-1].plans):
            break
    return _together(found, workload, notes)


def _left_out(cluster: Cluster, wish: CapacityWish) -> str:
    for name, has, allowed in (
        ("regions", cluster.region, wish.regions),
        ("jurisdictions", cluster.jurisdiction, wish.jurisdictions),
    ):
        if allowed and has not in allowed:
            return f"capacity.{name} allows {', '.join(allowed)}, and it has {has or 'none'}"
    return ""


def _unseen(nodes: Mapping[str, Sequence[TopologyNode]]) -> dict[str, str]:
    """Return why clusters have no node that may be used, where that is one reason for all of their nodes."""
    reasons = {name: {node.unusable_reason for node in own} for name, own in nodes.items()}
    return {name: each.pop() or "" for name, each in reasons.items() if len(each) == 1 and None not in each}


def _notes(reasons: Mapping[str, str]) -> list[str]:
    return [f"Cluster {name} is left out: {reason}." for name, reason in sorted(reasons.items())]


def _kinds(cluster: Cluster, shapes: Mapping[str, NodeShape]) -> dict[str, NodeShape]:
    prices = cluster.usd_per_hour
    return {
        _kind(name, cluster.name): replace(shape, usd_per_hour=prices[name], price_source="fleet file")
        if name in prices
        else shape
        for name, shape in shapes.items()
    }


def _of_kind(node: TopologyNode, cluster: str, kinds: Mapping[str, NodeShape]) -> TopologyNode:
    kind = _kind(node.shape, cluster)
    return replace(node, shape=kind) if kind in kinds else node


def _kind(shape: str, cluster: str) -> str:
    return f"{shape}@{cluster}"


def _keeps(plan: Plan, workload: WorkloadSpec) -> bool:
    """Whether a plan is in time and in budget, as far as it is predicted."""
    budget, told = workload.budget, plan.prediction
    in_time = budget.deadline_s is None or told.run_s <= budget.deadline_s
    return in_time and (budget.max_usd is None or told.run_usd <= budget.max_usd)


def _together(found: Sequence[PlanSearch], workload: WorkloadSpec, notes: Sequence[str]) -> PlanSearch:
    plans = [plan for each in found for plan in each.plans]
    rejections: Counter[str] = Counter()
    for each in found:
        rejections.update(each.rejections)
    return PlanSearch(
        plans=tuple(sorted(plans, key=lambda plan: not _keeps(plan, workload))),
        rejections=dict(rejections),
        num_candidates=sum(each.num_candidates for each in found),
        relaxation=None if plans else next((each.relaxation for each in found if each.relaxation), None),
        notes=tuple(dict.fromkeys([note for each in found for note in each.notes] + list(notes))),
    )
