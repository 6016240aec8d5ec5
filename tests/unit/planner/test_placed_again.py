from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import Placed, Placement, PlacementProblem
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.domain.workload import ParallelismWish
from airflow_llmsched.planner.perf.hardware import node_shape, node_shapes
from airflow_llmsched.planner.placed_again import placed_again
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.placement.wishes import domain_of_rank_R, num_split_groups
from airflow_llmsched.planner.places import Ask
from airflow_llmsched.planner.search import search
from airflow_llmsched.ports import PlacementSolver
from tests.support.fleets import fleet, node, plan_of, with_busy_links, workload

H100 = node_shape("p5.48xlarge")
LAYOUT = ParallelLayout(dp=4, tp=8, pp=2, num_micro_batches=64)
NETWORK = (
    NetworkLevel(level="rack", bandwidth_bytes_per_s=50e9),
    NetworkLevel(level=None, bandwidth_bytes_per_s=5e9),
)


def uneven() -> TopologyTree:
    """Racks with room for five, four and four nodes: best fit fills the first one, and tears a stage."""
    nodes = [
        node(f"{rack}{number}", path=("b0", rack))
        for rack, size in (("a", 5), ("b", 4), ("c", 4))
        for number in range(size)
    ]
    return TopologyTree(levels=("block", "rack"), nodes=tuple(nodes), network=NETWORK)


def ask_for(tree: TopologyTree, solver: PlacementSolver, **others: Any) -> Ask:
    return Ask(
        workload=workload(num_sequences=256, **others), tree=tree, shape=H100, solver=solver, excluded=frozenset(),
        seed=0, time_limit_s=1.0,
    )  # fmt: skip


def plan_on(tree: TopologyTree, layout: ParallelLayout = LAYOUT) -> Plan:
    problem = PlacementProblem(layout=layout, tree=tree)
    found = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    assert isinstance(found, Placed)
    plan = plan_of(workload(num_sequences=256), layout, H100)
    slow = replace(plan.prediction, step_s=plan.prediction.step_s * 10)
    return replace(plan, placement=found.placement, prediction=slow)


def torn_stages(placement: Placement, tree: TopologyTree) -> int:
    domain_R = domain_of_rank_R(placement, tree, level="rack")
    return num_split_groups(LAYOUT, domain_R, group=RankGroup.DP)


def test_a_plan_moves_to_where_its_own_groups_are_together() -> None:
    tree = uneven()
    before = plan_on(tree)
    after = placed_again(ask_for(tree, FleetSolver()), before)
    assert torn_stages(before.placement, tree) > 0
    assert torn_stages(after.placement, tree) == 0
    assert after.prediction.step_s < before.prediction.step_s
    assert after.layout == before.layout
    assert {each.group: each.level for each in after.spans}[RankGroup.DP] == "rack"


def test_it_stays_where_a_solver_knows_nothing_better() -> None:
    tree = uneven()
    before = plan_on(tree)
    assert placed_again(ask_for(tree, BestFitSolver()), before) is before


def test_it_stays_where_a_move_would_be_slower() -> None:
    tree = uneven()
    before = plan_on(tree)
    fast = replace(before, prediction=replace(before.prediction, step_s=1e-3))
    assert placed_again(ask_for(tree, FleetSolver()), fast) is fast


def test_wider_groups_than_a_solver_keeps_together_are_left_where_they_are() -> None:
    before = plan_on(uneven(), replace(LAYOUT, tp=4, dp=8, expert_tp=8))
    assert placed_again(ask_for(uneven(), FleetSolver()), before) is before


def test_a_search_returns_plans_on_places_by_their_layouts() -> None:
    tree = uneven()
    wanted = workload(
        num_sequences=256,
        parallelism=ParallelismWish(dp=4, tp=8, pp=2),
        placement=(PlacementWish(group=RankGroup.DP, level="rack", required=False),),
    )
    plans = {
        type(solver): search(wanted, tree, node_shapes(), solver=solver, time_limit_s=1.0).plans
        for solver in (BestFitSolver(), FleetSolver())
    }
    assert torn_stages(plans[FleetSolver][0].placement, tree) == 0
    assert plans[FleetSolver][0].prediction.step_s <= plans[BestFitSolver][0].prediction.step_s


def test_excluded_nodes_stay_out() -> None:
    tree = fleet(16)
    ask = replace(ask_for(tree, FleetSolver()), excluded=frozenset({NodeId("n0000")}))
    before = plan_on(replace(tree, nodes=tree.nodes[1:]))
    assert "n0000" not in placed_again(ask, before).placement.nodes


FILLED = {("b00", "r000"): 0.9, ("b00", "r001"): 0.9}


def crossing() -> tuple[Ask, Plan]:
    """Return an ask on five racks, none of which holds its six nodes, and the plan: on the first and the second."""
    tree = replace(fleet(20, racks_per_block=5), network=NETWORK)
    six_nodes = ParallelismWish(dp=6, tp=8, pp=1, cp=1)
    ask = replace(ask_for(tree, FleetSolver()), workload=workload(num_sequences=384, parallelism=six_nodes))
    plan = search(ask.workload, tree, node_shapes(), solver=FleetSolver()).plans[0]
    assert set(plan.placement.nodes) == {f"n{number:04d}" for number in range(6)}
    return ask, plan


def test_a_plan_leaves_links_alone_that_others_fill_though_its_own_step_is_the_same() -> None:
    ask, before = crossing()
    assert placed_again(ask, before).placement == before.placement
    busy = replace(ask, tree=with_busy_links(ask.tree, FILLED))
    after = placed_again(busy, before)
    assert not set(after.placement.nodes) & set(before.placement.nodes)
    assert after.prediction.step_s == before.prediction.step_s
    assert placed_again(busy, before) == after, "always alike"


def test_it_leaves_them_for_a_longer_step_only_where_others_would_cost_it_more() -> None:
    ask, plan = crossing()
    busy = replace(ask, tree=with_busy_links(ask.tree, FILLED))
    for shorter_ratio, moves in ((0.95, True), (0.7, False)):  # filled for 0.9 of the time, which costs a fifth: 18%
        step_s = plan.prediction.step_s * shorter_ratio
        before = replace(plan, prediction=replace(plan.prediction, step_s=step_s))
        assert (placed_again(busy, before) is not before) is moves


def test_a_level_that_is_required_holds_however_busy_its_links_are() -> None:
    ask, _ = crossing()
    wish = PlacementWish(group=RankGroup.GANG, level="block", required=True)
    blocks = replace(fleet(24, racks_per_block=3), network=NETWORK)
    full = tuple(replace(each, num_free_slots=0) if each.path[0] == "b01" else each for each in blocks.nodes)
    busy = with_busy_links(replace(blocks, nodes=full), {("b00", f"r{rack:03d}"): 1.0 for rack in range(3)})
    found = search(replace(ask.workload, placement=(wish,)), busy, node_shapes(), solver=FleetSolver()).plans[0]
    assert {path[0] for path in (each.path for each in busy.nodes if each.id in found.placement.nodes)} == {"b00"}
