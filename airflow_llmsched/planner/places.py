"""Where gangs would go: each world size is placed as often as tensor degrees differ on the domains, and priced. Pure.

Axes: A = place that was found, S = stem of a layout (``layouts.LayoutSpace``), R = rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NodeCosts, NotPlaced, Placed, Placement, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import Expresses, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.machine import Machine, power_of_two_within
from airflow_llmsched.planner.perf.placed_machine import NODE, Ground, PlacedMachine, Terrain
from airflow_llmsched.planner.placement.helpers import place_helpers
from airflow_llmsched.planner.placement.wishes import domain_of_rank_R, num_split_groups
from airflow_llmsched.planner.relax import Obstacles
from airflow_llmsched.ports import PlacementSolver

DEGREES = ("dp_C", "tp_C", "pp_C", "cp_C", "ep_C", "etp_C")
"""Columns of a table of layouts that say which ranks form groups."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ask:
    """The whole question, tree narrowed to one shape."""

    workload: WorkloadSpec
    tree: TopologyTree
    shape: NodeShape
    solver: PlacementSolver
    excluded: frozenset[NodeId]
    seed: int
    time_limit_s: float
    expresses: Expresses | None = None
    calibration: Calibration | None = None
    node_costs: Mapping[NodeId, NodeCosts] = field(default_factory=dict)

    @property
    def usable_slots(self) -> list[int]:
        """Slots of each node that a gang could have."""
        return [node.usable_slots for node in self.tree.nodes if node.id not in self.excluded]

    @property
    def joined_slots(self) -> list[int]:
        """Slots that a gang could have of each domain of the fastest links: of each node where the tree names none."""
        level = self.tree.scale_up_level
        if level is None:
            return self.usable_slots
        depth = self.tree.levels.index(level) + 1
        slots: Counter[tuple[str, ...]] = Counter()
        for node in self.tree.nodes:
            if node.id not in self.excluded:
                slots[node.path[:depth]] += node.usable_slots
        return list(slots.values())

    @property
    def slots_per_node(self) -> int:
        """Slots of the node that has most."""
        return max(self.usable_slots, default=1)

    @property
    def slots_per_domain(self) -> int:
        """Slots of the domain of the fastest links that has most; no more than the shape's links can join."""
        return max(self.slots_per_node, min(max(self.joined_slots, default=1), self.shape.scale_up_size))

    def gang_level(self, *, required: bool) -> str | None:
        """Return the level that the whole gang must, or should, stay inside."""
        levels = [
            wish.level for wish in self.workload.placement if wish.group is RankGroup.GANG and wish.required is required
        ]
        return levels[0] if levels else None

    def group_wishes(self, *, required: bool) -> list[PlacementWish]:
        """Return wishes for groups within the gang."""
        return [
            wish for wish in self.workload.placement if wish.group is not RankGroup.GANG and wish.required is required
        ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Places of gangs, and of each stem its place, or -1. ``usd_per_hour_A`` is what the nodes cost."""

    ask: Ask
    terrain: Terrain
    placed: Sequence[Placed]
    grounds: Sequence[Ground]
    place_S: IntArray
    usd_per_hour_A: FloatArray

    @property
    def num_domains_A(self) -> IntArray:
        """Domains of the innermost level that each place spans."""
        return np.array([each.num_domains for each in self.placed], dtype=np.int64)

    def machine(self, place_C: IntArray) -> PlacedMachine:
        """Return the machine of candidates on these places, with what the ask's calibration says that it reaches."""
        machine = PlacedMachine.of(self.terrain, self.grounds, place_C)
        return replace(machine, calibration=self.ask.calibration)

    def flat_machine(self, place_C: IntArray) -> Machine:
        """Return what stands for :meth:`machine` where many are sifted: nodes in rows, as fast links usually join them.

        Groups are mostly powers of two, and would straddle domains of 72 otherwise.
        """
        on_node_A = np.array([each.levels[NODE].fewest for each in self.grounds], dtype=np.int64)
        usual = [each.scale_up.usual for each in self.grounds]
        joined_A = np.array([power_of_two_within(number) for number in usual], dtype=np.int64)
        joins_nodes = self.terrain.scale_up_level is not None
        return Machine(
            shape=self.terrain.shape,
            ranks_per_node_C=on_node_A[place_C],
            joined_ranks_C=joined_A[place_C] if joins_nodes else on_node_A[place_C],
            calibration=self.ask.calibration,
            switches_reduce=self.terrain.switches_reduce,
        )


def find_places(ask: Ask, stems: LayoutTable, obstacles: Obstacles) -> Places:
    """Place each world size and degree whose groups must not be torn: nothing else of a layout binds ranks to nodes.

    Degrees that fit as often into every domain are placed together, by one whose groups hold those of the others.
    """
    pairs = factor(stems, ("tp_C", "etp_C"), beside=(stems.world_size_C,))
    worlds = stems.world_size_C[pairs.first_U].tolist()
    degrees = np.lcm(pairs.table.tp_C, pairs.table.etp_C).tolist()
    terrain = Terrain(ask.tree, ask.shape)
    placed: list[Placed] = []
    prices: list[float] = []
    grounds: list[Ground] = []
    place_U = np.full(len(worlds), -1, dtype=np.int64)
    for numbers in _alike(ask, worlds, degrees):
        result = _place(ask, world_size=worlds[numbers[0]], tp=degrees[numbers[0]])
        if isinstance(result, NotPlaced):
            obstacles.note_refusal(result)
            continue
        place_U[numbers] = len(placed)
        placed.append(result)
        prices.append(usd_per_hour(ask, num_held(result.placement)))
        grounds.append(terrain.ground(result.placement))
    return Places(
        ask=ask,
        terrain=terrain,
        placed=placed,
        grounds=grounds,
        place_S=pairs.spread(place_U),
        usd_per_hour_A=np.array(prices, dtype=np.float64),
    )


def _alike(ask: Ask, worlds: Sequence[int], degrees: Sequence[int]) -> Iterator[list[int]]:
    """Yield numbers of pairs that one place serves, by world size and then degree; the widest degree of each first."""
    sizes = sorted(set(ask.joined_slots))
    together: dict[tuple[int, ...], list[list[int]]] = {}
    for number in np.lexsort([[-degree for degree in degrees], worlds]).tolist():
        world, degree = worlds[number], degrees[number]
        same = together.setdefault((world, *(size // degree * degree for size in sizes)), [])
        served = next((numbers for numbers in same if degrees[numbers[0]] % degree == 0), None)
        if served is None:
            same.append([number])
        else:
            served.append(number)
    every = [numbers for same in together.values() for numbers in same]
    yield from sorted(every, key=lambda numbers: (worlds[numbers[0]], degrees[numbers[0]]))


def num_broken_S(ask: Ask, stems: LayoutTable, places: Places, *, required: bool) -> IntArray:
    """Count the groups' wishes that the place of each stem breaks; none where there is no place."""
    wishes = ask.group_wishes(required=required)
    if not wishes:
        return np.zeros(len(stems), dtype=np.int64)
    found = factor(stems, DEGREES, beside=(places.place_S,))
    broken_U = np.zeros(len(found.first_U), dtype=np.int64)
    domains = {
        (number, wish.level): domain_of_rank_R(each.placement, ask.tree, level=wish.level)
        for number, each in enumerate(places.placed)
        for wish in wishes
    }
    for number, stem in enumerate(found.first_U.tolist()):
        place, layout = int(places.place_S[stem]), stems.at(stem)
        if place >= 0:
            broken_U[number] = sum(
                num_split_groups(layout, domains[place, wish.level], group=wish.group) > 0 for wish in wishes
            )
    return found.spread(broken_U)


def with_helpers(ask: Ask, placement: Placement, layout: ParallelLayout) -> Placement | None:
    """Return a placement with the workload's other roles; None where they do not find room."""
    return place_helpers(
        ask.workload.roles,
        placement,
        layout=layout,
        tree=ask.tree,
        required_level=ask.gang_level(required=True),
        excluded=ask.excluded,
        max_processes_per_node=ask.shape.host.num_cpu_threads or None,
    )


def _place(ask: Ask, *, world_size: int, tp: int) -> Placed | NotPlaced:
    layout = ParallelLayout(dp=world_size // tp, tp=tp)
    result = ask.solver.place(
        PlacementProblem(
            layout=layout,
            tree=ask.tree,
            required_level=ask.gang_level(required=True),
            preferred_level=ask.gang_level(required=False),
            excluded=ask.excluded,
        ),
        time_limit_s=0.0,  # there are many: what is best of them is placed again, with time for it
        seed=ask.seed,
    )
    if isinstance(result, NotPlaced):
        return result
    placement = with_helpers(ask, result.placement, layout)
    if placement is None:
        return NotPlaced(summary=f"{world_size} ranks leave no node the room that one process of another role needs")
    return replace(result, placement=placement)


def num_held(placement: Placement) -> Counter[NodeId]:
    """Count the accelerators that a gang holds, by node, in one pass: a gang may be on thousands of nodes."""
    held = Counter(slot.node for slot in placement.slots)
    for helper in placement.helpers:
        held[helper.node] += len(helper.slots)
    return held


def usd_per_hour(ask: Ask, held_on: Mapping[NodeId, int]) -> float:
    """Return the price: of the whole node where the gang has it to itself, else of the slots that it takes.

    A node's own, where its owner states one; else the list price of its shape.
    """
    per_slot = ask.shape.usd_per_hour / ask.shape.num_accelerators
    listed, stated = 0, 0.0
    for node in ask.tree.nodes:
        if node.id not in held_on:
            continue
        slots = node.num_slots if node.num_free_slots == node.num_slots else held_on[node.id]
        if node.terms.usd_per_hour is None:
            listed += slots
        else:
            stated += node.terms.usd_per_hour * slots / node.num_slots
    return per_slot * listed + stated
