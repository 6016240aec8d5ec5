"""What a gang that is about to run and those that run already do to each other, in a few sentences. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.contention.advice import TOLD_RATIO, capacities, helped, protections, slowed
from airflow_llmsched.planner.contention.interleave import interleave
from airflow_llmsched.planner.contention.loads import GangLoad, LinkId, LinkUse
from airflow_llmsched.planner.contention.network_loads import gang_loads, network_load
from airflow_llmsched.planner.contention.planned import planned_load
from airflow_llmsched.planner.contention.slowdown import Slowdown, slowdowns
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.links import AsMeasured, as_claimed
from airflow_llmsched.planner.perf.network_levels import of_shape

MAX_NAMED = 4
"""Other gangs that are told apart: those that send most over links of the new one. The rest counts as one."""

MAX_LINKS = 8
"""Links of the new gang that are looked at, the fullest: it waits for the slowest of them."""

MAX_SLOWED = 3
"""Gangs of which it is said that they are slowed: the new one, if it is, and then those that are slowed most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a plan's gang puts on links that others may use, too, and sentences on what they do to each other.

    ``load`` is None where it is not known how long a step takes, or on which machines.
    """

    load: NetworkLoad | None
    told: tuple[str, ...]


def plan_beside(
    workload: WorkloadSpec,
    plan: Plan,
    tree: TopologyTree,
    *,
    shapes: Mapping[str, NodeShape],
    loads: Mapping[str, NetworkLoad],
    name: str = "this run",
    as_measured: AsMeasured = as_claimed,
) -> Beside:
    """Return what there is to know of a plan beside gangs that run, whose ``loads`` are told by their names.

    ``tree`` is of the whole cluster: of nodes that are left out nobody knows what they bring to a link. Links are as
    they were ``as_measured``, for those that were. Nothing is known of a plan with nodes that are not of its shape in
    the tree: it is kept though they are called otherwise now.

    Raises:
        KeyError: the plan's shape is not among ``shapes``, or as the performance model.
    """
    shape = shapes[plan.node_shape]
    own = as_measured(of_shape(tree, plan.node_shape, shape), plan.node_shape)
    if not {slot.node for slot in plan.placement.slots} <= {node.id for node in own.nodes}:
        return Beside(load=None, told=())
    cluster = ClusterGraph(own, shape)
    gang = planned_load(name, workload, plan, own, cluster)
    return Beside(
        load=network_load(gang, plan.placement, own, cluster),
        told=words_beside(gang, gang_loads(loads, own, cluster), cluster),
    )


def with_note(
    search: PlanSearch,
    workload: WorkloadSpec,
    tree: TopologyTree,
    *,
    shapes: Mapping[str, NodeShape],
    loads: Mapping[str, NetworkLoad],
    as_measured: AsMeasured = as_claimed,
) -> PlanSearch:
    """Return what was found with a note on what the best plan's gang and those that run do to each other.

    Raises as :func:`plan_beside`.
    """
    if not search.plans or not loads:
        return search
    told = plan_beside(workload, search.plans[0], tree, shapes=shapes, loads=loads, as_measured=as_measured).told
    return replace(search, notes=(*search.notes, *note_of(told)))


def note_of(told: Sequence[str]) -> tuple[str, ...]:
    """Return sentences of :class:`Beside` as one for a plan's notes; none of nothing."""
    return (f"Beside others: {'; '.join(told)}.",) if told else ()


def words_beside(own: GangLoad, others: Sequence[GangLoad], cluster: ClusterGraph) -> tuple[str, ...]:
    """Say by whom a new gang is slowed and whom it slows, what offset helps, and what its staging may take.

    Nothing where nobody is slowed by it or slows it. Names of gangs must differ.
    """
    others = [each for each in others if each.uses.keys() & own.uses.keys()]
    if not others:
        return ()
    capacity = capacities([own, *others], cluster)
    links = _fullest(own, others, capacity)
    mine, (named, rest) = _on(links, own), _told_apart([each for gang in others if (each := _on(links, gang)).uses])
    names = {mine.name, *(each.name for each in named)}
    harmed = [each for each in slowdowns([mine, *named, *rest], capacity) if _is_told(each, own.name, names)]
    if not harmed:
        return ()
    harmed.sort(key=lambda each: (each.name != own.name, -each.ratio, each.name))
    worst = (harmed[0].name, *harmed[0].culprits)
    partners = sorted((each for each in named if each.name in worst), key=lambda each: worst.index(each.name))
    return (
        *(slowed(each, cluster) for each in harmed[:MAX_SLOWED]),
        *helped(interleave([mine, *partners[:1]], capacity)),
        *protections([own], cluster),
    )


def _fullest(own: GangLoad, others: Sequence[GangLoad], capacity: Mapping[LinkId, float]) -> list[LinkId]:
    full: dict[LinkId, float] = defaultdict(float)
    for gang in others:
        for link in gang.uses.keys() & own.uses.keys():
            full[link] += _bytes_per_s(gang, link) / capacity[link]
    return sorted(full, key=lambda link: (-full[link] - _bytes_per_s(own, link) / capacity[link], link))[:MAX_LINKS]


def _on(links: Collection[LinkId], gang: GangLoad) -> GangLoad:
    uses = {link: use for link, use in gang.uses.items() if link in links}
    return GangLoad(name=gang.name, step_s=gang.step_s, uses=uses)


def _told_apart(gangs: Sequence[GangLoad]) -> tuple[list[GangLoad], list[GangLoad]]:
    """Return the gangs that send most, and the rest, where there is any, as one."""
    ranked = sorted(gangs, key=lambda gang: (-sum(_bytes_per_s(gang, link) for link in gang.uses), gang.name))
    rest = ranked[MAX_NAMED:] if len(ranked) > MAX_NAMED + 1 else []
    return ranked[: len(ranked) - len(rest)], list(_together(rest))


def _together(gangs: Sequence[GangLoad]) -> Iterator[GangLoad]:
    """Yield one gang that is busy on each link for as long as all of these one after another, and sends as much."""
    bytes_per_s: dict[LinkId, float] = defaultdict(float)
    busy_ratio: dict[LinkId, float] = defaultdict(float)
    for gang in gangs:
        for link in gang.uses:
            bytes_per_s[link] += _bytes_per_s(gang, link)
            busy_ratio[link] += gang.duty_ratio(link)
    uses = {
        link: LinkUse(bytes_per_step=rate, alone_bytes_per_s=rate / min(1.0, busy_ratio[link]))
        for link, rate in bytes_per_s.items()
    }
    if uses:
        yield GangLoad(name=f"{len(gangs)} others", step_s=1.0, uses=uses)


def _is_told(each: Slowdown, own: str, named: Collection[str]) -> bool:
    return each.ratio > 1 + TOLD_RATIO and each.name in named and own in (each.name, *each.culprits)


def _bytes_per_s(gang: GangLoad, link: LinkId) -> float:
    return gang.uses[link].bytes_per_step / gang.step_s
