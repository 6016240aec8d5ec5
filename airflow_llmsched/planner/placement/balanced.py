"""Balanced gang placement: equal shares on as few domains as can be, level by level. Pure.

Where each domain has as many ranks as any other, collectives over the gang have the same number of members in every
domain, no uplink carries more than another, and every node starts as many processes: what launchers and reductions in
steps by level want. Schedulers that offer it (Kueue's balanced placement of topology-aware scheduling, KEP-2724;
Slurm's ``--ntasks-per-node`` with ``--nodes``) raise the smallest share; so does this, after the number of domains.
Axes: D = domain of one level, N = node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.kept import with_groups_kept
from airflow_llmsched.planner.placement.rank_map import Share, map_ranks, num_domains
from airflow_llmsched.planner.placement.refusal import refuse

MAX_EXTRA_RATIO = 1.5
"""How many times the fewest domains that hold a gang it may span for shares to be equal."""


class BalancedSolver:
    """Splits a gang evenly over as few domains as needed. It refuses only what no placement satisfies.

    Inside the required level, shares are made equal on the preferred one, else on the outermost below; inside each of
    its domains on the next one, down to the nodes. Equal shares may take up to half as many domains again as the fewest
    that hold the gang; where even those have not the room, shares are as even as room allows on the fewest.
    """

    def place(self, problem: PlacementProblem, *, time_limit_s: float, seed: int) -> Placed | NotPlaced:
        """Place at once and always alike; only where groups have required levels may it take the time and the seed.

        Raises:
            ValueError: the required or preferred level does not exist in the tree.
        """
        table = NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
        required = None if problem.required_level is None else table.depth(problem.required_level)
        preferred = None if problem.preferred_level is None else table.depth(problem.preferred_level)
        first = preferred if preferred is not None else (0 if required is None else required + 1)
        if required is None or required < table.group_depth:
            first = min(first, table.group_depth)  # else parts of groups would end up in different domains
        best: tuple[tuple[int, int, int, int], list[Share]] | None = None
        for domain in table.domains(required, table.capacity_N > 0):
            room = table.room(domain, depth=required)
            if room < problem.layout.world_size:
                continue
            shares = sorted(_split(table, domain, problem.layout.world_size, depth=first))
            takes = [taken for _, taken in shares]
            spans = num_domains(table, shares, min(first, len(table.levels) - 1))
            cost = (spans, max(takes) - min(takes), room, int(domain[0]))
            if best is None or cost < best[0]:
                best = (cost, shares)
        if best is None:
            return refuse(problem, table)
        placed = Placed(placement=map_ranks(table, best[1]), num_domains=num_domains(table, best[1], None))
        return with_groups_kept(problem, placed, time_limit_s=time_limit_s, seed=seed)


def _split(table: NodeTable, nodes: IntArray, num_ranks: int, *, depth: int) -> list[Share]:
    """Share ranks out over the domains of one level, then inside each of them; the last level are the nodes."""
    if depth >= len(table.levels):
        return [(int(nodes[0]), num_ranks)]
    domain_N = table.domain_LN[depth, nodes]
    domains = [nodes[domain_N == domain] for domain in np.unique(domain_N)]
    unit = table.group_size if depth <= table.group_depth else 1
    rooms = [table.room(each, depth=depth) // unit for each in domains]
    shares: list[Share] = []
    for index, taken in even_shares(rooms, num_ranks // unit):
        shares += _split(table, domains[index], taken * unit, depth=depth + 1)
    return shares


def even_shares(rooms: Sequence[int], total: int) -> list[tuple[int, int]]:
    """Return bins and what each takes of ``total``: as evenly as can be on few bins, the smallest ones that do.

    Of bins with equal room the first ones are taken. ``rooms`` add up to ``total`` at least.
    """
    largest_first = sorted(range(len(rooms)), key=lambda index: (-rooms[index], index))
    fewest = int(np.searchsorted(np.cumsum([rooms[index] for index in largest_first]), total)) + 1
    for number in range(fewest, min(int(fewest * MAX_EXTRA_RATIO), len(rooms)) + 1):
        share = total // number
        if total % number == 0 and rooms[largest_first[number - 1]] >= share:
            fitting = sorted((i for i in largest_first if rooms[i] >= share), key=lambda i: (rooms[i], i))
            return [(index, share) for index in sorted(fitting[:number])]
    return _as_even_as_room_allows({index: rooms[index] for index in largest_first[:fewest]}, total)


def _as_even_as_room_allows(room_of: dict[int, int], total: int) -> list[tuple[int, int]]:
    """Fill the smallest bins first, each with its equal part of what is left, or as much as it holds."""
    shares: list[tuple[int, int]] = []
    remaining = total
    for position, index in enumerate(sorted(room_of, key=lambda each: (room_of[each], each))):
        part = remaining // (len(room_of) - position)
        shares.append((index, min(part, room_of[index])))
        remaining -= shares[-1][1]
    return sorted(share for share in shares if share[1])
