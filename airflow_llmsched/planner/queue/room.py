"""Where a gang would fit: free slots of all nodes as one array, and the domains they lie in. Pure.

The rules of room are those of ``planner.placement.feasible``: groups of ``tp`` ranks stay where the fastest links
reach, and a required level holds the whole gang. Levels that are required of groups are for ``group_room``.

Axes: N = node in order of path and id, D = domain of one level, L = level, outermost first; the last one is the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish
from airflow_llmsched.domain.queue import QueuedGang, RunningGang, SlicedSlot
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.errors import InternalError
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL
from airflow_llmsched.planner.queue.group_room import GroupRoom

FLEET = -1
"""Stands for the depth of the whole fleet, in which all levels are."""

Share = tuple[IntArray, IntArray]
"""Positions of nodes, and the number of slots that are taken of each."""

Kind = tuple[int, str | None, frozenset[NodeId], tuple[PlacementWish, ...], ParallelLayout | None]
"""What of a gang says where it fits, apart from how large it is."""

NOTHING: Share = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Room:
    """The nodes of a queue. ``whole_N`` is what each has to give out while nothing runs.

    ``busy_LN`` is how busy running gangs keep the link above each domain that a node is in, None where nobody knows of
    any. ``groups`` is what was found out of gangs whose groups have required levels.
    """

    tree: TopologyTree
    levels: tuple[str, ...]
    nodes: tuple[TopologyNode, ...]
    position: Mapping[NodeId, int]
    domain_LN: IntArray
    num_domains_L: tuple[int, ...]
    group_depth: int
    whole_N: IntArray
    slots: tuple[frozenset[int], ...]
    busy_LN: FloatArray | None = None
    groups: dict[tuple[ParallelLayout, tuple[PlacementWish, ...]], GroupRoom] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: TopologyTree, running: Iterable[RunningGang], sliced: Iterable[SlicedSlot]) -> Room:
        """Lay a tree out: slots that are given out in slices are no gang's, those that gangs hold are the queue's."""
        nodes = tuple(sorted(tree.nodes, key=lambda node: (node.path, node.id)))
        position = {node.id: number for number, node in enumerate(nodes)}
        slots = [set(node.usable_slot_indexes) for node in nodes]
        for gang in running:
            for node, held in gang.held.items():
                if node in position and nodes[position[node]].unusable_reason is None:
                    slots[position[node]].update(held)
        for each in sliced:
            if each.node in position:
                slots[position[each.node]].discard(each.slot)
        levels = tree.levels if NODE_LEVEL in tree.levels else (*tree.levels, NODE_LEVEL)
        domain_LN = np.tile(np.arange(len(nodes), dtype=np.int64), (len(levels), 1))
        for depth in range(len(tree.levels)):
            numbers: dict[tuple[str, ...], int] = {}
            domain_LN[depth] = [numbers.setdefault(node.path[: depth + 1], len(numbers)) for node in nodes]
        return cls(
            tree=tree,
            levels=levels,
            nodes=nodes,
            position=position,
            domain_LN=domain_LN,
            num_domains_L=tuple(int(row.max(initial=-1)) + 1 for row in domain_LN),
            group_depth=levels.index(tree.scale_up_level or NODE_LEVEL),
            whole_N=np.array([len(each) for each in slots], dtype=np.int64),
            slots=tuple(frozenset(each) for each in slots),
            busy_LN=_busy_LN(nodes, len(levels)),
        )

    def depth(self, level: str | None) -> int:
        """Index of a level, :data:`FLEET` for None. Raises ``ValueError`` that names the known ones."""
        if level is None:
            return FLEET
        if level not in self.levels:
            raise ValueError(f"no level {level!r} in the topology; known: {', '.join(self.levels)}")
        return self.levels.index(level)

    def share_of(self, num_slots: Mapping[NodeId, int]) -> Share:
        """Return slots by node as arrays; nodes that the tree does not name, or that are unusable, are left out."""
        known = sorted((self.position[node], number) for node, number in num_slots.items() if node in self.position)
        known = [each for each in known if self.nodes[each[0]].unusable_reason is None]
        pairs = np.array(known, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    def by_node(self, share: Share) -> dict[NodeId, int]:
        """Return a share by the names of its nodes."""
        return {self.nodes[node].id: number for node, number in zip(share[0].tolist(), share[1].tolist(), strict=True)}

    def free_for(self, free_N: IntArray, gang: QueuedGang) -> IntArray:
        """Return what is free of the nodes that a gang does not exclude."""
        excluded = [self.position[node] for node in gang.excluded if node in self.position]
        if not excluded:
            return free_N
        result_N = free_N.copy()
        result_N[excluded] = 0
        return result_N

    def rooms_D(self, free_N: IntArray, *, depth: int, group_size: int) -> IntArray:
        """Return the slots that each domain of a level could give a gang, in whole groups.

        Domains inside one that groups must not leave count every slot: others there may have the rest of a group.
        """
        if self.group_depth == len(self.levels) - 1:
            return self._sum_D(free_N // group_size * group_size, depth)
        if depth > self.group_depth:
            return self._sum_D(free_N, depth)
        joined_G = self._sum_D(free_N, self.group_depth) // group_size * group_size
        if depth == self.group_depth:
            return joined_G
        if depth == FLEET:
            return np.array([joined_G.sum()], dtype=np.int64)
        outer_G = np.zeros(len(joined_G), dtype=np.int64)
        outer_G[self.domain_LN[self.group_depth]] = self.domain_LN[depth]
        return np.bincount(outer_G, weights=joined_G, minlength=self.num_domains_L[depth]).astype(np.int64)

    def kept(self, gang: QueuedGang) -> GroupRoom | None:
        """Return the ways to keep a gang's groups inside the levels required of them; None where none are."""
        if not gang.group_levels:
            return None
        key = (gang.layout, gang.group_levels)
        if key not in self.groups:
            self.groups[key] = GroupRoom.of(self.tree, gang, largest=int(self.whole_N.max(initial=0)))
        return self.groups[key]

    def rooms_for(self, free_N: IntArray, gang: QueuedGang, *, depth: int) -> IntArray:
        """Return the slots that each domain of a level could give a gang of this one's kind."""
        kept = self.kept(gang)
        if kept is None:
            return self.rooms_D(free_N, depth=depth, group_size=gang.layout.tp)
        return np.array([kept.most(free_N)]) if depth == FLEET else kept.rooms_D(free_N, depth=depth)

    def most(self, free_N: IntArray, gang: QueuedGang) -> int:
        """Return the largest gang of this one's kind that would fit."""
        depth, size = self.depth(gang.required_level), 1 if gang.group_levels else gang.layout.tp
        return int(self.rooms_for(self.free_for(free_N, gang), gang, depth=depth).max(initial=0)) // size * size

    def fits(self, free_N: IntArray, gang: QueuedGang) -> bool:
        """Whether a gang fits as a whole."""
        return self.most(free_N, gang) >= in_groups(gang)

    def holds(self, share: Share, gang: QueuedGang) -> bool:
        """Whether a gang fits into these slots and no others."""
        free_N = np.zeros_like(self.whole_N)
        free_N[share[0]] = share[1]
        return self.fits(free_N, gang)

    def domains(self, free_N: IntArray, gang: QueuedGang) -> Iterator[IntArray]:
        """Yield the nodes of domains that hold a gang, the best one of each level, innermost level first.

        The best one is what has least room to spare, so that small gangs go to what others left over; before that, what
        is least busy of the links inside that the gang has to go over, by tenths.
        """
        free_N = self.free_for(free_N, gang)
        outermost = self.depth(gang.required_level)
        crossed: list[int] = []
        for depth in range(len(self.levels) - 1, outermost - 1, -1):
            rooms_D = self.rooms_for(free_N, gang, depth=depth)
            fitting_D = np.flatnonzero(rooms_D >= in_groups(gang))
            if not fitting_D.size:
                crossed.append(depth)
                continue
            busy_D = self._busy_D(crossed, depth, free_N)
            order = np.lexsort((fitting_D, rooms_D[fitting_D], busy_D[fitting_D]))
            yield self.within(int(fitting_D[order[0]]), depth)

    def _busy_D(self, crossed: list[int], depth: int, free_N: IntArray) -> FloatArray:
        """Return by domain for what share of the time, in tenths, links of ``crossed`` levels are full on average."""
        if self.busy_LN is None or not crossed or depth == FLEET:
            return np.zeros(1 if depth == FLEET else self.num_domains_L[depth])
        size = self.num_domains_L[depth]
        busy_N = self.busy_LN[crossed].max(axis=0) * free_N
        busy_D = np.bincount(self.domain_LN[depth], weights=busy_N, minlength=size)
        return np.round(busy_D / np.maximum(self._sum_D(free_N, depth), 1), 1)

    def choose(self, free_N: IntArray, gang: QueuedGang, *, first_N: IntArray | None = None) -> Share:
        """Return slots for a gang in its best domain; the gang must fit.

        Domains and nodes that have most of ``first_N`` go first: what is free already, of what will be free.
        """
        free_N = self.free_for(free_N, gang)
        first_N = free_N if first_N is None else np.minimum(first_N, free_N)
        kept, depth = self.kept(gang), self.depth(gang.required_level)
        if first_N is free_N:
            nodes = next(self.domains(free_N, gang))
        elif kept is None:
            nodes = self._readiest(free_N, gang, first_N, [depth])
        else:
            nodes = self._readiest(free_N, gang, first_N, range(len(self.levels) - 1, depth - 1, -1))
        if kept is None:
            return self._fill(free_N, nodes, gang, first_N)
        return kept.choose(free_N, nodes, first_N, num_slots=gang.num_slots)

    def tree_for(self, nodes: IntArray, free: Mapping[int, tuple[int, ...]]) -> TopologyTree:
        """Return a tree of some nodes with only these slots free, for a solver to place one gang in."""
        narrowed = [
            replace(self.nodes[node], num_free_slots=len(slots), free_slots=slots)
            for node in nodes.tolist()
            if (slots := free.get(node, ()))
        ]
        return replace(self.tree, nodes=tuple(narrowed))

    def within(self, domain: int, depth: int) -> IntArray:
        """Return the nodes of a domain."""
        if depth == FLEET:
            return np.arange(len(self.nodes), dtype=np.int64)
        return np.flatnonzero(self.domain_LN[depth] == domain)

    def path(self, nodes: IntArray, depth: int) -> tuple[str, ...]:
        """Return the path of the domain that nodes are of; that of a node ends with its id."""
        if depth == FLEET:
            return ()
        node = self.nodes[int(nodes[0])]
        return (*node.path, node.id) if depth >= len(self.tree.levels) else node.path[: depth + 1]

    def _readiest(self, free_N: IntArray, gang: QueuedGang, first_N: IntArray, depths: Iterable[int]) -> IntArray:
        """Return the nodes of the domain with most of ``first_N``, of the first level with any that holds the gang."""
        for depth in depths:
            rooms_D = self.rooms_for(free_N, gang, depth=depth)
            fitting_D = np.flatnonzero(rooms_D >= in_groups(gang))
            if fitting_D.size:
                return self.within(int(fitting_D[np.argmax(self._sum_D(first_N, depth)[fitting_D])]), depth)
        raise InternalError(f"gang {gang.key} of {gang.num_slots} slots does not fit, and was to be given room")

    def _sum_D(self, values_N: IntArray, depth: int) -> IntArray:
        if depth == FLEET:
            return np.array([values_N.sum()], dtype=np.int64)
        return np.bincount(self.domain_LN[depth], weights=values_N, minlength=self.num_domains_L[depth]).astype(
            np.int64
        )

    def _fill(self, free_N: IntArray, nodes: IntArray, gang: QueuedGang, first_N: IntArray) -> Share:
        """Take whole groups, the readiest and roomiest places first; then the rest where it leaves the least over.

        Axis B: place that groups must not leave, among ``nodes``.
        """
        size, remaining = gang.layout.tp, in_groups(gang)
        _, bin_of = np.unique(self.domain_LN[self.group_depth, nodes], return_inverse=True)
        room_B = np.bincount(bin_of, weights=free_N[nodes]).astype(np.int64) // size * size
        ready_B = np.bincount(bin_of, weights=first_N[nodes]).astype(np.int64)
        order = np.lexsort((-room_B, -ready_B))
        total = np.cumsum(room_B[order])
        num_full = int(np.searchsorted(total, remaining))
        rest = remaining - (int(total[num_full - 1]) if num_full else 0)
        fitting = order[num_full:][room_B[order[num_full:]] >= rest]
        last = fitting[np.lexsort((fitting, room_B[fitting], -np.minimum(ready_B[fitting], rest)))[0]]
        wanted_B = np.zeros(len(room_B), dtype=np.int64)
        wanted_B[order[:num_full]] = room_B[order[:num_full]]
        wanted_B[last] = rest
        return _take(free_N, nodes, bin_of, wanted_B)


def _busy_LN(nodes: Sequence[TopologyNode], num_levels: int) -> FloatArray | None:
    if not any(node.busy_ratios for node in nodes):
        return None
    none = (0.0,) * num_levels
    return np.array([node.busy_ratios or none for node in nodes], dtype=np.float64).T


def kind_of(gang: QueuedGang) -> Kind:
    """Return what gangs have in common that fit into the same domains if they are as large."""
    layout = gang.layout if gang.group_levels else None
    return gang.layout.tp, gang.required_level, frozenset(gang.excluded), gang.group_levels, layout


def in_groups(gang: QueuedGang) -> int:
    """Slots that a gang needs where only whole groups are given out: helpers' are rounded up."""
    size = 1 if gang.group_levels else gang.layout.tp  # those are counted apart
    return -(-gang.num_slots // size) * size


def _take(free_N: IntArray, nodes: IntArray, bin_of: IntArray, wanted_B: IntArray) -> Share:
    """Take what is wanted of each place from its nodes, the freest first."""
    order = np.lexsort((nodes, -free_N[nodes], bin_of))
    free, bins = free_N[nodes[order]], bin_of[order]
    before = np.cumsum(free) - free
    starts = np.searchsorted(bins, np.arange(len(wanted_B)))
    taken = np.clip(wanted_B[bins] - (before - before[starts][bins]), 0, free)
    used = np.flatnonzero(taken)
    positions = nodes[order[used]]
    by_position = np.argsort(positions)
    return positions[by_position], taken[used][by_position]
