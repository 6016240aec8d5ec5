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
from tests.support.fleets import fleet, node, plan_of, workload

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
