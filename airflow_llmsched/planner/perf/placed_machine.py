"""Where ranks really are: which links a group spans follows from a placement, not from the order of ranks. Pure.

Axes: C = candidate layout, R = rank, G = group of ranks, M = member of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.topology import AS_SHAPES_SAY, NetworkFacts, NetworkLevel, TopologyTree
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.perf.collectives import Link, Span
from airflow_llmsched.planner.perf.groups import groups_GM
from airflow_llmsched.planner.perf.machine import Machine, bridged_size
from airflow_llmsched.planner.perf.network_levels import HOP_S, told_levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How the group that is spread most lies: over how many domains, with how many members in the emptiest of them."""

    num_domains: int
    num_members: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Domains:
    """The number of each rank's domain on one level; those of equal domains one after another are quick to look at."""

    domain_R: IntArray
    ranks_of_each: int
    _known: dict[tuple[int, int], Spread] = field(default_factory=dict)

    @classmethod
    def of(cls, domain_R: IntArray) -> Domains:
        """Number domains in the order of their first rank."""
        begins = np.append(0, np.flatnonzero(np.diff(domain_R)) + 1)
        lengths = np.diff(np.append(begins, len(domain_R)))
        numbers: dict[int, int] = {}
        own = [numbers.setdefault(domain, len(numbers)) for domain in domain_R[begins].tolist()]
        is_even = len(numbers) == len(own) and bool((lengths == lengths[0]).all())
        return cls(domain_R=np.repeat(own, lengths), ranks_of_each=int(lengths[0]) if is_even else 0)

    @property
    def fewest(self) -> int:
        """Ranks in the domain that has fewest."""
        return int(np.bincount(self.domain_R).min())

    @property
    def most(self) -> int:
        """Ranks in the domain that has most."""
        return int(np.bincount(self.domain_R).max())

    @property
    def usual(self) -> int:
        """Ranks that most domains have; of several such numbers the largest."""
        times = np.bincount(np.bincount(self.domain_R))
        return int(len(times) - 1 - np.argmax(times[::-1]))

    def spread(self, *, stride: int, size: int) -> Spread:
        """Return how the worst of the groups of ``size`` ranks, ``stride`` apart, lies: a step waits for all.

        That is the one over most domains, and of those one with fewest members in a domain.
        """
        if (stride, size) not in self._known:
            self._known[stride, size] = self._in_rows(stride, size) or _worst(self.domain_R, stride, size)
        return self._known[stride, size]

    def _in_rows(self, stride: int, size: int) -> Spread | None:
        """Say it without looking at each rank, where domains are equal and groups divide them or are divided."""
        ranks, reach = self.ranks_of_each, stride * size
        if size == 1:
            return Spread(num_domains=1, num_members=1)
        if not ranks or len(self.domain_R) % reach:
            return None
        if ranks % reach == 0:
            return Spread(num_domains=1, num_members=size)
        if stride % ranks == 0:
            return Spread(num_domains=size, num_members=1)
        if reach % ranks == 0 and ranks % stride == 0:
            return Spread(num_domains=reach // ranks, num_members=ranks // stride)
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rails:
    """The node and the rail of each rank's card. Rings enter and leave a node over the cards of their own members."""

    node_R: IntArray
    rail_R: IntArray
    _known: dict[tuple[int, int], bool] = field(default_factory=dict)

    def are_crossed(self, *, stride: int, size: int) -> bool:
        """Whether any group of ``size`` ranks, ``stride`` apart, has other rails on one node than on another."""
        if (stride, size) not in self._known:
            self._known[stride, size] = any(
                self._is_crossed(group) for group in groups_GM(len(self.node_R), stride=stride, size=size)
            )
        return self._known[stride, size]

    def _is_crossed(self, group: IntArray) -> bool:
        on_node: dict[int, set[int]] = {}
        for node, rail in zip(self.node_R[group].tolist(), self.rail_R[group].tolist(), strict=True):
            on_node.setdefault(node, set()).add(rail)
        return len(set(map(frozenset, on_node.values()))) > 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ground:
    """One placement in numbers, by level.

    ``scale_up`` are the domains of the fastest links, ``bridges`` pairs of cards with a bridge (None: there are none),
    ``network`` what is known of the network's levels, innermost first, each with its domains. The last of ``levels``
    are the nodes; before them are the tree's, outermost first.
    """

    scale_up: Domains
    bridges: Domains | None
    levels: Mapping[str, Domains]
    network: Sequence[tuple[NetworkLevel, Domains | None]]
    rails: Rails | None = None

    def goes_over(self, *, stride: int, size: int) -> tuple[NetworkLevel | None, ...]:
        """Return the levels of the network that groups go over, innermost first; None is whatever no level speaks of.

        Those up to the first whose domains hold each group whole; and one more for groups that cross rails, which meet
        farther up.
        """
        over: list[NetworkLevel | None] = []
        is_held = False
        for level, domains in self.network:
            over.append(level)
            if is_held:
                return tuple(over)
            is_held = domains is None or domains.spread(stride=stride, size=size).num_domains == 1
            if is_held and not self.crosses_rails(stride=stride, size=size):
                return tuple(over)
        return (*over, None)

    def crosses_rails(self, *, stride: int, size: int) -> bool:
        """Whether groups that leave their node have cards on other rails on one node than on another."""
        return self.rails is not None and self.rails.are_crossed(stride=stride, size=size)


class Terrain:
    """A tree for one node shape, prepared for many placements."""

    def __init__(self, tree: TopologyTree, shape: NodeShape) -> None:
        moved_by = tree.facts.transport or shape.inter_node.transport
        self.shape = replace(shape, inter_node=replace(shape.inter_node, transport=moved_by))
        self._tree = tree
        self.scale_up_level = tree.scale_up_level if shape.island_joins_nodes else None
        self._position: Mapping[NodeId, int] = {node.id: number for number, node in enumerate(tree.nodes)}
        numbers = (_numbered(node.path[: depth + 1] for node in tree.nodes) for depth in range(len(tree.levels)))
        self._domain_N = dict(zip(tree.levels, numbers, strict=True))
        self._network = [level for level, _ in told_levels(tree)]

    @property
    def facts(self) -> NetworkFacts:
        """What is known of the network as a whole."""
        return self._tree.facts

    @property
    def switches_reduce(self) -> bool:
        """Whether the operator has switched on reduction in the network's switches."""
        return self._tree.switches_reduce

    def ground(self, placement: Placement) -> Ground:
        """Return a placement in numbers. Raises ``KeyError`` for a node that is not in the tree."""
        ranks_on = Counter(slot.node for slot in placement.slots)
        position_R = np.repeat([self._position[node] for node in ranks_on], list(ranks_on.values()))
        nodes = Domains.of(position_R)
        levels = {level: Domains.of(domain_N[position_R]) for level, domain_N in self._domain_N.items()}
        return Ground(
            scale_up=nodes if self.scale_up_level is None else levels[self.scale_up_level],
            bridges=self._bridges(placement),
            levels={**levels, NODE: nodes},
            network=[(each, None if each.level is None else levels[each.level]) for each in self._network],
            rails=self._rails(placement, nodes),
        )

    def _rails(self, placement: Placement, nodes: Domains) -> Rails | None:
        num_rails = self.facts.num_rails
        if num_rails == 1:
            return None
        rail_R = np.array([slot.slot % num_rails for slot in placement.slots], dtype=np.int64)
        return Rails(node_R=nodes.domain_R, rail_R=rail_R)

    def _bridges(self, placement: Placement) -> Domains | None:
        size = bridged_size(self.shape)
        if size == 1:
            return None
        return Domains.of(_numbered((slot.node, slot.slot // size) for slot in placement.slots))


NODE = "node"
"""Name of the level of nodes, below the tree's own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedMachine(Machine):
    """A machine for candidates that each run on one of some placements, with as many ranks as that has.

    ``ground_C`` is the number of each one's placement among ``grounds``. A group of which nothing is known but the
    worst of each trait is priced by these: most domains, fewest members in one, slowest links on the way.
    """

    grounds: Sequence[Ground]
    ground_C: IntArray
    facts: NetworkFacts = AS_SHAPES_SAY

    @classmethod
    def of(cls, terrain: Terrain, grounds: Sequence[Ground], ground_C: IntArray) -> Self:
        """Build the machine of candidates on ``grounds[ground_C]``."""
        ranks_A = np.array([each.levels[NODE].fewest for each in grounds], dtype=np.int64)
        joined_A = np.array([each.scale_up.fewest for each in grounds], dtype=np.int64)
        return cls(
            shape=terrain.shape, switches_reduce=terrain.switches_reduce, facts=terrain.facts, grounds=grounds,
            ground_C=ground_C,
            ranks_per_node_C=ranks_A[ground_C], joined_ranks_C=joined_A[ground_C],
        )  # fmt: skip

    @classmethod
    def on(cls, placement: Placement, *, tree: TopologyTree, shape: NodeShape) -> Self:
        """Build the machine of one candidate. Raises ``KeyError`` for a node that is not in the tree."""
        terrain = Terrain(tree, shape)
        return cls.of(terrain, [terrain.ground(placement)], np.zeros(1, dtype=np.int64))

    @property
    def places_C(self) -> tuple[IntArray, ...]:
        """The column by which candidates differ in where they run."""
        return (self.ground_C,)

    def take(self, chosen: IntArray) -> Self:
        """Return the machine of some candidates, by index."""
        joined_C = None if self.joined_ranks_C is None else self.joined_ranks_C[chosen]
        return replace(
            self, ranks_per_node_C=self.ranks_per_node_C[chosen], joined_ranks_C=joined_C,
            ground_C=self.ground_C[chosen],
        )  # fmt: skip

    def span(self, *, stride_C: IntArray, size_C: IntArray) -> Span:
        """Return where the slowest group of ``size_C`` ranks, ``stride_C`` apart, has its members."""
        asked, which_C = np.unique(np.stack([self.ground_C, stride_C, size_C]), axis=1, return_inverse=True)
        kinds = [(self.grounds[ground], stride, size) for ground, stride, size in asked.T.tolist()]
        spreads = [ground.scale_up.spread(stride=stride, size=size) for ground, stride, size in kinds]
        found = np.array([(each.num_domains, each.num_members) for each in spreads], dtype=np.int64).reshape(-1, 2)
        domains_C, members_C = found[which_C.ravel()].T
        bridged = np.array([_is_bridged(*kind) for kind in kinds], dtype=np.bool_)
        return Span(
            size_C=size_C,
            members_C=members_C,
            domains_C=domains_C,
            inner=self.inner_of(members_C=members_C, bridged_C=bridged[which_C.ravel()]),
            outer=self._outer_of(kinds, which_C.ravel()),
        )

    def _outer_of(self, kinds: Sequence[tuple[Ground, int, int]], which_C: IntArray) -> Link:
        """Return the network between domains; where its levels are known, the slowest that a group goes over."""
        outer = self.outer
        if not any(ground.network or ground.rails is not None for ground, _, _ in kinds):
            return outer
        rates = [self._network_rate(ground, stride, size) for ground, stride, size in kinds]
        later_s = [HOP_S * ground.crosses_rails(stride=stride, size=size) for ground, stride, size in kinds]
        latency_s = np.asarray(outer.latency_s) + np.array(later_s)[which_C]
        return replace(outer, bytes_per_s=np.array(rates)[which_C], latency_s=latency_s)

    def _network_rate(self, ground: Ground, stride: int, size: int) -> float:
        return network_rate(self, ground.goes_over(stride=stride, size=size))


def network_rate(machine: Machine, over: Iterable[NetworkLevel | None]) -> float:
    """Return the bytes a second of one rank between domains that the slowest of the levels ``over`` allows.

    What is stated of a level can be no more than the node's own cards reach; what was measured there is so. None is
    whatever no level speaks of.
    """
    own = float(machine.outer.bytes_per_s)
    return min(
        own if level is None
        else level.bandwidth_bytes_per_s if level.is_measured
        else min(level.bandwidth_bytes_per_s * machine.reached.network_ratio, own)
        for level in over
    )  # fmt: skip


def _is_bridged(ground: Ground, stride: int, size: int) -> bool:
    return ground.bridges is not None and ground.bridges.spread(stride=stride, size=size).num_domains == 1


def _numbered(places: Iterable[Hashable]) -> IntArray:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(place, len(numbers)) for place in places], dtype=np.int64)


def _worst(domain_R: IntArray, stride: int, size: int) -> Spread:
    """Look at each group."""
    group_GM = groups_GM(len(domain_R), stride=stride, size=size)
    if not group_GM.size:
        return Spread(num_domains=1, num_members=1)
    domain_GM = np.sort(domain_R[group_GM], axis=1)
    begins_GM = np.ones(domain_GM.shape, dtype=np.bool_)
    begins_GM[:, 1:] = domain_GM[:, 1:] != domain_GM[:, :-1]
    domains_G = begins_GM.sum(axis=1)
    begin = np.flatnonzero(begins_GM)
    run = np.diff(np.append(begin, domain_GM.size))
    fewest_G = np.minimum.reduceat(run, np.append(0, np.cumsum(domains_G)[:-1]))
    most = int(domains_G.max())
    return Spread(num_domains=most, num_members=int(fewest_G[domains_G == most].min()))
