"""What the ranks of a job send each other in a step, and over which links of a fabric, once they are seated.

Groups are numbered as Megatron-LM numbers them: tensor fastest, then context, data and pipeline; experts over the ranks
of a stage in the same order. Formulas are this module's own: it must not know the planner's.

Rings go through the nodes of a group in the order of its ranks, and enter and leave a node over the cards of the
group's own ranks there, all of them alike, as NCCL's channels do. Between single ranks, a sender whose job has the
receiver's slot on the sender's node goes there first (NCCL's PXN), and so stays on one rail.

Axes: R = rank, G = group, M = member of a group, F = flow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np

from tests.bench.placement_judge.fabric import Fabric
from tests.bench.placement_judge.fleet import FloatArray, IntArray, Seats


class Pattern(StrEnum):
    """Who sends whom."""

    RING = "ring"
    """Each member the next, the last the first."""
    ALL_TO_ALL = "all to all"
    """Each member each other."""
    NEIGHBOURS = "neighbours"
    """Each member the next and the one before, the ends one only."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """One kind of communication in a step. ``bytes_per_flow`` goes from each sender to each of its receivers."""

    name: str
    pattern: Pattern
    ranks_GM: IntArray
    bytes_per_flow: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """An exchange of one seated job: all its flows go at one pace, in proportion to their bytes.

    ``num_bytes`` is the largest flow's. ``ceiling_bytes_per_s`` is its pace where only the job's own cards and links
    within nodes bound it; ``link_K`` and ``weight_K`` are the shared links that it crosses.
    """

    num_bytes: float
    ceiling_bytes_per_s: float
    link_K: IntArray
    weight_K: FloatArray

    @property
    def alone_s(self) -> float:
        """Duration where nobody shares the job's links, and these are no bound either."""
        return self.num_bytes / self.ceiling_bytes_per_s


def groups_of(*, stride: int, size: int, world_size: int) -> IntArray:
    """Return the ranks of each group whose members are numbered ``stride`` apart."""
    blocks = np.arange(world_size, dtype=np.int64).reshape(world_size // (stride * size), size, stride)
    return blocks.transpose(0, 2, 1).reshape(-1, size)


def load_of(exchange: Exchange, seats: Seats, fabric: Fabric) -> Load | None:
    """Return what an exchange asks of the fabric; None where it sends nothing."""
    if exchange.ranks_GM.shape[1] < 2 or exchange.bytes_per_flow <= 0:
        return None
    inside = _bytes_inside(exchange)
    flows: Counter[tuple[int, int, int, int]] = Counter()
    for key, share in _flows(exchange, seats):
        flows[key] += share * exchange.bytes_per_flow
    inside_s = inside / fabric.scale_up_bytes_per_s
    if not flows:
        return Load(
            num_bytes=inside,
            ceiling_bytes_per_s=fabric.scale_up_bytes_per_s,
            link_K=np.zeros(0, dtype=np.int64),
            weight_K=np.zeros(0),
        )
    from_node_F, from_rail_F, to_node_F, to_rail_F = np.array(list(flows), dtype=np.int64).T
    bytes_F = np.array(list(flows.values()))
    num_bytes = float(bytes_F.max())
    out = np.bincount(from_node_F * fabric.num_rails + from_rail_F, weights=bytes_F).max()
    into = np.bincount(to_node_F * fabric.num_rails + to_rail_F, weights=bytes_F).max()
    cards_s = max(out, into) / fabric.card_bytes_per_s
    flow_E, link_E = fabric.crossings(from_node_F, from_rail_F, to_node_F, to_rail_F)
    links, position_E = np.unique(link_E, return_inverse=True)
    return Load(
        num_bytes=num_bytes,
        ceiling_bytes_per_s=num_bytes / max(cards_s, inside_s),
        link_K=links,
        weight_K=np.bincount(position_E, weights=bytes_F[flow_E] / num_bytes, minlength=len(links)),
    )


def _bytes_inside(exchange: Exchange) -> float:
    """What the busiest accelerator sends over the fastest links at most, as all but few hops of an exchange do."""
    members = exchange.ranks_GM.shape[1]
    fan_out = {Pattern.RING: 1, Pattern.ALL_TO_ALL: members - 1, Pattern.NEIGHBOURS: 2}[exchange.pattern]
    return fan_out * exchange.bytes_per_flow


def _flows(exchange: Exchange, seats: Seats) -> Iterator[tuple[tuple[int, int, int, int], float]]:
    """Yield (node, rail, node, rail) and how much of ``bytes_per_flow`` goes there, for flows between nodes."""
    node_GM = seats.node_R[exchange.ranks_GM]
    slot_GM = seats.slot_R[exchange.ranks_GM]
    apart_G = (node_GM != node_GM[:, :1]).any(axis=1)
    if exchange.pattern is Pattern.RING:
        for node_M, slot_M in zip(node_GM[apart_G].tolist(), slot_GM[apart_G].tolist(), strict=True):
            yield from _ring(node_M, slot_M)
        return
    slots_of: dict[int, set[int]] = {}
    for node, slot in zip(seats.node_R.tolist(), seats.slot_R.tolist(), strict=True):
        slots_of.setdefault(node, set()).add(slot)
    for node_M, slot_M in zip(node_GM[apart_G].tolist(), slot_GM[apart_G].tolist(), strict=True):
        for one, other in _pairs(exchange.pattern, len(node_M)):
            if node_M[one] != node_M[other]:
                to_rail = slot_M[other]
                from_rail = to_rail if to_rail in slots_of[node_M[one]] else slot_M[one]
                yield (node_M[one], from_rail, node_M[other], to_rail), 1.0


def _pairs(pattern: Pattern, members: int) -> Iterator[tuple[int, int]]:
    for one in range(members):
        for other in range(members):
            if one != other and (pattern is Pattern.ALL_TO_ALL or abs(one - other) == 1):
                yield one, other


def _ring(node_M: list[int], slot_M: list[int]) -> Iterator[tuple[tuple[int, int, int, int], float]]:
    slots: dict[int, list[int]] = {}
    for node, slot in zip(node_M, slot_M, strict=True):
        slots.setdefault(node, []).append(slot)
    nodes = list(slots)
    for one, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        for from_rail, to_rail, share in rail_pairs(tuple(sorted(slots[one])), tuple(sorted(slots[other]))):
            yield (one, from_rail, other, to_rail), share


@cache
def rail_pairs(out: tuple[int, ...], into: tuple[int, ...]) -> tuple[tuple[int, int, float], ...]:
    """Split a hop evenly over the cards of both ends, rails of one number together as far as they go."""
    pieces = math.lcm(len(out), len(into))
    left_out = dict.fromkeys(out, pieces // len(out))
    left_into = dict.fromkeys(into, pieces // len(into))
    pairs = []
    for from_rail, to_rail in [
        *((rail, rail) for rail in out if rail in left_into),
        *((a, b) for a in out for b in into),
    ]:
        count = min(left_out[from_rail], left_into[to_rail])
        if count:
            pairs.append((from_rail, to_rail, count / pieces))
            left_out[from_rail] -= count
            left_into[to_rail] -= count
    return tuple(pairs)
