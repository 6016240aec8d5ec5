"""Best-fit gang placement. Pure: no clock, no I/O, no engine names.

The gang goes to the smallest domain that holds it, split over as few domains of the preferred level as possible, whole
nodes first and the rest where it leaves the least over. Where groups reach across nodes, each domain that they must not
leave takes whole groups, and a preferred level inside it is filled domain by domain. Where it has to leave domains, it
goes to as few as otherwise, but rather to those whose links others keep idle. Ties break on paths and ids, never on the
order of the input. Axes: N = node, L = level.
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.kept import with_groups_kept
from airflow_llmsched.planner.placement.rank_map import Share, map_ranks, num_domains
from airflow_llmsched.planner.placement.refusal import refuse

BUSY_RATIO = 0.05
"""A link that others fill for less of the time is as good as idle: what leaving it alone would bring is lost in what
best fit does not know. An assumption."""


class BestFitSolver:
    """The default :class:`~airflow_llmsched.ports.PlacementSolver`. It refuses only what no placement satisfies."""

    def place(self, problem: PlacementProblem, *, time_limit_s: float, seed: int) -> Placed | NotPlaced:
        """Place at once and always alike; only where groups have required levels may it take the time and the seed.

        Raises:
            ValueError: the required or preferred level does not exist in the tree.
        """
        table = NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
        required = None if problem.required_level is None else table.depth(problem.required_level)
        preferred = None if problem.preferred_level is None else table.depth(problem.preferred_level)
        world_size = problem.layout.world_size
        busy_LN = _busy_LN(problem.tree, table)
        best: tuple[tuple[int, int, int], list[Share]] | None = None
        for domain in table.domains(required, table.capacity_N > 0):
            room = table.room(domain, depth=required)
            if room < world_size:
                continue
            shares = _fill(table, domain, world_size, busy_LN, required=required, preferred=preferred)
            cost = (num_domains(table, shares, preferred), room, int(domain[0]))
            if best is None or cost < best[0]:
                best = (cost, shares)
        if best is None:
            return refuse(problem, table)
        placed = Placed(placement=map_ranks(table, best[1]), num_domains=num_domains(table, best[1], None))
        return with_groups_kept(problem, placed, time_limit_s=time_limit_s, seed=seed)


def _busy_LN(tree: TopologyTree, table: NodeTable) -> FloatArray | None:
    """Return how busy others keep the links above each node; None where no one is known to use any."""
    busy = {node.id: node.busy_ratios for node in tree.nodes if node.busy_ratios}
    if not busy:
        return None
    none = (0.0,) * len(table.levels)
    return np.array([busy.get(node, none) for node in table.ids], dtype=np.float64).T


def _fill(
    table: NodeTable,
    domain: IntArray,
    num_ranks: int,
    busy_LN: FloatArray | None,
    *,
    required: int | None,
    preferred: int | None,
) -> list[Share]:
    """Choose nodes in one domain that is large enough, level by level from the preferred (or next inner) one down."""
    first_depth = preferred if preferred is not None else (0 if required is None else required + 1)
    if required is None or required < table.group_depth:
        first_depth = min(first_depth, table.group_depth)  # else parts of groups would end up in different domains
    return sorted(_descend(table, domain, num_ranks, busy_LN, depth=first_depth))


def _descend(
    table: NodeTable, nodes: IntArray, num_ranks: int, busy_LN: FloatArray | None, *, depth: int
) -> list[Share]:
    if depth >= table.num_tree_levels:
        return _take_nodes(table, nodes, num_ranks)
    domain_N = table.domain_LN[depth, nodes]
    groups = [nodes[domain_N == domain] for domain in np.unique(domain_N)]
    rooms = [table.room(group, depth=depth) for group in groups]
    if busy_LN is not None:
        rooms = _idle_rooms(rooms, [float(busy_LN[depth, group[0]]) for group in groups], num_ranks)
    shares: list[Share] = []
    for index, taken in _best_fit(rooms, num_ranks):
        shares += _descend(table, groups[index], taken, busy_LN, depth=depth + 1)
    return shares


def _idle_rooms(rooms: list[int], busy: list[float], num_ranks: int) -> list[int]:
    """Return the rooms without those of busy links, the busiest first, as long as no more domains are needed then.

    A gang that one domain holds uses no domain's link.
    """
    if max(rooms) >= num_ranks:
        return rooms
    fewest = len(_best_fit(rooms, num_ranks))
    for index in sorted(range(len(rooms)), key=lambda each: (-busy[each], each)):
        if busy[index] < BUSY_RATIO:
            break
        idle = [*rooms[:index], 0, *rooms[index + 1 :]]
        if sum(idle) >= num_ranks and len(_best_fit(idle, num_ranks)) == fewest:
            rooms = idle
    return rooms


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
