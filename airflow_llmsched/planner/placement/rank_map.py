"""Maps ranks to slots, once a solver has said how many ranks each node takes. Pure.

Nodes come in the order of their ranks; the ranks of a node are consecutive, so that tensor-parallel ranks (numbered
fastest) are neighbours, then context-parallel ones, replicas, and pipeline stages. Axes: N = node of a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.planner.placement.feasible import NodeTable

Share = tuple[int, int]
"""Position of a node in the table, and the number of ranks it takes."""


def map_ranks(table: NodeTable, shares: Sequence[Share]) -> Placement:
    """Return the placement of a gang whose nodes, in the order of their ranks, take ``shares``.

    A node that has more free slots than it needs gives those that most nodes of the gang have, so that equal local
    ranks are on equal slots, and so on equal rails of the network, wherever that can be. Where its wiring is known,
    they are all of one NUMA node, or at least of one NVLink island, if one has so many, and ranks on one NUMA node
    follow one another. Where NVLink joins nothing, NUMA nodes alone decide.
    """
    is_choice = any(taken < len(table.slots[node]) for node, taken in shares)
    common = Counter(slot for node, _ in shares for slot in table.slots[node]) if is_choice else Counter[int]()
    kinds = {id(each): each for each in table.wirings if each is not None}
    near = {number: _neighbourhood(each) for number, each in kinds.items()}
    slots: list[RankSlot] = []
    for node, taken in shares:
        nearness = near.get(id(table.wirings[node]), {}) if near else {}
        chosen = _chosen(table.slots[node], taken, common, nearness)
        slots += _rank_slots(table.ids[node], chosen, len(slots))
    return Placement(slots=tuple(slots))


def _chosen(
    slots: tuple[int, ...], taken: int, common: Mapping[int, int], nearness: Mapping[int, _Place]
) -> tuple[int, ...]:
    near = tuple(sorted(slots, key=lambda slot: (*nearness.get(slot, _UNKNOWN), slot))) if nearness else slots
    if taken == len(slots):
        return near
    wanted = sorted(_tightest(near, taken, common, nearness), key=lambda slot: (-common[slot], slot))[:taken]
    return tuple(slot for slot in near if slot in wanted)


def _tightest(
    slots: tuple[int, ...], taken: int, common: Mapping[int, int], nearness: Mapping[int, _Place]
) -> tuple[int, ...]:
    """Return the slots of the smallest neighbourhood that has enough; of equal ones of that which peers have, too."""
    for hoods in ((0, 1), (0,), (1,)):
        together: dict[tuple[int, ...], list[int]] = {}
        for slot in slots:
            place = nearness.get(slot, _UNKNOWN)
            if hoods != (0,) or place[0] != _ALONE:
                together.setdefault(tuple(place[each] for each in hoods), []).append(slot)
        enough = [each for each in together.values() if len(each) >= taken]
        if enough:
            size = min(map(len, enough))
            fitting = [each for each in enough if len(each) == size]
            return tuple(min(fitting, key=lambda each: (-sum(common[slot] for slot in each), each)))
    return slots


_Place = tuple[int, int]
"""NVLink island and NUMA node of an accelerator."""

_ALONE = -1
"""Stands for the island of an accelerator that NVLink joins to no other."""

_UNKNOWN: _Place = (_ALONE, -1)


def _neighbourhood(wiring: NodeTopology) -> dict[int, _Place]:
    numa_of = {gpu.index: -1 if gpu.numa_index is None else gpu.numa_index for gpu in wiring.gpus}
    islands = [island for island in wiring.nvlink_islands() if len(island) > 1]
    islands.sort(key=lambda island: (min(numa_of[gpu] for gpu in island), island))
    island_of = {gpu: number for number, island in enumerate(islands) for gpu in island}
    return {gpu: (island_of.get(gpu, _ALONE), numa) for gpu, numa in numa_of.items()}


def num_domains(table: NodeTable, shares: Sequence[Share], depth: int | None) -> int:
    """Domains of a level that the gang spans; for None of the tree's innermost one. Without levels, there is one."""
    if depth is None and not table.num_tree_levels:
        return 1
    level = table.num_tree_levels - 1 if depth is None else depth
    return len({int(table.domain_LN[level, node]) for node, _ in shares})


@lru_cache(maxsize=1 << 14)
def _rank_slots(node: NodeId, slots: tuple[int, ...], first_rank: int) -> tuple[RankSlot, ...]:
    """Return the places of ranks on one node. Gangs of a large fleet begin alike, and a search places many."""
    return tuple(
        RankSlot(rank=first_rank + local, node=node, slot=slot, local_rank=local) for local, slot in enumerate(slots)
    )
