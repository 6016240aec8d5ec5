"""From a workload and what is free to the Pareto set of plans, and to the reasons for everything else. Pure.

Axes: C = candidate layout that fits and is worth comparing, K = cost. Every candidate ends in exactly one place: it is
a plan, or it is counted under one reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import Offload, ParallelLayout
from airflow_llmsched.domain.placement import NodeCosts, Placement
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.evaluate import evaluate, step_seconds, total_s, usable_bytes
from airflow_llmsched.planner.launch_settings import launch_settings
from airflow_llmsched.planner.layout_table import BoolArray, Expresses, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.layouts import LayoutSpace, legal_layouts
from airflow_llmsched.planner.links import AsMeasured, as_claimed
from airflow_llmsched.planner.node_costs import node_costs_of
from airflow_llmsched.planner.pareto import pareto_front, weighted_score
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.demands import shortage_outside
from airflow_llmsched.planner.perf.energy import step_energy_j, unknown_power
from airflow_llmsched.planner.perf.network_levels import of_shape
from airflow_llmsched.planner.phases import PhaseCosts, phase_costs
from airflow_llmsched.planner.placed_again import placed_again
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL
from airflow_llmsched.planner.places import Ask, Places, find_places, num_broken_S, with_helpers
from airflow_llmsched.planner.ranks import rank_counts, reserved_slots
from airflow_llmsched.planner.relax import Obstacles, relaxation
from airflow_llmsched.planner.sift import Contenders, Sift, simplest_first
from airflow_llmsched.planner.spans import group_spans
from airflow_llmsched.planner.wished_places import with_wishes_kept
from airflow_llmsched.ports import PlacementSolver

MAX_PLANS = 32
"""Plans returned at most; a Pareto set can be longer, and nobody reads further."""

MAX_PLACED_AGAIN = 4
"""Plans, the best ones, whose gangs are placed once more by their own layouts."""

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
NO_ROOM_OUTSIDE = "offloads more than the node's host memory or disks hold"
SHORT_OUTSIDE = "states more of host memory or disks than an accelerator's share of the node"
INEXPRESSIBLE = "fits, but the trainer cannot express it"
WISH_BROKEN = "a required placement wish of a group is broken"
DOMINATED = "another plan is at least as fast, as lean, as cheap and as compact"
BELOW_CUT = f"Pareto-optimal, but below the {MAX_PLANS} best by the objective"


IN_PLACE = (Offload.NONE,)
ELSEWHERE = tuple(each for each in Offload if each is not Offload.NONE)
"""What is tried where nothing fits into the accelerators' memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shortlist:
    """Contenders on one shape, each with its place and the number of preferred wishes that it breaks."""

    ask: Ask
    places: Places
    contenders: Contenders
    place_C: IntArray
    num_broken_C: IntArray

    @property
    def costs_CK(self) -> FloatArray:
        """Step seconds, bytes that a rank lacks to have all its memory free, dollars per step, domains, broken wishes.

        A preference is no cost of its own, but a plan that keeps it must survive one that is faster and breaks it.
        """
        step_s_C = self.contenders.step_s_C
        return np.column_stack([
            step_s_C,
            self.contenders.memory_bytes_C - usable_bytes(self.ask.shape.accelerator),
            self.places.usd_per_hour_A[self.place_C] * step_s_C / 3600,
            self.places.num_domains_A[self.place_C],
            self.num_broken_C,
        ])  # fmt: skip

    def energy_j(self, chosen: IntArray) -> FloatArray | None:
        """Return the joules of a mean step of the run under some candidates; None where they are not known."""
        if _has_phases(self.ask.workload):
            phases = self._phases(chosen)
            joules = [phase.energy_j_C for phase in phases if phase.energy_j_C is not None]
            weights = [phase.num_steps for phase in phases]
            return np.average(joules, axis=0, weights=weights) if joules else None
        table = self.contenders.table.take(chosen)
        machine = self.places.machine(self.place_C[chosen])
        return step_energy_j(step_seconds(self.ask.workload, table, machine), table, self.ask.shape)

    def mean_step_s(self, chosen: IntArray) -> FloatArray:
        """Return the seconds of a step of some candidates, over all steps of all batch phases."""
        phases = self._phases(chosen)
        return np.average([phase.step_s_C for phase in phases], axis=0, weights=[phase.num_steps for phase in phases])

    def _phases(self, chosen: IntArray) -> Sequence[PhaseCosts]:
        machine = self.places.machine(self.place_C[chosen])
        return phase_costs(self.ask.workload, self.contenders.table.take(chosen), machine)

    def plans(self, chosen: Sequence[int]) -> list[Plan]:
        """Write candidates out as plans."""
        place_C = self.place_C[chosen]
        machine = self.places.machine(place_C)
        evaluation = evaluate(self.ask.workload, self.contenders.table.take(np.array(chosen)), machine)
        layouts = [evaluation.table.at(number) for number in range(len(place_C))]
        alone = [machine.take(np.array([number])) for number in range(len(place_C))]
        return [
            Plan(
                layout=layouts[number],
                placement=self._placement(place, layouts[number]),
                prediction=evaluation.prediction(number, usd_per_hour=float(self.places.usd_per_hour_A[place])),
                node_shape=self.ask.shape.name,
                num_domains=self.places.placed[place].num_domains,
                spans=group_spans(layouts[number], alone[number]),
                launch_settings=launch_settings(layouts[number], alone[number]),
                accelerator_vendor=self.ask.shape.accelerator.vendor,
                levels=self.ask.tree.levels,
            )
            for number, place in enumerate(place_C.tolist())
        ]

    def _placement(self, place: int, layout: ParallelLayout) -> Placement:
        """Return a place with its helpers where this layout wants them, or else where they had room."""
        found = self.places.placed[place].placement
        return with_helpers(self.ask, replace(found, helpers=()), layout) or found


def search(
    workload: WorkloadSpec,
    tree: TopologyTree,
    shapes: Mapping[str, NodeShape],
    *,
    solver: PlacementSolver,
    excluded: frozenset[NodeId] = frozenset(),
    seed: int = 0,
    time_limit_s: float = 5.0,
    expresses: Expresses | None = None,
    calibration: Calibration | None = None,
    node_costs: Mapping[NodeId, NodeCosts] = MappingProxyType({}),
    as_measured: AsMeasured = as_claimed,
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
        time_limit_s: Passed to the solver for each of the best plans; what comes before, it places at once.
        expresses: Says which layouts the trainer can express (``planner.export.filter``); without it, all.
        calibration: What machines reach, by one's own measurements; None: what comes with the package.
        node_costs: What makes nodes worse than others as free, for solvers that go by the score of a placement. What
            the tree says of its nodes counts where this is silent.
        as_measured: Puts what was measured of links in place of what the tree claims.

    Raises:
        SpecError: a placement wish names a level that the topology does not have.
    """
    _check_levels(workload, tree)
    obstacles = Obstacles(workload=workload)
    names = sorted({node.shape for node in tree.nodes})
    costs = node_costs_of(workload, tree, node_costs)
    obstacles.unknown_shapes = tuple(name for name in names if name not in shapes)
    asks = [
        Ask(
            workload=workload, tree=as_measured(of_shape(tree, name, shapes[name]), shapes[name].name),
            shape=shapes[name],
            solver=solver, excluded=excluded, seed=seed, time_limit_s=time_limit_s,
            expresses=expresses, calibration=calibration, node_costs=costs,
        )
        for name in names
        if name in shapes
    ]  # fmt: skip
    shortlists = _shortlists(asks, obstacles)
    plans = _choose(workload, shortlists, obstacles)
    return PlanSearch(
        plans=tuple(plans), rejections=obstacles.rejections(), num_candidates=obstacles.num_candidates,
        relaxation=None if plans else relaxation(obstacles),
        notes=(*_energy_notes(workload, shortlists), *_link_notes(shortlists)),
    )  # fmt: skip


def _check_levels(workload: WorkloadSpec, tree: TopologyTree) -> None:
    known = (*tree.levels, NODE_LEVEL)
    for wish in workload.placement:
        if wish.level not in known:
            raise SpecError(
                path=f"placement.{wish.group}.{'required' if wish.required else 'preferred'}",
                value=wish.level,
                hint=f"the topology has no such level; it has {', '.join(known)}",
            )


def _shortlists(asks: Sequence[Ask], obstacles: Obstacles) -> list[_Shortlist]:
    counts = [_counts_to_try(ask, obstacles) for ask in asks]
    pairs = list(zip(asks, counts, strict=True))
    shortlists = [found for ask, tried in pairs if (found := _shortlist(ask, tried, IN_PLACE, obstacles))]
    if shortlists or obstacles.leanest_bytes is None or not _may_offload(obstacles.workload):
        return shortlists
    return [found for ask, tried in pairs if (found := _shortlist(ask, tried, ELSEWHERE, obstacles))]


def _may_offload(workload: WorkloadSpec) -> bool:
    """Whether it is wanted and possible: the shipped trainer keeps all in place; jobs without a model tell nothing."""
    wish = workload.parallelism
    return wish.may_offload and wish.offload is None and workload.model is not None and bool(workload.launcher.command)


def _counts_to_try(ask: Ask, obstacles: Obstacles) -> list[int]:
    num_free = sum(ask.usable_slots) - reserved_slots(ask.workload)
    obstacles.num_free_slots = max(obstacles.num_free_slots, num_free)
    counts = rank_counts(ask.workload, max_ranks=num_free)
    wish = ask.workload.capacity
    num_asked = max(0, min(num_free, wish.max_ranks or num_free) - wish.min_ranks + 1)
    tried = counts[-MAX_RANK_COUNTS:] if ask.workload.model else counts[-1:]
    obstacles.add_candidates(num_asked - len(tried))
    obstacles.turn_down(NOT_DIVISIBLE, num_asked - len(counts))
    obstacles.turn_down(NOT_TRIED if ask.workload.model else FEWER_RANKS, len(counts) - len(tried))
    obstacles.note_counts(tried, slots_per_node=ask.slots_per_node, slots_per_domain=ask.slots_per_domain)
    return tried


def _shortlist(ask: Ask, counts: Sequence[int], offloads: Sequence[Offload], obstacles: Obstacles) -> _Shortlist | None:
    """Let candidates fall out in the order of what is cheapest to check; None when none is left.

    They are sifted on a flat machine. What is left of them is priced once more, each where its ranks would really be.
    """
    space = _legal_space(ask, counts, offloads, obstacles)
    if space is None:
        return None
    places = with_wishes_kept(ask, space.stems, find_places(ask, space.stems, obstacles), obstacles)
    num_layouts_S = space.num_S * len(space.policies)
    has_place_S = places.place_S >= 0
    obstacles.turn_down(NOT_PLACED, int(num_layouts_S[~has_place_S].sum()))
    is_kept_S = has_place_S & (num_broken_S(ask, space.stems, places, required=True) == 0)
    num_broken = int(num_layouts_S[has_place_S & ~is_kept_S].sum())
    obstacles.turn_down(WISH_BROKEN, num_broken)
    obstacles.breaks_wishes |= num_broken > 0
    if not is_kept_S.any():
        return None
    broken_S = num_broken_S(ask, space.stems, places, required=False)
    sift = Sift(
        workload=ask.workload,
        space=space,
        machine=places.flat_machine(places.place_S),
        group_S=_alike(places, broken_S),
        expresses=ask.expresses,
    )
    contenders = sift.run(np.flatnonzero(is_kept_S))
    obstacles.turn_down(NO_MEMORY, sift.num_too_large)
    obstacles.turn_down(NO_ROOM_OUTSIDE, sift.num_without_room)
    obstacles.turn_down(INEXPRESSIBLE, sift.num_inexpressible)
    obstacles.num_inexpressible += sift.num_inexpressible
    obstacles.turn_down(DOMINATED, sift.num_beaten)
    if sift.leanest_bytes is not None:
        obstacles.note_memory(sift.leanest_bytes, ask.shape.accelerator)
    if contenders is None:
        return None
    stem_C = space.stem_of(contenders.row_C)
    place_C = places.place_S[stem_C]
    placed_s_C = total_s(step_seconds(ask.workload, contenders.table, places.machine(place_C)), contenders.table)
    return _Shortlist(
        ask=ask,
        places=places,
        contenders=replace(contenders, step_s_C=placed_s_C),
        place_C=place_C,
        num_broken_C=broken_S[stem_C],
    )


def _legal_space(
    ask: Ask, counts: Sequence[int], offloads: Sequence[Offload], obstacles: Obstacles
) -> LayoutSpace | None:
    space = legal_layouts(
        ask.workload, world_sizes=counts, slots_per_node=ask.slots_per_node, slots_per_domain=ask.slots_per_domain,
        offloads=offloads,
    )  # fmt: skip
    obstacles.add_candidates(space.num_candidates)
    for reason, number in space.rejections.items():
        obstacles.turn_down(reason, number)
    if ask.workload.model and ask.workload.precision.compute not in ask.shape.accelerator.peak_flop_per_s:
        obstacles.turn_down(NO_FORMAT, len(space))
        obstacles.note_format(ask.shape.accelerator)
        return None
    shortage = shortage_outside(ask.workload, ask.shape)
    if shortage is not None:
        obstacles.turn_down(SHORT_OUTSIDE, len(space))
        obstacles.note_shortage(shortage, ask.shape)
        return None
    return space if len(space) else None


def _alike(places: Places, broken_S: IntArray) -> IntArray:
    """Number stems whose candidates differ in nothing that counts but time and memory."""
    place_S = places.place_S
    traits = np.column_stack([places.usd_per_hour_A[place_S], places.num_domains_A[place_S], broken_S])
    return np.asarray(np.unique(traits, axis=0, return_inverse=True)[1]).ravel()


def _choose(workload: WorkloadSpec, shortlists: Sequence[_Shortlist], obstacles: Obstacles) -> list[Plan]:
    if not shortlists:
        return []
    costs_CK = np.concatenate([each.costs_CK for each in shortlists])
    sizes = [len(each.contenders) for each in shortlists]
    owner_C = np.repeat(np.arange(len(shortlists)), sizes)
    index_C = np.concatenate([np.arange(size) for size in sizes])
    table = LayoutTable.concatenate(each.contenders.table for each in shortlists)
    front = pareto_front(costs_CK, tie_breaks=simplest_first(table))
    obstacles.turn_down(DOMINATED, len(costs_CK) - len(front))
    front_costs_CK: FloatArray = costs_CK[front]
    if _has_phases(workload):
        front_costs_CK = _of_all_phases(shortlists, owner_C[front], index_C[front], front_costs_CK)
    energy_C: FloatArray = front_costs_CK[:, 0] * table.world_size_C[front]
    if workload.objective.energy:
        energy_C = _energy_C(shortlists, owner_C[front], index_C[front], otherwise_C=energy_C)
    score = _score(workload, front_costs_CK, table.world_size_C[front], energy_C)
    breaks_C = _breaks_budget_C(workload, front_costs_CK)
    ranked = front[np.lexsort((np.arange(len(front)), score, breaks_C))]
    obstacles.turn_down(BELOW_CUT, max(0, len(ranked) - MAX_PLANS))
    best = ranked[:MAX_PLANS]
    plans: dict[int, Plan] = {}
    for owner, shortlist in enumerate(shortlists):
        own = best[owner_C[best] == owner]
        if len(own):
            plans |= zip(own.tolist(), shortlist.plans(index_C[own].tolist()), strict=True)
    asks = [shortlists[owner].ask for owner in owner_C[best].tolist()]
    ranked_plans = [plans[each] for each in best.tolist()]
    first = [placed_again(*pair) for pair in zip(asks[:MAX_PLACED_AGAIN], ranked_plans, strict=False)]
    return [*first, *ranked_plans[MAX_PLACED_AGAIN:]]


def _breaks_budget_C(workload: WorkloadSpec, costs_CK: FloatArray) -> BoolArray:
    """Return with which candidates the whole run is late or too dear, even if nothing goes wrong.

    They come last whatever the objective says: a limit is no cost. They do not fall out, because a prediction has a
    band, and because where nothing keeps the budget, people want to see what comes nearest.
    """
    budget, (step_s_C, _, usd_C, *_) = workload.budget, costs_CK.T
    breaks_C = np.zeros(len(costs_CK), dtype=np.bool_)
    if budget.deadline_s is not None:
        breaks_C |= step_s_C * workload.num_steps > budget.deadline_s
    if budget.max_usd is not None:
        breaks_C |= usd_C * workload.num_steps > budget.max_usd
    return breaks_C


def _has_phases(workload: WorkloadSpec) -> bool:
    return workload.model is not None and len(workload.batch) > 1


def _of_all_phases(
    shortlists: Sequence[_Shortlist], owner_C: IntArray, index_C: IntArray, costs_CK: FloatArray
) -> FloatArray:
    """Return costs with the seconds and dollars of a mean step of the run, instead of one of its heaviest phase."""
    mean_s_C = np.zeros(len(owner_C))
    for owner, shortlist in enumerate(shortlists):
        is_own_C = owner_C == owner
        if is_own_C.any():
            mean_s_C[is_own_C] = shortlist.mean_step_s(index_C[is_own_C])
    step_s_C, free_C, usd_C, *rest = costs_CK.T
    return np.column_stack([mean_s_C, free_C, usd_C * mean_s_C / step_s_C, *rest])


def _energy_C(
    shortlists: Sequence[_Shortlist], owner_C: IntArray, index_C: IntArray, *, otherwise_C: FloatArray
) -> FloatArray:
    """Return joules per step, or what ``otherwise_C`` says where those of some machine are not known.

    For all candidates alike: joules and accelerator-seconds do not compare.
    """
    energy_C = np.zeros(len(owner_C))
    for owner, shortlist in enumerate(shortlists):
        is_own_C = owner_C == owner
        if not is_own_C.any():
            continue
        own_C = shortlist.energy_j(index_C[is_own_C])
        if own_C is None:
            return otherwise_C
        energy_C[is_own_C] = own_C
    return energy_C


def _energy_notes(workload: WorkloadSpec, shortlists: Sequence[_Shortlist]) -> tuple[str, ...]:
    reasons = sorted({unknown_power(each.ask.shape) for each in shortlists} - {""})
    if not workload.objective.energy or not reasons:
        return ()
    return (f"Energy is weighed as accelerator-seconds, not as joules: {' and '.join(reasons)}.",)


def _link_notes(shortlists: Sequence[_Shortlist]) -> Iterator[str]:
    """Say of which nodes it is not known that fast links join them."""
    for each in shortlists:
        shape, level = each.ask.shape, each.ask.tree.scale_up_level
        if shape.island_joins_nodes and level is None:
            yield (
                f"{shape.levels[0].fabric.name} joins {shape.scale_up_size} accelerators over several nodes of "
                f"{shape.name}, but the topology does not say which: it is reckoned to end with the node."
            )


def _score(workload: WorkloadSpec, costs_CK: FloatArray, world_size_C: IntArray, energy_C: FloatArray) -> FloatArray:
    """Weigh costs relative to the best of each: what each weight of the objective stands for at this level.

    Throughput and latency are both seconds per step, as the global batch is fixed. Energy is joules, or
    accelerator-seconds where power is not known (the search's notes say so); reliability ranks and domains that can
    fail, fairness the slots taken from others.
    """
    step_s_C, _, usd_C, num_domains_C, broken_C = costs_CK.T
    weights = workload.objective
    score_C = weighted_score(
        [
            (weights.throughput + weights.latency, step_s_C),
            (weights.cost, usd_C),
            (weights.energy, energy_C),
            (weights.reliability, world_size_C * num_domains_C),
            (weights.fairness, world_size_C.astype(np.float64)),
        ]
    )
    return np.asarray(score_C * (1 + PREFERENCE_WEIGHT * broken_C))
