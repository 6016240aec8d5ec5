from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import NodeCosts, Placement, RankSlot
from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.domain.workload import ParallelismWish
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.search import search
from airflow_llmsched.planner.side_by_side import PlannedGang, SideBySide, contention, plan_in_order, without
from tests.support.fleets import fleet, workload
from tests.support.models import LLAMA31_8B

SHAPES = node_shapes()
H100 = SHAPES["p5.48xlarge"]
RUN = replace(workload(LLAMA31_8B, num_sequences=64), parallelism=ParallelismWish(dp=8, tp=1, pp=1, cp=1))
WIDE = replace(RUN, name="wide", parallelism=ParallelismWish(dp=16, tp=1, pp=1, cp=1))


def planned(*runs, tree=None):
    return plan_in_order(runs, tree or fleet(4), SHAPES, solver=BestFitSolver())


def test_each_gang_gets_what_those_before_it_left_and_names_stay_apart() -> None:
    first, second, third = planned(RUN, RUN, WIDE)
    assert [each.name for each in (first, second, third)] == [RUN.name, f"{RUN.name} #2", "wide"]
    taken = [(slot.node, slot.slot) for gang in (first, second, third) for slot in gang.plan.placement.slots]
    assert len(set(taken)) == len(taken) == 32
    assert third.tree.num_usable_slots == 16


def test_one_that_does_not_fit_takes_nothing() -> None:
    first, second, third = planned(RUN, WIDE, RUN, tree=fleet(2))
    assert first.plan is not None
    assert second.plan is None
    assert second.found.rejections
    assert third.plan is not None


def test_slots_of_a_gang_are_free_no_more_and_the_rest_keep_their_names() -> None:
    tree = fleet(2)
    (gang,) = planned(RUN, tree=tree)
    assert gang.plan is not None
    left = without(tree, gang.plan.placement)
    assert left.num_usable_slots == tree.num_usable_slots - gang.plan.layout.world_size
    for node in left.nodes:
        assert not set(node.usable_slot_indexes) & set(gang.plan.placement.held_on(node.id))


def test_gangs_in_racks_of_their_own_leave_each_other_in_peace() -> None:
    gangs = planned(RUN, tree=fleet(4))
    assert contention(gangs, fleet(4), SHAPES) == ()
    both = planned(RUN, RUN, tree=fleet(4))
    assert contention(both, fleet(4), SHAPES) == ("none of the 2 gangs on p5.48xlarge slows another by more than 0.5%",)


def test_gangs_that_share_the_cards_of_their_nodes_slow_each_other() -> None:
    def halves(number: int, first_slot: int) -> PlannedGang:
        slots = tuple(
            RankSlot(rank=rank, node=NodeId(nodes[rank // 4]), slot=first_slot + rank % 4, local_rank=rank % 4)
            for rank in range(8)
        )
        (gang,) = planned(RUN)
        plan = replace(gang.plan, placement=Placement(slots=slots))
        return replace(gang, name=f"gang {number}", found=replace(gang.found, plans=(plan,)))

    tree = replace(fleet(2), network=(NetworkLevel(level=None, bandwidth_bytes_per_s=1e9, is_measured=True),))
    nodes = [node.id for node in tree.nodes]
    told = contention([halves(1, 0), halves(2, 4)], tree, SHAPES)
    assert told[0].startswith(f"gang 2 on the link of node {nodes[0]} slows gang 1 by ")
    (alone,) = contention([halves(1, 0)], tree, SHAPES)
    assert alone.startswith("staging or saving")


def test_a_solver_that_goes_by_the_score_keeps_away_from_them() -> None:
    tree = fleet(4, nodes_per_rack=2)
    costs = {node.id: NodeCosts(busy_network_ratio=0.9) for node in tree.nodes[:2]}
    found = search(WIDE, tree, SHAPES, solver=FleetSolver(), node_costs=costs)
    assert not set(found.plans[0].placement.nodes) & set(costs)


def test_programs_get_plans_by_name() -> None:
    gangs = planned(RUN)
    told = SideBySide(gangs=gangs, told=("a",)).by_name()
    assert told["told"] == ("a",)
    (found,) = (gang.found for gang in gangs)
    whole = {"plan": found.plans[0], "rejections": found.rejections, "relaxation": found.relaxation}
    assert told["gangs"][RUN.name] == whole
