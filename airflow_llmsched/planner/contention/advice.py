"""Contention in words, for plans and pages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_llmsched.planner.contention.interleave import Offsets, interleave
from airflow_llmsched.planner.contention.loads import GangLoad, LinkId
from airflow_llmsched.planner.contention.protect import Background, protect
from airflow_llmsched.planner.contention.slowdown import Slowdown, slowdowns
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.units import GB

TOLD_RATIO = 0.005
"""Slowdowns below this are not worth a sentence."""


def capacities(gangs: Sequence[GangLoad], cluster: ClusterGraph) -> dict[LinkId, float]:
    """Return the bytes a second of every link that gangs use."""
    by_depth = {depth: cluster.uplink_bytes_per_s(depth) for depth in range(len(cluster.table.levels))}
    return {link: float(by_depth[link.depth][link.domain]) for gang in gangs for link in gang.uses}


def advise(gangs: Sequence[GangLoad], cluster: ClusterGraph) -> tuple[str, ...]:
    """Say who slows whom by how much and where, and which offsets help; nothing where nobody is slowed."""
    capacity = capacities(gangs, cluster)
    told = [each for each in slowdowns(gangs, capacity) if each.ratio > 1 + TOLD_RATIO]
    offsets = interleave(gangs, capacity) if told else None
    return (*(slowed(each, cluster) for each in told), *helped(offsets))


def protections(gangs: Sequence[GangLoad], cluster: ClusterGraph) -> tuple[str, ...]:
    """Say how fast staging and saving may go on a gang's nodes, and what they would cost it without a limit.

    They are taken to go as fast as a node's cards can, as uploads and downloads do that nobody limits. Nothing is said
    where the network serves collectives first, or where the harm is not worth a sentence.
    """
    return tuple(filter(None, (_protected(gang, cluster) for gang in gangs)))


def _protected(gang: GangLoad, cluster: ClusterGraph) -> str:
    nodes = len(cluster.table.levels) - 1
    own = [link for link in gang.uses if link.depth == nodes]
    if not own:
        return ""
    link = max(own, key=lambda each: (gang.uses[each].active_s, -each.domain))
    capacity = float(cluster.uplink_bytes_per_s(nodes)[link.domain])
    burst = Background(bytes_per_s=capacity, is_lower_class=cluster.serves_collectives_first)
    found = protect(gang, link, burst, capacity_bytes_per_s=capacity)
    harm = found.unprotected_s / found.alone_s - 1
    if harm < TOLD_RATIO:
        return ""
    return (
        f"staging or saving as fast as a node's cards go would slow {gang.name} by {harm:.1%}; held to "
        f"{found.limit_bytes_per_s / GB:,.3g} GB/s a node, by {found.protected_s / found.alone_s - 1:.1%}"
    )


def slowed(each: Slowdown, cluster: ClusterGraph) -> str:
    """Say of a gang that is slowed by whom, where and how much."""
    assert each.link is not None
    others = " and ".join(each.culprits)
    slows = "slows" if len(each.culprits) == 1 else "slow"
    return f"{others} on {link_name(each.link, cluster)} {slows} {each.name} by {each.ratio - 1:.1%}"


def link_name(link: LinkId, cluster: ClusterGraph) -> str:
    """Return what a reader knows a link by: the level, and the first node of the domain below it."""
    level = cluster.table.levels[link.depth]
    inside = (cluster.table.domain_LN[link.depth] == link.domain).nonzero()[0]
    first = cluster.table.ids[int(inside[0])]
    return f"the link of {level} {first}" if len(inside) == 1 else f"the links of the {level} of {first}"


def helped(offsets: Offsets | None) -> Iterator[str]:
    """Say which offsets help, if any do."""
    if offsets is None or offsets.excess_ratio >= offsets.together_excess_ratio:
        return
    shifts = ", ".join(f"{name} {shift:.2f} s" for name, shift in offsets.offset_s.items() if shift > 0)
    yield (
        f"beginning steps apart ({shifts} after the first) lowers the worst demand from "
        f"{offsets.together_peak_ratio:.0%} to {offsets.peak_ratio:.0%} of a link"
    )
