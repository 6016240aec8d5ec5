"""Where gangs would go: each world size is placed as often as tensor degrees differ on the nodes, and priced. Pure.

Axes: A = place that was found, S = stem of a layout (``layouts.LayoutSpace``), R = rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import PlacementWish, RankGroup, WorkloadSpec
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import Expresses, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.placement.wishes import domain_of_rank_R, num_split_groups
from airflow_llmsched.planner.relax import Obstacles
from airflow_llmsched.ports import PlacementSolver


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

    def machine(self, ranks_per_node_C: IntArray) -> Machine:
        """Return the machine to reckon with: what it reaches is known from the calibration, or the packaged one."""
        return calibrated_machine(self.shape, ranks_per_node_C, self.calibration)

    @property
    def usable_slots(self) -> list[int]:
        """Slots of each node that a gang could have."""
        return [node.usable_slots for node in self.tree.nodes if node.id not in self.excluded]

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


def calibrated_machine(shape: NodeShape, ranks_per_node_C: IntArray, calibration: Calibration | None) -> Machine:
    """Return the machine of a shape with what ``calibration`` says that it reaches; None: the packaged one."""
    machine = Machine(shape=shape, ranks_per_node_C=ranks_per_node_C)
    if calibration is None:
        return machine
    accelerator = shape.accelerator
    return replace(machine, rates=calibration.rates_of(accelerator), error_ratio=calibration.error_ratio(accelerator))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Places of gangs, and of each stem its place, or -1. ``usd_per_hour_A`` is what the nodes cost."""

    placed: Sequence[Placed]
    place_S: IntArray
    ranks_per_node_A: IntArray
    usd_per_hour_A: FloatArray

    @property
    def num_domains_A(self) -> IntArray:
        """Domains of the innermost level that each place spans."""
        return np.array([each.num_domains for each in self.placed], dtype=np.int64)


def find_places(ask: Ask, stems: LayoutTable, obstacles: Obstacles) -> Places:
    """Place each world size and tensor degree: nothing else of a layout binds ranks to nodes.

    Degrees that fit as often into every node are placed together, by the largest: its groups hold those of the others.
    """
    world_S = stems.world_size_C
    pairs = factor(stems, ("tp_C",), beside=(world_S,))
    sizes = sorted(set(ask.usable_slots))
    alike: dict[tuple[int, ...], list[int]] = {}
    worlds, degrees = world_S[pairs.first_U].tolist(), pairs.table.tp_C.tolist()
    for number in np.lexsort([degrees, worlds]).tolist():
        capacities = (size // degrees[number] * degrees[number] for size in sizes)
        alike.setdefault((worlds[number], *capacities), []).append(number)
    placed: list[Placed] = []
    prices: list[float] = []
    ranks_per_node: list[int] = []
    place_U = np.full(len(worlds), -1, dtype=np.int64)
    for numbers in alike.values():
        result = _place(ask, world_size=worlds[numbers[-1]], tp=degrees[numbers[-1]])
        if isinstance(result, NotPlaced):
            obstacles.note_refusal(result)
            continue
        place_U[numbers] = len(placed)
        ranks_on = Counter(slot.node for slot in result.placement.slots)
        placed.append(result)
        prices.append(_usd_per_hour(ask, ranks_on))
        ranks_per_node.append(min(ranks_on.values()))
    return Places(
        placed=placed,
        place_S=pairs.spread(place_U),
        ranks_per_node_A=np.array(ranks_per_node, dtype=np.int64),
        usd_per_hour_A=np.array(prices, dtype=np.float64),
    )


def num_broken_S(ask: Ask, stems: LayoutTable, places: Places, *, required: bool) -> IntArray:
    """Count the groups' wishes that the place of each stem breaks; none where there is no place."""
    wishes = ask.group_wishes(required=required)
    if not wishes:
        return np.zeros(len(stems), dtype=np.int64)
    degrees = ("dp_C", "tp_C", "pp_C", "cp_C", "ep_C", "etp_C")
    found = factor(stems, degrees, beside=(places.place_S,))
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


def _place(ask: Ask, *, world_size: int, tp: int) -> Placed | NotPlaced:
    return ask.solver.place(
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


def _usd_per_hour(ask: Ask, ranks_on: Counter[NodeId]) -> float:
    """Return list price: of the whole node where the gang has it to itself, else of the slots that it takes."""
    per_slot = ask.shape.usd_per_hour / ask.shape.num_accelerators
    taken = (node for node in ask.tree.nodes if node.id in ranks_on)
    slots = sum(node.num_slots if node.num_free_slots == node.num_slots else ranks_on[node.id] for node in taken)
    return per_slot * slots
