"""From a workload and what is free to the Pareto set of plans, and to the reasons for everything else. Pure.

Axis: C = candidate layout. Every candidate ends in exactly one place: it is a plan, or it is counted under one reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import PlacementWish, RankGroup, WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.evaluate import Evaluation, evaluate
from airflow_llmsched.planner.layout_table import FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.layouts import legal_layouts
from airflow_llmsched.planner.pareto import pareto_front, weighted_score
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL
from airflow_llmsched.planner.placement.wishes import num_split_groups
from airflow_llmsched.planner.ranks import rank_counts, reserved_slots
from airflow_llmsched.planner.relax import HEADROOM_RATIO, Obstacles, relaxation
from airflow_llmsched.ports import PlacementSolver

MAX_PLANS = 32
"""Plans returned at most; a Pareto set can be longer, and nobody reads further."""

MAX_RANK_COUNTS = 64
"""Rank counts tried at most, largest first: in a large fleet most counts differ too little to matter."""

PREFERENCE_WEIGHT = 0.1
"""A plan that breaks a preferred placement wish ranks as if it were this much worse."""

NOT_DIVISIBLE = "rank count over which the batch or the model does not divide"
NOT_TRIED = f"rank count not tried: only the {MAX_RANK_COUNTS} largest are"
FEWER_RANKS = "fewer ranks than a job without a model can have: nothing says what each rank computes"
NO_FORMAT = "the accelerator has no such number format"
NOT_PLACED = "the gang does not fit under the placement rules"
NO_MEMORY = "needs more memory than the accelerator has"
WISH_BROKEN = "a required placement wish of a group is broken"
DOMINATED = "another plan is at least as fast, as lean and as cheap"
BELOW_CUT = f"Pareto-optimal, but below the {MAX_PLANS} best by the objective"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ask:
    """The whole question, tree narrowed to one shape."""

    workload: WorkloadSpec
    tree: TopologyTree
    shape: NodeShape
    solver: PlacementSolver
    excluded: frozenset[NodeId]
    seed: int
    time_limit_s: float

    def gang_level(self, *, required: bool) -> str | None:
        levels = [
            wish.level for wish in self.workload.placement if wish.group is RankGroup.GANG and wish.required is required
        ]
        return levels[0] if levels else None

    def group_wishes(self, *, required: bool) -> list[PlacementWish]:
        return [
            wish for wish in self.workload.placement if wish.group is not RankGroup.GANG and wish.required is required
        ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shortlist:
    """Candidates that can run. ``place_C`` indexes ``placed``; ``usd_per_hour_C`` is what their nodes cost."""

    ask: _Ask
    evaluation: Evaluation
    placed: tuple[Placed, ...]
    place_C: IntArray
    usd_per_hour_C: FloatArray
    num_broken_C: IntArray

    @property
    def costs_CK(self) -> FloatArray:
        """Step seconds, bytes per rank, dollars per step."""
        step_s_C = self.evaluation.step_s_C
        return np.stack(
            [step_s_C, self.evaluation.memory_bytes_C.astype(np.float64), self.usd_per_hour_C * step_s_C / 3600], axis=1
        )

    def plan(self, index: int) -> Plan:
        placed = self.placed[int(self.place_C[index])]
        return Plan(
            layout=self.evaluation.table.at(index),
            placement=placed.placement,
            prediction=self.evaluation.prediction(index, usd_per_hour=float(self.usd_per_hour_C[index])),
            node_shape=self.ask.shape.name,
            num_domains=placed.num_domains,
        )


def search(
    workload: WorkloadSpec,
    tree: TopologyTree,
    shapes: Mapping[str, NodeShape],
    *,
    solver: PlacementSolver,
    excluded: frozenset[NodeId] = frozenset(),
    seed: int = 0,
    time_limit_s: float = 5.0,
) -> PlanSearch:
    """Return the plans worth having, best by the objective first.

    Tries every usable rank count from the capacity wish's least to its most (a job without a model: the most), every
    legal layout of each, and places it on nodes of one shape. The global batch is the workload's own on any of them.

    Args:
        workload: What to train.
        tree: Nodes and what is free on them.
        shapes: Node shapes by name; nodes of other shapes are not used.
        solver: Places gangs.
        excluded: Nodes that must not be used.
        seed: Passed to the solver.
        time_limit_s: Passed to the solver, for each placement.

    Raises:
        SpecError: a placement wish names a level that the topology does not have.
    """
    _check_levels(workload, tree)
    obstacles = Obstacles(workload=workload)
    shortlists: list[_Shortlist] = []
    for name in sorted({node.shape for node in tree.nodes}):
        nodes = tuple(node for node in tree.nodes if node.shape == name)
        if name not in shapes:
            obstacles.unknown_shapes += (name,)
            continue
        ask = _Ask(
            workload=workload,
            tree=TopologyTree(levels=tree.levels, nodes=nodes),
            shape=shapes[name],
            solver=solver,
            excluded=excluded,
            seed=seed,
            time_limit_s=time_limit_s,
        )
        shortlist = _shortlist(ask, obstacles)
        if shortlist is not None:
            shortlists.append(shortlist)
    plans = _choose(workload, shortlists, obstacles)
    return PlanSearch(
        plans=tuple(plans),
        rejections=obstacles.rejections(),
        num_candidates=obstacles.num_candidates,
        relaxation=None if plans else relaxation(obstacles),
    )


def _check_levels(workload: WorkloadSpec, tree: TopologyTree) -> None:
    known = (*tree.levels, NODE_LEVEL)
    for index, wish in enumerate(workload.placement):
        if wish.level not in known:
            raise SpecError(
                path=f"placement[{index}].level",
                value=wish.level,
                hint=f"the topology has no such level; it has {', '.join(known)}",
            )


def _shortlist(ask: _Ask, obstacles: Obstacles) -> _Shortlist | None:
    """Let candidates fall out in the order of what is cheapest to check; None when none is left."""
    table = _legal_table(ask, obstacles)
    if not len(table):
        return None
    placed, place_C, ranks_per_node_C = _place_all(ask, table, obstacles)
    obstacles.turn_down(NOT_PLACED, int(np.count_nonzero(place_C < 0)))
    has_place_C = place_C >= 0
    if not has_place_C.any():
        return None
    place_C = place_C[has_place_C]
    machine = Machine(shape=ask.shape, ranks_per_node_C=ranks_per_node_C[has_place_C])
    evaluation = evaluate(ask.workload, table.take(has_place_C), machine)
    fits_C = evaluation.memory_bytes_C <= ask.shape.accelerator.memory_bytes * (1 - HEADROOM_RATIO)
    obstacles.turn_down(NO_MEMORY, int(np.count_nonzero(~fits_C)))
    obstacles.note_memory(int(evaluation.memory_bytes_C.min()), ask.shape.accelerator)
    evaluation, place_C = evaluation.take(fits_C), place_C[fits_C]
    keeps_C = _num_broken_C(ask, evaluation.table, placed, place_C, required=True) == 0
    obstacles.turn_down(WISH_BROKEN, int(np.count_nonzero(~keeps_C)))
    evaluation, place_C = evaluation.take(keeps_C), place_C[keeps_C]
    if not len(evaluation.table):
        return None
    usd_per_hour = np.array([_usd_per_hour(ask, each) for each in placed], dtype=np.float64)
    return _Shortlist(
        ask=ask,
        evaluation=evaluation,
        placed=placed,
        place_C=place_C,
        usd_per_hour_C=usd_per_hour[place_C],
        num_broken_C=_num_broken_C(ask, evaluation.table, placed, place_C, required=False),
    )


def _legal_table(ask: _Ask, obstacles: Obstacles) -> LayoutTable:
    usable = [node.usable_slots for node in ask.tree.nodes if node.id not in ask.excluded]
    num_free = sum(usable) - reserved_slots(ask.workload)
    obstacles.num_free_slots = max(obstacles.num_free_slots, num_free)
    counts = rank_counts(ask.workload, max_ranks=num_free)
    wish = ask.workload.capacity
    num_asked = max(0, min(num_free, wish.max_ranks or num_free) - wish.min_ranks + 1)
    obstacles.add_candidates(num_asked)
    obstacles.turn_down(NOT_DIVISIBLE, num_asked - len(counts))
    tried = counts[-MAX_RANK_COUNTS:] if ask.workload.model else counts[-1:]
    obstacles.turn_down(NOT_TRIED if ask.workload.model else FEWER_RANKS, len(counts) - len(tried))
    obstacles.num_candidates -= len(tried)
    spaces = [legal_layouts(ask.workload, world_size=count, slots_per_node=max(usable, default=1)) for count in tried]
    for space in spaces:
        obstacles.add_candidates(space.num_candidates)
        for reason, number in space.rejections.items():
            obstacles.turn_down(reason, number)
    obstacles.note_counts(tried, slots_per_node=max(usable, default=1))
    table = LayoutTable.concatenate(space.table for space in spaces)
    obstacles.num_legal += len(table)
    if ask.workload.model and ask.workload.precision.compute not in ask.shape.accelerator.peak_flop_per_s:
        obstacles.turn_down(NO_FORMAT, len(table))
        obstacles.note_format(ask.shape.accelerator)
        return LayoutTable.of(())
    return table


def _place_all(ask: _Ask, table: LayoutTable, obstacles: Obstacles) -> tuple[tuple[Placed, ...], IntArray, IntArray]:
    """Place each pair of world size and tensor degree once: nothing else of a layout binds ranks to nodes."""
    pairs = np.stack([table.world_size_C, table.tp_C], axis=1)
    unique, pair_C = np.unique(pairs, axis=0, return_inverse=True)
    placed: list[Placed] = []
    place_of_pair = np.full(len(unique), -1, dtype=np.int64)
    ranks_per_node = np.ones(len(unique), dtype=np.int64)
    for number, (world_size, tp) in enumerate(unique.tolist()):
        result = ask.solver.place(
            PlacementProblem(
                layout=ParallelLayout(dp=world_size // tp, tp=tp),
                tree=ask.tree,
                required_level=ask.gang_level(required=True),
                preferred_level=ask.gang_level(required=False),
                excluded=ask.excluded,
            ),
            time_limit_s=ask.time_limit_s,
            seed=ask.seed,
        )
        if isinstance(result, NotPlaced):
            obstacles.note_refusal(result)
            continue
        place_of_pair[number] = len(placed)
        placed.append(result)
        _, ranks_on_node = np.unique([slot.node for slot in result.placement.slots], return_counts=True)
        ranks_per_node[number] = ranks_on_node.min()
    return tuple(placed), place_of_pair[pair_C.ravel()], ranks_per_node[pair_C.ravel()]


def _num_broken_C(
    ask: _Ask, table: LayoutTable, placed: tuple[Placed, ...], place_C: IntArray, *, required: bool
) -> IntArray:
    """Count, for each candidate, the groups' wishes that its placement breaks."""
    broken_C = np.zeros(len(table), dtype=np.int64)
    wishes = ask.group_wishes(required=required)
    if not wishes:
        return broken_C
    known: dict[tuple[int, ...], int] = {}
    degrees_C = np.stack([place_C, table.dp_C, table.tp_C, table.pp_C, table.cp_C, table.ep_C], axis=1)
    for index, degrees in enumerate(map(tuple, degrees_C.tolist())):
        if degrees not in known:
            layout, placement = table.at(index), placed[degrees[0]].placement
            known[degrees] = sum(
                num_split_groups(layout, placement, ask.tree, group=wish.group, level=wish.level) > 0 for wish in wishes
            )
        broken_C[index] = known[degrees]
    return broken_C


def _usd_per_hour(ask: _Ask, placed: Placed) -> float:
    """Return list price: of the whole node where the gang has it to itself, else of the slots that it takes."""
    nodes = {node.id: node for node in ask.tree.nodes}
    per_slot = ask.shape.usd_per_hour / ask.shape.num_accelerators
    slots = 0
    for name in placed.placement.nodes:
        node = nodes[name]
        is_whole = node.num_free_slots == node.num_slots
        slots += node.num_slots if is_whole else len(placed.placement.on(name))
    return per_slot * slots


def _choose(workload: WorkloadSpec, shortlists: list[_Shortlist], obstacles: Obstacles) -> list[Plan]:
    if not shortlists:
        return []
    costs_CK = np.concatenate([each.costs_CK for each in shortlists])
    owner_C = np.repeat(np.arange(len(shortlists)), [len(each.place_C) for each in shortlists])
    index_C = np.concatenate([np.arange(len(each.place_C)) for each in shortlists])
    broken_C = np.concatenate([each.num_broken_C for each in shortlists])
    table = LayoutTable.concatenate(each.evaluation.table for each in shortlists)
    simplest_first = [
        table.world_size_C, table.pp_C, table.cp_C, table.tp_C, table.ep_C, table.recompute_C, table.zero_C,
        -table.micro_batch_C,
    ]  # fmt: skip
    # A preference is no cost of its own, but a plan that keeps it must survive one that is faster and breaks it.
    front = pareto_front(np.column_stack([costs_CK, broken_C]), tie_breaks=simplest_first)
    obstacles.turn_down(DOMINATED, len(costs_CK) - len(front))
    domains = np.array([
        shortlists[owner].placed[int(shortlists[owner].place_C[index])].num_domains
        for owner, index in zip(owner_C[front], index_C[front], strict=True)
    ])  # fmt: skip
    score = _score(workload, costs_CK[front], table.world_size_C[front], domains, broken_C[front])
    ranked = front[np.lexsort((np.arange(len(front)), score))]
    obstacles.turn_down(BELOW_CUT, max(0, len(ranked) - MAX_PLANS))
    return [shortlists[int(owner_C[c])].plan(int(index_C[c])) for c in ranked[:MAX_PLANS]]


def _score(
    workload: WorkloadSpec, costs_CK: FloatArray, world_size_C: IntArray, num_domains_C: IntArray, broken_C: IntArray
) -> FloatArray:
    """Weigh costs relative to the best of each: what each weight of the objective stands for at this level.

    Throughput and latency are both seconds per step, as the global batch is fixed. Energy is accelerator-seconds,
    reliability ranks and domains that can fail, fairness the slots taken from others.
    """
    step_s_C, _, usd_C = costs_CK.T
    weights = workload.objective
    score_C = weighted_score(
        [
            (weights.throughput + weights.latency, step_s_C),
            (weights.cost, usd_C),
            (weights.energy, step_s_C * world_size_C),
            (weights.reliability, (world_size_C * num_domains_C).astype(np.float64)),
            (weights.fairness, world_size_C.astype(np.float64)),
        ]
    )
    return np.asarray(score_C * (1 + PREFERENCE_WEIGHT * broken_C))
