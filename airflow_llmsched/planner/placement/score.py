"""What a placement costs, in seconds of a step: its own, and what else it costs, counted in such seconds. Pure.

The step is predicted (``step_cost``); all else is a sum over nodes, and over domains that the gang touches, so that
brute force, a linear solver and a local search value the very same number. Smaller is better.

========== ============================================================================================================
step       seconds of a step at this placement
fragments  of each touched domain of each level, the share of its free slots that is left over. It counts by what the
           domain was worth as it was: a rack or node fully if nothing ran there and little otherwise, what is around
           them by how much of it lies in whole racks, and all by their size up to that of the gang
risk       seconds lost for each second of the gang to failures of its nodes
price      what is paid, as a multiple of what the cheapest slots would cost
data       seconds until a mean rank has its data, spread over the steps of the run
contention what others on the links of its nodes add to the part of a step that goes over the network
preference a tenth of a step for each preferred level that groups leave, or for twice as many domains as needed;
           twice and three times that for domains of the levels around it
========== ============================================================================================================

Axes: N = node and L = level, as in ``feasible.NodeTable``; D = domain of a level; P = node of the gang in the order of
its ranks; R = rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import RankGroup
from airflow_llmsched.domain.placement import NodeCosts, Placement, PlacementProblem
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.perf.network_levels import joined_depth
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.step_cost import Depths, StepCost
from airflow_llmsched.units import GB, HOUR_S

FRAGMENTS_RATIO = 0.02
"""What leaving nothing but leftovers is worth when nobody asks for fairness, as a share of a step. An assumption."""

BROKEN_RATIO = 0.25
"""What the free slots of a domain in use are worth, beside those of one in which nothing runs. An assumption: found
with the mixes of the placement bench."""

SHARED_RATIO = 0.05
"""What it costs to go to a rack or node in use, where breaking a whole one costs 1: whoever is there shares its links,
and keeps it from being whole when the gang leaves. An assumption, found as above: a gang of several domains rather
takes whole ones, and has its rest in one that is in use."""

RESERVE_DOMAINS = 1.4
"""How many preferred domains beyond the fewest a gang rather spans than break one of the reserve: of the domains in
which nothing runs, those that lie where most of them do. The largest gang that is still to come has to go there. An
assumption, found with the mixes of the placement bench: less keeps less whole, more slows gangs."""

MAX_RESERVE_DOMAINS = 0.9
"""What that is at most where one domain holds the gang. Less than 1: such a gang is not spread for it."""

RECOVERY_S = 600.0
"""Seconds that a failure takes: what is computed again and the start of the next attempt. An assumption."""

RELIABILITY_FACTOR = 9.0
"""A plan for nothing but reliability counts losses ten times."""

PRICE_RATIO = 0.01
"""What twice the price is worth when nobody asks for low cost, as a share of a step: it decides between equals."""

PREFERENCE_RATIO = 0.1
"""What a preferred level is worth, as a share of a step; as in the search for plans."""

NETWORK_RATIO = 0.2
"""Share of a step that goes over the network and nothing hides, for what others on its links add. An assumption."""

STAGING_BYTES_PER_S = 1.0 * GB
"""What one node reads from storage where its shape does not say. An assumption."""

UNTOLD_NUM_STEPS = 1000
"""Steps that the time of staging is spread over where the run's are not known. An assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The cost of one placement by term, all in seconds of a step."""

    step_s: float
    fragments_s: float
    risk_s: float
    price_s: float
    data_s: float
    contention_s: float
    preference_s: float

    @property
    def total_s(self) -> float:
        """What solvers make small."""
        return (
            self.step_s
            + self.fragments_s
            + self.risk_s
            + self.price_s
            + self.data_s
            + self.contention_s
            + self.preference_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """How many seconds of a step one unit of each other cost is worth, as shares of the best step."""

    fragments_ratio: float
    risk_ratio: float
    price_ratio: float

    @classmethod
    def of(cls, weights: ObjectiveWeights) -> Exchange:
        """Read the objective: a weight counts as its share of all weights."""
        total = sum(getattr(weights, field.name) for field in fields(weights))
        return cls(
            fragments_ratio=FRAGMENTS_RATIO + weights.fairness / total,
            risk_ratio=1 + RELIABILITY_FACTOR * weights.reliability / total,
            price_ratio=PRICE_RATIO + weights.cost / total,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """A linear cost: ``touched_s[depth][D]`` once for each touched domain, ``rank_s_N`` for each rank, and a constant.

    The domains of the last depth are the nodes.
    """

    touched_s: tuple[FloatArray, ...]
    rank_s_N: FloatArray
    constant_s: float = 0.0

    def total_s(self, domain_LN: IntArray, nodes_P: IntArray, ranks_P: IntArray) -> float:
        """Add up for a gang with ``ranks_P`` on nodes ``nodes_P``."""
        total_s = self.constant_s + float(self.rank_s_N[nodes_P] @ ranks_P)
        for depth, touched_s_D in enumerate(self.touched_s):
            is_touched_D = np.zeros(len(touched_s_D), dtype=np.bool_)
            is_touched_D[domain_LN[depth, nodes_P]] = True
            total_s += float(touched_s_D @ is_touched_D)
        return total_s

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            touched_s=tuple(one + two for one, two in zip(self.touched_s, other.touched_s, strict=True)),
            rank_s_N=self.rank_s_N + other.rank_s_N,
            constant_s=self.constant_s + other.constant_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostColumns:
    """What each node costs, by position; see :class:`~airflow_llmsched.domain.placement.NodeCosts`."""

    usd_per_hour_N: FloatArray
    failures_per_hour_N: FloatArray
    missing_data_bytes_N: FloatArray
    busy_network_N: FloatArray

    @classmethod
    def of(cls, ids: Sequence[NodeId], node_costs: Mapping[NodeId, NodeCosts]) -> CostColumns:
        """Lay costs out in the order of ``ids``."""
        nothing = NodeCosts()
        told = [node_costs.get(node, nothing) for node in ids] if node_costs else []
        columns_4N = np.zeros((4, len(ids)))
        if told:
            columns_4N[:] = np.array(
                [
                    (each.usd_per_hour, each.failures_per_hour, each.missing_data_bytes, each.busy_network_ratio)
                    for each in told
                ]
            ).T
        return cls(
            usd_per_hour_N=columns_4N[0],
            failures_per_hour_N=columns_4N[1],
            missing_data_bytes_N=columns_4N[2],
            busy_network_N=columns_4N[3],
        )


class Scorer:
    """Scores placements of one problem. Raises as :class:`StepCost`, and ``ValueError`` for an unknown level.

    Attributes:
        table: the problem's nodes; positions of nodes are those in it.
        step: seconds of a step by where groups are.
        sums: all that is linear.
    """

    def __init__(
        self, problem: PlacementProblem, table: NodeTable | None = None, costs: CostColumns | None = None
    ) -> None:
        """Lay the problem out, unless it is given with the ``table`` and ``costs`` of a fleet's index."""
        self._problem = problem
        self.table = table or NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
        self.joined_depth = joined_depth(problem.tree, self.table.levels, problem.shape)
        self.step = StepCost(problem, levels=self.table.levels, joined_depth=self.joined_depth)
        self.base_s = self.step.best_s
        self._wishes = [(wish, self.table.depth(wish.level)) for wish in problem.wishes]
        self._terms = self._linear_terms(costs or CostColumns.of(self.table.ids, problem.node_costs))
        self.sums = sum(self._terms.values(), start=self._nothing())

    def score(self, placement: Placement) -> Score:
        """Return the cost of a placement by term. Raises ``KeyError`` for a node that is not in the tree."""
        nodes_P, ranks_P = self.positions(placement)
        depths = self.depths(nodes_P, ranks_P)
        found = {name: sums.total_s(self.table.domain_LN, nodes_P, ranks_P) for name, sums in self._terms.items()}
        found["preference_s"] += self.wishes_s(depths)
        return Score(step_s=self.step.step_s(depths, fewest=self.fewest(nodes_P, ranks_P)), **found)

    def total_s(self, nodes_P: IntArray, ranks_P: IntArray) -> float:
        """Return the sum of a score's terms, in less time, of a gang on nodes by position and in the order of ranks."""
        depths = self.depths(nodes_P, ranks_P)
        sums_s = self.sums.total_s(self.table.domain_LN, nodes_P, ranks_P)
        return self.reach_s(depths, fewest=self.fewest(nodes_P, ranks_P)) + sums_s

    def reach_s(self, depths: Depths, *, fewest: int) -> float:
        """Return the part of a score that is no sum: the step, and preferred levels that groups leave."""
        return self.step.step_s(depths, fewest=fewest) + self.wishes_s(depths)

    def wishes_s(self, depths: Depths) -> float:
        """Return what preferred levels cost that groups leave."""
        return PREFERENCE_RATIO * self.base_s * self._num_left(depths, required=False)

    def keeps_required(self, depths: Depths) -> bool:
        """Whether all groups stay inside the levels that are required of them, tensor-parallel ones by fast links."""
        is_joined = self.step.depth_of(RankGroup.TP, depths) >= self.table.group_depth
        return is_joined and self._num_left(depths, required=True) == 0

    def depths(self, nodes_P: IntArray, ranks_P: IntArray) -> Depths:
        """Return the depths of ``step.groups``: of the innermost level whose domains hold each such group whole."""
        return self.step.depths(self.table.domain_LN[:, np.repeat(nodes_P, ranks_P)])

    def fewest(self, nodes_P: IntArray, ranks_P: IntArray) -> int:
        """Return the ranks in that domain of the fastest links that has fewest."""
        ranks_D = np.bincount(self.table.domain_LN[self.joined_depth, nodes_P], weights=ranks_P)
        return int(ranks_D[ranks_D > 0].min())

    def positions(self, placement: Placement) -> tuple[IntArray, IntArray]:
        """Return the nodes of a placement in the order of its ranks, and the ranks on each.

        Raises ``KeyError`` for a node that is not in the tree.
        """
        position = {node: number for number, node in enumerate(self.table.ids)}
        position_R = np.array([position[slot.node] for slot in placement.slots], dtype=np.int64)
        begins = np.append(0, np.flatnonzero(np.diff(position_R)) + 1)
        return position_R[begins], np.diff(np.append(begins, len(position_R)))

    def _num_left(self, depths: Depths, *, required: bool) -> int:
        return sum(
            self.step.depth_of(wish.group, depths) < depth for wish, depth in self._wishes if wish.required is required
        )

    def _linear_terms(self, costs: CostColumns) -> dict[str, Sums]:
        exchange, table = Exchange.of(self._problem.weights), self.table
        lost_s_N = exchange.risk_ratio * self.base_s * RECOVERY_S / HOUR_S * costs.failures_per_hour_N
        added_s_N = NETWORK_RATIO * self.base_s * costs.busy_network_N
        return {
            "fragments_s": self._fragments(exchange.fragments_ratio * self.base_s / len(table.levels)),
            "risk_s": self._of_nodes(lost_s_N),
            "price_s": self._price(exchange.price_ratio * self.base_s, costs.usd_per_hour_N),
            "data_s": self._of_ranks(self._staging_s(costs.missing_data_bytes_N)),
            "contention_s": self._of_ranks(added_s_N / self._problem.layout.world_size),
            "preference_s": self._preference(PREFERENCE_RATIO * self.base_s),
        }

    def _fragments(self, each_s: float) -> Sums:
        table, world_size = self.table, self._problem.layout.world_size
        touched: list[FloatArray] = []
        rank_s_N = np.zeros(self._num_nodes)
        for depth, domain_N in enumerate(table.domain_LN):
            free_D = np.bincount(domain_N, weights=table.free_N)
            left_s_D = each_s * self._kept_whole_D(depth) * np.minimum(free_D / world_size, 1)
            rank_s_N -= (left_s_D / np.maximum(free_D, 1))[domain_N]
            is_shared_D = (free_D < self._size_D(depth)) & (depth >= table.num_tree_levels - 1)
            touched.append(left_s_D + SHARED_RATIO * each_s * is_shared_D)
        if self._problem.preferred_level is not None:
            depth = table.depth(self._problem.preferred_level)
            touched[depth] += PREFERENCE_RATIO * self.base_s * self._reserve_D(depth)
        return Sums(touched_s=tuple(touched), rank_s_N=rank_s_N)

    def _kept_whole_D(self, depth: int) -> FloatArray:
        """Return how much each domain is worth keeping as it is, at most 1."""
        table, size_D = self.table, self._size_D(depth)
        free_D = np.bincount(table.domain_LN[depth], weights=table.free_N)
        if depth >= table.num_tree_levels - 1:
            return np.where(free_D == size_D, 1.0, BROKEN_RATIO * free_D / np.maximum(size_D, 1))
        inner_N, inner_size_D = table.domain_LN[depth + 1], self._size_D(depth + 1)
        is_whole_D = np.bincount(inner_N, weights=table.free_N) == inner_size_D
        whole_D = np.bincount(table.outer_LD[depth + 1], weights=is_whole_D * inner_size_D)
        return np.asarray(whole_D / max(float(size_D.max(initial=0)), 1.0))

    def _reserve_D(self, depth: int) -> FloatArray:
        """Return what it costs to break each domain of the reserve, where the fewest domains cost 1; of others, 0."""
        outer_D, size_D = self.table.outer_LD[depth], self._size_D(depth)
        free_D = np.bincount(self.table.domain_LN[depth], weights=self.table.free_N)
        whole_D = np.where(free_D == size_D, size_D, 0.0)
        largest = int(np.argmax(np.bincount(outer_D, weights=whole_D)))
        share_D = np.where(outer_D == largest, whole_D, 0.0) / max(float(size_D.max()), 1.0)
        return np.asarray(min(RESERVE_DOMAINS / self.fewest_domains(depth), MAX_RESERVE_DOMAINS) * share_D)

    def _size_D(self, depth: int) -> FloatArray:
        return np.bincount(self.table.domain_LN[depth], weights=self.table.num_slots_N).astype(np.float64)

    def _price(self, each_s: float, usd_per_hour_N: FloatArray) -> Sums:
        """Whole nodes cost their price however few of their slots are taken, others for each slot."""
        table, world_size = self.table, self._problem.layout.world_size
        per_slot_N = usd_per_hour_N / np.maximum(table.num_slots_N, 1)
        cheapest = float(np.min(per_slot_N[table.capacity_N > 0], initial=np.inf)) * world_size
        if not 0 < cheapest < np.inf:
            cheapest = max(float(per_slot_N.max(initial=0.0)), 1.0) * world_size
        touched_s_N = np.where(table.is_whole_N, usd_per_hour_N, 0.0) * each_s / cheapest
        rank_s_N = np.where(table.is_whole_N, 0.0, per_slot_N) * each_s / cheapest
        return self._of_nodes(touched_s_N) + self._of_ranks(rank_s_N)

    def _staging_s(self, missing_bytes_N: FloatArray) -> FloatArray:
        problem = self._problem
        stated = problem.shape.host.storage_bandwidth_bytes_per_s if problem.shape else 0.0
        num_steps = problem.workload.num_steps if problem.workload else UNTOLD_NUM_STEPS
        seconds_N = missing_bytes_N / (stated or STAGING_BYTES_PER_S)
        return seconds_N / max(num_steps, 1) / problem.layout.world_size

    def _preference(self, each_s: float) -> Sums:
        """Count domains of the preferred level and, the more the further out as links are fewer, of those around it."""
        level, nothing = self._problem.preferred_level, self._nothing()
        if level is None:
            return nothing
        depth = self.table.depth(level)
        touched, constant_s = list(nothing.touched_s), 0.0
        for at in range(depth + 1):
            level_s = each_s * (depth - at + 1)
            touched[at] = np.full(len(touched[at]), level_s / self.fewest_domains(at))
            constant_s -= level_s
        return Sums(touched_s=tuple(touched), rank_s_N=nothing.rank_s_N, constant_s=constant_s)

    def fewest_domains(self, depth: int) -> int:
        """Return how many domains of a level the gang needs at least, going by free slots alone."""
        room_D = np.sort(np.bincount(self.table.domain_LN[depth], weights=self.table.capacity_N))[::-1]
        return int(np.searchsorted(np.cumsum(room_D), self._problem.layout.world_size)) + 1

    @property
    def terms(self) -> Mapping[str, Sums]:
        """What ``sums`` adds up, by the names of the fields of a :class:`Score`."""
        return self._terms

    def _of_nodes(self, touched_s_N: FloatArray) -> Sums:
        nothing = self._nothing()
        touched_s_D = np.bincount(self.table.domain_LN[-1], weights=touched_s_N).astype(np.float64)
        return Sums(touched_s=(*nothing.touched_s[:-1], touched_s_D), rank_s_N=nothing.rank_s_N)

    def _of_ranks(self, rank_s_N: FloatArray) -> Sums:
        return Sums(touched_s=self._nothing().touched_s, rank_s_N=rank_s_N)

    def _nothing(self) -> Sums:
        sizes = (int(domain_N.max(initial=-1)) + 1 for domain_N in self.table.domain_LN)
        return Sums(touched_s=tuple(np.zeros(size) for size in sizes), rank_s_N=np.zeros(self._num_nodes))

    @property
    def _num_nodes(self) -> int:
        return len(self.table.ids)
