"""Who would have to make room: whole gangs, at the least cost, in one domain. Pure.

Axes: V = gang that could go, N = node of the domain that is looked at, M = set of gangs that go, G = group domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.queue.group_room import GroupRoom
from airflow_llmsched.planner.queue.room import FLEET, Room, Share, in_groups

MAX_EXACT = 10
"""Up to so many gangs in a domain, every set of them is looked at."""

MAX_LOOKS = 200
"""Sets with enough room, cheapest first, that are asked about before a domain is given up."""

FEW_LOOKS = 8
"""The same where what is said of a set says nothing of larger ones: it is then not known whether any is allowed."""

MAX_DOMAINS = 32
"""Domains, the most promising first, that are looked at then."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A running gang that could go, and what that would cost."""

    key: RunKey
    team: int
    share: Share
    asked_Q: FloatArray
    cost_accelerator_s: float
    is_reclaim: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cover:
    """Gangs whose going makes room in one domain, and the nodes of that domain."""

    victims: tuple[Candidate, ...]
    nodes: IntArray
    depth: int

    @property
    def cost_accelerator_s(self) -> float:
        """What it costs that they go."""
        return sum(each.cost_accelerator_s for each in self.victims)


Allows = Callable[[Sequence[Candidate], IntArray], bool]
"""Says whether these gangs may all go from these nodes: quotas, and whether they find another place."""


def cheapest_cover(
    room: Room,
    free_N: IntArray,
    gang: QueuedGang,
    candidates: Sequence[Candidate],
    allows: Allows,
    *,
    is_monotone: bool,
) -> Cover | None:
    """Return the cheapest gangs whose going makes room for ``gang``: in a domain of its required level.

    Without one, in the smallest domain that can hold it, up to the whole fleet. Where there is room already, and only
    ``allows`` does not allow it yet, gangs go from anywhere. Exact for up to :data:`MAX_EXACT`
    candidates in a domain; beyond, the cheapest for each slot go until there is room, then whoever need not go stays.
    ``is_monotone`` says that whatever allows some to go allows it if more go.
    """
    outermost = room.depth(gang.required_level)
    depths = range(len(room.levels) - 1, FLEET - 1, -1) if outermost == FLEET else [outermost]
    if room.fits(free_N, gang):
        depths = [FLEET]
    for depth in depths:
        best: Cover | None = None
        held = _Held.of(room, gang, candidates, depth)
        promising = _promising(room, room.free_for(free_N, gang), gang, held, depth)
        for bound, domain in promising if is_monotone else islice(promising, MAX_DOMAINS):
            if best is not None and bound >= best.cost_accelerator_s:
                break
            nodes, inside = room.within(domain, depth), held.of_domain(domain)
            if is_monotone and not allows(inside.candidates, nodes):
                continue
            ground = _Ground.of(room, nodes, room.free_for(free_N, gang), gang, inside)
            found = _cover(ground, allows, max_looks=MAX_LOOKS if is_monotone else FEW_LOOKS)
            if found is not None and (best is None or _cost(found) < best.cost_accelerator_s):
                best = Cover(victims=tuple(found), nodes=nodes, depth=depth)
        if best is not None:
            return best
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Held:
    """What candidates hold, one entry for each of their nodes, by domain of one level. Axis H = entry."""

    candidates: Sequence[Candidate]
    candidate_H: IntArray
    node_H: IntArray
    count_H: IntArray
    domain_H: IntArray

    @classmethod
    def of(cls, room: Room, gang: QueuedGang, candidates: Sequence[Candidate], depth: int) -> _Held:
        none = np.zeros(0, dtype=np.int64)
        node_H = np.concatenate([none, *(each.share[0] for each in candidates)])
        count_H = np.concatenate([none, *(each.share[1] for each in candidates)])
        candidate_H = np.repeat(np.arange(len(candidates)), [len(each.share[0]) for each in candidates])
        excluded = [room.position[node] for node in gang.excluded if node in room.position]
        domain_H = np.zeros_like(node_H) if depth == FLEET else room.domain_LN[depth, node_H]
        order = np.lexsort((candidate_H, domain_H))
        order = order[~np.isin(node_H[order], excluded)]
        return cls(
            candidates=candidates,
            candidate_H=candidate_H[order],
            node_H=node_H[order],
            count_H=count_H[order],
            domain_H=domain_H[order],
        )

    def of_domain(self, domain: int) -> _Held:
        """Return the entries of one domain, and only the candidates that have any."""
        first, stop = np.searchsorted(self.domain_H, [domain, domain + 1])
        inside, candidate_H = np.unique(self.candidate_H[first:stop], return_inverse=True)
        return _Held(
            candidates=[self.candidates[each] for each in inside.tolist()],
            candidate_H=candidate_H,
            node_H=self.node_H[first:stop],
            count_H=self.count_H[first:stop],
            domain_H=self.domain_H[first:stop],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ground:
    """One domain: what is free in it, and what each candidate would free."""

    nodes: IntArray
    group_of_N: IntArray
    free_N: IntArray
    freed_VN: IntArray
    candidates: Sequence[Candidate]
    group_size: int
    needed: int
    kept: GroupRoom | None

    @classmethod
    def of(cls, room: Room, nodes: IntArray, free_N: IntArray, gang: QueuedGang, held: _Held) -> _Ground:
        freed_VN = np.zeros((len(held.candidates), len(nodes)), dtype=np.int64)
        freed_VN[held.candidate_H, np.searchsorted(nodes, held.node_H)] = held.count_H
        _, group_of_N = np.unique(room.domain_LN[room.group_depth, nodes], return_inverse=True)
        return cls(
            nodes=nodes,
            group_of_N=group_of_N,
            free_N=free_N[nodes],
            freed_VN=freed_VN,
            candidates=held.candidates,
            group_size=gang.layout.tp,
            needed=in_groups(gang),
            kept=room.kept(gang),
        )

    def is_room_M(self, free_MN: IntArray) -> BoolArray:
        """Say for each row of free slots whether the gang fits."""
        if self.kept is not None:
            return self.kept.is_room_M(free_MN, self.nodes, needed=self.needed)
        if self.group_size == 1:
            return np.asarray(free_MN.sum(axis=1) >= self.needed)
        joined_GM = np.zeros((int(self.group_of_N.max(initial=-1)) + 1, len(free_MN)), dtype=np.int64)
        np.add.at(joined_GM, self.group_of_N, free_MN.T)
        return np.asarray((joined_GM // self.group_size * self.group_size).sum(axis=0) >= self.needed)


def _promising(room: Room, free_N: IntArray, gang: QueuedGang, held: _Held, depth: int) -> Iterator[tuple[float, int]]:
    """Yield domains that would have room if all candidates went, with a bound below what that costs, cheapest first.

    No slot in a domain costs less than those of the gang there that gives most of them for its cost. Axis P = domain
    and gang in it.
    """
    freed_N = np.bincount(held.node_H, weights=held.count_H, minlength=len(free_N)).astype(np.int64)
    most_D = room.rooms_for(free_N + freed_N, gang, depth=depth)
    lacking_D = gang.num_slots - room.rooms_D(free_N, depth=depth, group_size=1)
    number = max(1, len(held.candidates))
    pair_P, pair_of = np.unique(held.domain_H * number + held.candidate_H, return_inverse=True)
    slots_P = np.bincount(pair_of, weights=held.count_H, minlength=len(pair_P))
    cost_V = np.array([each.cost_accelerator_s for each in held.candidates])
    lowest_D = np.full(len(most_D), math.inf)
    np.minimum.at(lowest_D, pair_P // number, cost_V[pair_P % number] / slots_P)
    bound_D = np.where(np.isfinite(lowest_D), lowest_D, 0.0) * np.maximum(lacking_D, 0)
    fitting = np.flatnonzero((most_D >= in_groups(gang)) & np.isfinite(lowest_D))
    for domain in fitting[np.lexsort((fitting, bound_D[fitting]))].tolist():
        yield float(bound_D[domain]), domain


def _cover(ground: _Ground, allows: Allows, *, max_looks: int) -> list[Candidate] | None:
    if len(ground.candidates) > MAX_EXACT:
        return _greedy(ground, allows)
    return _exact(ground, allows, max_looks=max_looks)


def _exact(ground: _Ground, allows: Allows, *, max_looks: int) -> list[Candidate] | None:
    number = len(ground.candidates)
    goes_MV = (np.arange(1 << number)[:, None] >> np.arange(number)) & 1
    is_room_M = ground.is_room_M(ground.free_N + goes_MV @ ground.freed_VN)
    cost_M = goes_MV @ np.array([each.cost_accelerator_s for each in ground.candidates])
    sets = np.flatnonzero(is_room_M)
    for chosen in sets[np.lexsort((sets, goes_MV[sets].sum(axis=1), cost_M[sets]))][:max_looks].tolist():
        victims = [each for each, goes in zip(ground.candidates, goes_MV[chosen].tolist(), strict=True) if goes]
        if victims and allows(victims, ground.nodes):
            return victims
    return None


def _greedy(ground: _Ground, allows: Allows) -> list[Candidate] | None:
    freed_V = ground.freed_VN.sum(axis=1)
    cost_V = np.array([each.cost_accelerator_s for each in ground.candidates])
    order = np.lexsort((np.arange(len(cost_V)), cost_V / freed_V))

    def is_enough(chosen: IntArray, freed_N: IntArray) -> bool:
        victims = [ground.candidates[each] for each in chosen.tolist()]
        return bool(ground.is_room_M((ground.free_N + freed_N)[None])[0]) and allows(victims, ground.nodes)

    freed_VN = ground.freed_VN[order].cumsum(axis=0)  # by all up to each of them
    few, many = 0, len(order)
    if not is_enough(order, freed_VN[-1]):
        return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if is_enough(order[:middle], freed_VN[middle - 1]) else (middle, many)
    chosen, freed_N = order[:many], freed_VN[many - 1]
    for each in sorted(chosen.tolist(), key=lambda victim: (-cost_V[victim], -victim)):
        fewer, less_N = chosen[chosen != each], freed_N - ground.freed_VN[each]
        if fewer.size and is_enough(fewer, less_N):
            chosen, freed_N = fewer, less_N
    return [ground.candidates[each] for each in chosen.tolist()]


def _cost(victims: Sequence[Candidate]) -> float:
    return sum(each.cost_accelerator_s for each in victims)
