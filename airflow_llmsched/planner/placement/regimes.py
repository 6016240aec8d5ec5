"""Ways to keep groups together: how many ranks at a time domains take, and in which order they take them. Pure.

A domain that takes whole multiples of what a kind of groups has in a row holds each such group whole. So where groups
are follows from two things: the multiple of each level (which divides that of the next outer one), and the order. In
the usual order one pipeline stage comes after the other, and a domain has many replicas of one stage. In another one
the stages of a chunk of replicas come after one another, and a domain has whole pipelines of few replicas.
Axes: L = level, nodes last; R = rank; D = domain; P = node of the gang.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout, RankGroup
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.step_cost import NOWHERE, Depths, Groups, held_whole

MAX_CHUNKS = 8
"""Orders that are tried beside the usual one: of more divisors of the replicas, the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Ranks in the order in which nodes take them: ``chunk`` ranks of each stage of ``stage`` ranks, stage by stage.

    Where the chunk is the whole stage, that is the order in which ranks are numbered.
    """

    world_size: int
    stage: int
    chunk: int

    @property
    def is_usual(self) -> bool:
        """Whether nodes take ranks as they are numbered."""
        return self.chunk == self.stage

    def turn_R(self) -> IntArray:
        """Return when each rank has its turn."""
        rank_R = np.arange(self.world_size, dtype=np.int64)
        stage_R, within_R = np.divmod(rank_R, self.stage)
        chunk_R, rest_R = np.divmod(within_R, self.chunk)
        return (chunk_R * (self.world_size // self.stage) + stage_R) * self.chunk + rest_R

    def rank_P(self, turn_P: IntArray) -> IntArray:
        """Return the ranks whose turn it is."""
        chunks_P, rest_P = np.divmod(turn_P, self.chunk)
        chunk_P, stage_P = np.divmod(chunks_P, self.world_size // self.stage)
        return np.asarray(stage_P * self.stage + chunk_P * self.chunk + rest_P)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One way to keep groups together.

    Attributes:
        order: in which nodes take ranks.
        multiples: of ranks that domains take, by depth; those of nodes last.
        depths: of each kind of groups, where it is held whole at least.
        max_on_node: ranks that a node takes at most, so that they are numbered in a row; and then exactly, or none.
    """

    order: Order
    multiples: tuple[int, ...]
    depths: Depths
    max_on_node: int | None = None


def regimes(problem: PlacementProblem, table: NodeTable, groups: Sequence[Groups]) -> Iterator[Regime]:
    """Yield the ways that a fleet has room for and that keep what is required, each once, the loosest first.

    Where pipelines must stay together, smaller equal shares of nodes count as well, each in its loosest way.
    """
    largest, keeps_pipelines = int(table.capacity_N.max(initial=0)), _keeps_pipelines(problem)
    for order in orders(problem.layout):
        extents = extents_in(order, groups)
        wished = _required(problem, table, order)
        if wished is None:
            continue
        for number, on_node in enumerate(_node_shares(order, largest)):
            if number == 0 or keeps_pipelines:
                base = [math.lcm(each, on_node or 1) for each in wished]
                ways = _of_order(table, order, base, extents=extents, max_on_node=on_node)
                yield from islice(ways, 1) if number else ways


def loosest(problem: PlacementProblem, table: NodeTable) -> Regime | None:
    """Return what rules ask for in the usual order, and no more; None where that order cannot keep them."""
    usual = next(orders(problem.layout))
    wished = _required(problem, table, usual)
    return None if wished is None else Regime(order=usual, multiples=tuple(wished), depths=())


def loosest_ways(problem: PlacementProblem, table: NodeTable, *, largest: int) -> Iterator[Regime]:
    """Yield what rules ask for and no more, in each order that they leave open, for nodes of up to ``largest`` slots.

    One of :func:`regimes` has room if and only if one of these has.
    """
    for order in orders(problem.layout):
        wished = _required(problem, table, order)
        if wished is None or not (order.is_usual or _keeps_pipelines(problem)):
            continue
        for on_node in _node_shares(order, largest):
            multiples = tuple(math.lcm(each, on_node or 1) for each in wished)
            yield Regime(order=order, multiples=multiples, depths=(), max_on_node=on_node)


def orders(layout: ParallelLayout) -> Iterator[Order]:
    """Yield the usual order, then those with whole pipelines in a row, the shortest chunks first."""
    unit, stage = layout.tp * layout.cp, layout.tp * layout.cp * layout.dp
    yield Order(world_size=layout.world_size, stage=stage, chunk=stage)
    if layout.pp > 1:
        shorter = [each for each in range(1, layout.dp) if layout.dp % each == 0]
        for each in shorter[:MAX_CHUNKS]:
            yield Order(world_size=layout.world_size, stage=stage, chunk=unit * each)


def extents_in(order: Order, groups: Sequence[Groups]) -> tuple[int, ...]:
    """Return of each kind of groups the smallest multiple whose holders hold each group whole; at most all ranks."""
    turn_R = order.turn_R()
    num_stages = order.world_size // order.stage
    sizes = {stride * size for stride, size in groups} | {order.chunk, order.chunk * num_stages, order.world_size}
    possible = sorted(each for each in sizes if order.world_size % each == 0)
    return tuple(next(each for each in possible if held_whole(turn_R // each, group)) for group in groups)


def rooms(table: NodeTable, multiples: Sequence[int], *, max_on_node: int | None = None) -> list[IntArray]:
    """Return the ranks that each domain could take under multiples, by depth; nodes last."""
    return rooms_in(table.capacity_N, table.domain_LN, table.first_LD, multiples, max_on_node=max_on_node)


def rooms_in(
    free_N: IntArray,
    domain_LN: IntArray,
    first_LD: Sequence[IntArray],
    multiples: Sequence[int],
    *,
    max_on_node: int | None = None,
) -> list[IntArray]:
    """Return what domains could take of free slots, by depth, along the last axis: there may be others before it.

    Nodes are in path order; ``domain_LN`` counts their domains on and ``first_LD`` says where these begin.
    """
    capacity_N = free_N if max_on_node is None else np.minimum(free_N, max_on_node)
    inner_D, found = first_LD[-1], list[IntArray]()
    room_D = capacity_N // multiples[-1] * multiples[-1]
    for depth in reversed(range(len(multiples))):
        if len(inner_D) < room_D.shape[-1]:  # else each has one inner domain
            room_D = np.add.reduceat(room_D, inner_D, axis=-1)
        room_D = room_D // multiples[depth] * multiples[depth]
        found.insert(0, room_D)
        if depth:
            inner_D = domain_LN[depth, first_LD[depth - 1]] - domain_LN[depth, :1]
    return found


def _keeps_pipelines(problem: PlacementProblem) -> bool:
    return problem.layout.pp > 1 and any(wish.required and wish.group is RankGroup.PP for wish in problem.wishes)


def _node_shares(order: Order, largest: int) -> Iterator[int | None]:
    """Yield how many ranks each node takes where they would not all be in a row otherwise, the most first."""
    if order.is_usual:
        yield None
        return
    yield from (each for each in range(largest, 0, -1) if order.chunk % each == 0)


def _of_order(
    table: NodeTable, order: Order, base: Sequence[int], *, extents: Sequence[int], max_on_node: int | None
) -> Iterator[Regime]:
    num_levels, seen = len(table.levels), set[tuple[int, ...]]()
    distinct = sorted({*extents, order.world_size})
    for depths in product(range(NOWHERE, num_levels), repeat=len(distinct)):
        if any(inner < outer for inner, outer in pairwise(depths)):
            continue  # what has a larger extent in a domain has its parts there too
        multiples = tuple(
            math.lcm(base[depth], *(extent for extent, at in zip(distinct, depths, strict=True) if at >= depth))
            for depth in range(num_levels)
        )
        if multiples in seen or any(order.world_size % each for each in multiples):
            continue
        seen.add(multiples)
        if int(rooms(table, multiples, max_on_node=max_on_node)[0].sum()) >= order.world_size:
            held = tuple(_held_at(multiples, extent) for extent in extents)
            yield Regime(order=order, multiples=multiples, depths=held, max_on_node=max_on_node)


def _held_at(multiples: Sequence[int], extent: int) -> int:
    held = [depth for depth, multiple in enumerate(multiples) if multiple % extent == 0]
    return max(held, default=NOWHERE)


def _required(problem: PlacementProblem, table: NodeTable, order: Order) -> list[int] | None:
    """Return the multiples that rules ask for, by depth; None where this order cannot keep them."""
    layout, num_levels = problem.layout, len(table.levels)
    needs = [(table.group_depth, layout.tp)]
    if problem.required_level is not None:
        needs.append((table.depth(problem.required_level), layout.world_size))
    for wish in problem.wishes:
        groups = Groups.of(layout, wish.group)
        if wish.required and groups.size > 1:
            needs.append((table.depth(wish.level), extents_in(order, [groups])[0]))
    multiples = [math.lcm(*(each for at, each in needs if at >= depth), 1) for depth in range(num_levels)]
    return multiples if all(layout.world_size % each == 0 for each in multiples) else None
