"""Best-fit gang placement. Pure: no clock, no I/O, no engine names.

The gang goes to the smallest domain that holds it, split over as few domains of the preferred level as possible, whole
nodes first and the rest where it leaves the least over. Ties break on paths and ids, never on the order of the input.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import NotPlaced, Placed, Placement, PlacementProblem, RankSlot
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.placement.feasible import NodeTable, largest_gang, refusal_reasons

Share = tuple[int, int]
"""Position of a node in the table, and the number of ranks it takes."""


class BestFitSolver:
    """The default :class:`~airflow_llmsched.ports.PlacementSolver`. It refuses only what no placement satisfies."""

    def place(
        self,
        problem: PlacementProblem,
        *,
        time_limit_s: float,  # noqa: ARG002 - the port's signature
        seed: int,  # noqa: ARG002 - the port's signature
    ) -> Placed | NotPlaced:
        """Place at once and always alike: neither ``time_limit_s`` nor ``seed`` is needed.

        The n-th rank on a node gets its n-th free slot.

        Raises:
            ValueError: the required or preferred level does not exist in the tree.
        """
        table = NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
        required = None if problem.required_level is None else table.depth(problem.required_level)
        preferred = None if problem.preferred_level is None else table.depth(problem.preferred_level)
        world_size = problem.layout.world_size
        best: tuple[tuple[int, int, int], list[Share]] | None = None
        for domain in table.domains(required, table.capacity_N > 0):
            room = int(table.capacity_N[domain].sum())
            if room < world_size:
                continue
            shares = _fill(table, domain, world_size, required=required, preferred=preferred)
            cost = (_num_domains(table, shares, preferred), room, int(domain[0]))
            if best is None or cost < best[0]:
                best = (cost, shares)
        if best is None:
            return _refuse(problem, table)
        return Placed(placement=_placement(table, best[1]), num_domains=_num_domains(table, best[1], None))


def _fill(
    table: NodeTable, domain: IntArray, num_ranks: int, *, required: int | None, preferred: int | None
) -> list[Share]:
    """Choose nodes in one domain that is large enough, level by level from the preferred (or next inner) one down."""
    first_depth = preferred if preferred is not None else (0 if required is None else required + 1)
    return sorted(_descend(table, domain, num_ranks, depth=first_depth))


def _descend(table: NodeTable, nodes: IntArray, num_ranks: int, *, depth: int) -> list[Share]:
    if depth >= table.num_tree_levels:
        return _take_nodes(table, nodes, num_ranks)
    domain_N = table.domain_LN[depth, nodes]
    groups = [nodes[domain_N == domain] for domain in np.unique(domain_N)]
    rooms = [int(table.capacity_N[group].sum()) for group in groups]
    shares: list[Share] = []
    for index, taken in _best_fit(rooms, num_ranks):
        shares += _descend(table, groups[index], taken, depth=depth + 1)
    return shares


def _take_nodes(table: NodeTable, nodes: IntArray, num_ranks: int) -> list[Share]:
    """Fill largest nodes first, unoccupied before others; the rest goes to the smallest node that holds it."""
    order = sorted(nodes.tolist(), key=lambda n: (-int(table.capacity_N[n]), not table.is_whole_N[n], n))
    rooms = [int(table.capacity_N[n]) for n in order]
    shares: list[Share] = []
    remaining = num_ranks
    for position, (node, room) in enumerate(zip(order, rooms, strict=True)):
        if room >= remaining:
            rest = order[position:]
            fits = [n for n in rest if int(table.capacity_N[n]) >= remaining]
            last = min(fits, key=lambda n: (int(table.capacity_N[n]), bool(table.is_whole_N[n]), n))
            return [*shares, (last, remaining)]
        shares.append((node, room))
        remaining -= room
    return shares


def _best_fit(rooms: list[int], num_ranks: int) -> list[tuple[int, int]]:
    """Split over the fewest bins: largest first, the rest into the smallest that holds it. Earlier bins win ties."""
    chosen: list[tuple[int, int]] = []
    left = sorted(range(len(rooms)), key=lambda index: (-rooms[index], index))
    remaining = num_ranks
    while remaining:
        fits = [index for index in left if rooms[index] >= remaining]
        index = min(fits, key=lambda each: (rooms[each], each)) if fits else left[0]
        taken = min(remaining, rooms[index])
        chosen.append((index, taken))
        left.remove(index)
        remaining -= taken
    return chosen


def _num_domains(table: NodeTable, shares: list[Share], depth: int | None) -> int:
    """Domains of a level that the gang spans; for None of the tree's innermost one. Without levels, there is one."""
    if depth is None and not table.num_tree_levels:
        return 1
    level = table.num_tree_levels - 1 if depth is None else depth
    return len({int(table.domain_LN[level, node]) for node, _ in shares})


def _placement(table: NodeTable, shares: list[Share]) -> Placement:
    slots: list[RankSlot] = []
    for node, num_ranks in shares:
        slots += _rank_slots(table.ids[node], table.slots[node][:num_ranks], len(slots))
    return Placement(slots=tuple(slots))


@lru_cache(maxsize=1 << 14)
def _rank_slots(node: NodeId, slots: tuple[int, ...], first_rank: int) -> tuple[RankSlot, ...]:
    """Return the places of ranks on one node. Gangs of a large fleet begin alike, and a search places many."""
    return tuple(
        RankSlot(rank=first_rank + local, node=node, slot=slot, local_rank=local) for local, slot in enumerate(slots)
    )


def _refuse(problem: PlacementProblem, table: NodeTable) -> NotPlaced:
    world_size, level = problem.layout.world_size, problem.required_level
    fit = largest_gang(table, level)
    where = f"in one {level}" if level else "in the fleet"
    return NotPlaced(
        summary=f"cannot place a gang of {world_size} ranks: {fit} fit {where}",
        reasons=refusal_reasons(problem),
        relaxation=_relaxation(problem, table, fit),
    )


def _relaxation(problem: PlacementProblem, table: NodeTable, fit: int) -> str | None:
    """Return the smallest change that would fit: a wider level, else the excluded nodes, else fewer ranks."""
    world_size, level = problem.layout.world_size, problem.required_level
    if level is not None:
        for wider in reversed(table.levels[: table.depth(level)]):
            if largest_gang(table, wider) >= world_size:
                return f"allow level {wider!r} instead of {level!r}"
        if largest_gang(table, None) >= world_size:
            return f"do not require level {level!r}"
    admitted = NodeTable.of(problem.tree, group_size=problem.layout.tp)
    if problem.excluded and largest_gang(admitted, level) >= world_size:
        return "admit the excluded nodes"
    return f"ask for at most {fit} ranks" if fit else None
