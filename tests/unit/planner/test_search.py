from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest

from airflow_llmsched.codec import from_json, to_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import Offload, PlacementWish, RankGroup, Recompute
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.domain.workload import (
    BatchPhase,
    BudgetSpec,
    CapacityWish,
    MemoryDemand,
    ObjectiveWeights,
    ParallelismWish,
    WorkloadSpec,
)
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner import search as search_module
from airflow_llmsched.planner.evaluate import HEADROOM_RATIO, evaluate
from airflow_llmsched.planner.explain import explain_plan
from airflow_llmsched.planner.layout_rules import LayoutRule
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.calibration import Calibration, FittedKind
from airflow_llmsched.planner.perf.hardware import node_shape, node_shapes
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine
from airflow_llmsched.planner.perf.rates import Rates
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import MAX_PLANS, search
from airflow_llmsched.units import GIB
from tests.support.fleets import fleet, local_workload, node, tree_of, workload
from tests.support.models import LLAMA2_7B, LLAMA2_70B, LLAMA31_8B

RACK = node_shape("gb200-nvl72")


MAY_OFFLOAD = ParallelismWish(may_offload=True)


def find(run: WorkloadSpec, tree: TopologyTree, **others: object) -> PlanSearch:
    return search(run, tree, node_shapes(), solver=BestFitSolver(), **others)  # type: ignore[arg-type]


def local_fleet(num_nodes: int) -> TopologyTree:
    return fleet(num_nodes, slots=2, shape="local-cpu")


def is_accounted_for(found: PlanSearch) -> bool:
    return found.num_candidates == len(found.plans) + sum(found.rejections.values())


def test_a_run_that_lost_half_its_nodes_is_planned_on_the_rest_with_the_same_global_batch() -> None:
    run = local_workload(capacity=CapacityWish(min_ranks=2))
    before = find(run, local_fleet(2)).plans[0]
    after = find(run, local_fleet(2), excluded=frozenset({NodeId("n0000")})).plans[0]
    assert (before.layout.dp, after.layout.dp) == (4, 2)
    assert before.layout.global_batch_size == after.layout.global_batch_size == 32
    assert after.placement.nodes == ("n0001",)
    assert after.prediction.step_s > before.prediction.step_s


def test_what_fits_in_the_heaviest_phase_but_not_in_one_that_fills_the_pipeline_is_no_plan() -> None:
    wish = ParallelismWish(dp=1, tp=1, pp=16, micro_batch_size=1, zero_stage=0, recompute=Recompute.NONE)
    long = BatchPhase(from_tokens=2**30, sequence_length_tokens=32768, num_sequences=1)
    many = BatchPhase(from_tokens=0, sequence_length_tokens=16384, num_sequences=64)
    budget = BudgetSpec(num_tokens=2**31)

    def found(*batch: BatchPhase) -> PlanSearch:
        return find(workload(LLAMA31_8B, batch=batch, budget=budget, parallelism=wish), fleet(2))

    assert found(replace(long, from_tokens=0)).plans
    refused = found(many, long)
    assert is_accounted_for(refused)
    assert not refused.plans
    assert search_module.NO_MEMORY in refused.rejections


def test_a_schedule_is_ordered_by_the_whole_run_and_not_by_its_heaviest_phase() -> None:
    phases = tuple(
        BatchPhase(from_tokens=start, sequence_length_tokens=length, num_sequences=number)
        for start, length, number in ((0, 1024, 32), (10**10, 8192, 256))
    )
    run = workload(LLAMA2_70B, batch=phases, budget=BudgetSpec(num_tokens=10**10 + 10**8))
    plans = find(run, fleet(8)).plans
    run_s = [plan.prediction.run_s for plan in plans]
    step_s = [plan.prediction.step_s for plan in plans]
    assert run_s == pytest.approx(sorted(run_s))
    assert step_s != sorted(step_s)


def test_who_asks_for_little_energy_gets_the_plan_that_draws_least() -> None:
    run = workload(LLAMA31_8B, objective=ObjectiveWeights(throughput=0.0, energy=1.0))
    plans = find(run, fleet(4)).plans
    joules = [plan.prediction.step_energy_j or 0.0 for plan in plans]
    assert joules == sorted(joules)
    assert 0 < joules[0] < joules[-1]
    by_hand = [plan.prediction.step_s * plan.layout.world_size for plan in plans]
    assert by_hand != sorted(by_hand)


def test_a_machine_whose_power_nobody_states_does_not_look_free_and_the_search_says_so() -> None:
    thrifty = ObjectiveWeights(throughput=0.0, energy=1.0)
    found = find(local_workload(objective=thrifty), local_fleet(2))
    assert found.notes == (
        "Energy is weighed as accelerator-seconds, not as joules: nobody states what a cpu-core draws.",
    )
    assert found.plans[0].prediction.step_energy_j is found.plans[0].prediction.run_energy_j is None
    assert found.plans[0].prediction.energy_unknown == "nobody states what a cpu-core draws"
    assert find(workload(LLAMA31_8B, objective=thrifty), fleet(1)).notes == ()
    assert find(local_workload(), local_fleet(2)).notes == ()


def test_a_70b_model_on_64_gpus_is_searched_within_a_second() -> None:
    run, tree = workload(LLAMA2_70B, num_sequences=1024), fleet(8)
    start_s = time.process_time()
    found = find(run, tree)
    seconds = time.process_time() - start_s
    assert found.num_candidates > 20_000
    assert found.plans[0].layout.world_size == 64
    assert 0.3 < found.plans[0].prediction.mfu_ratio < 0.6
    assert seconds < 1.0


def test_every_candidate_is_a_plan_or_counted_under_one_reason() -> None:
    for run, tree in (
        (workload(LLAMA31_8B), fleet(2)),
        (local_workload(), local_fleet(2)),
        (workload(LLAMA2_70B), fleet(1)),
        (workload(None), fleet(2)),
        (workload(LLAMA31_8B, capacity=CapacityWish(min_ranks=64)), fleet(2)),
    ):
        found = find(run, tree)
        assert is_accounted_for(found)
        assert len(found.plans) <= MAX_PLANS
        assert (found.relaxation is None) == bool(found.plans)


def test_plans_respect_memory_pins_and_rank_limits() -> None:
    run = workload(
        LLAMA31_8B, parallelism=ParallelismWish(tp=2, zero_stage=1), capacity=CapacityWish(min_ranks=8, max_ranks=24)
    )
    usable_bytes = node_shape("p5.48xlarge").accelerator.memory_bytes * (1 - HEADROOM_RATIO)
    found = find(run, fleet(4))
    assert found.plans
    for plan in found.plans:
        assert plan.layout.tp == 2
        assert plan.layout.zero_stage == 1
        assert 8 <= plan.layout.world_size <= 24
        assert plan.layout.global_batch_size == 256
        assert plan.placement.world_size == plan.layout.world_size
        assert plan.prediction.memory_bytes_per_rank <= usable_bytes


def test_no_plan_beats_another_in_every_cost() -> None:
    found = find(workload(LLAMA31_8B), fleet(2))
    costs = [
        (
            plan.prediction.step_s,
            plan.prediction.memory_bytes_per_rank,
            plan.prediction.usd_per_hour * plan.prediction.step_s,
        )
        for plan in found.plans
    ]
    assert len(costs) > 3
    for one in costs:
        assert not [other for other in costs if other != one and all(a <= b for a, b in zip(other, one, strict=True))]


def test_more_memory_never_removes_a_layout() -> None:
    run, tree = workload(LLAMA2_70B), fleet(2)
    small = node_shape("p5.48xlarge")
    large = replace(small, accelerator=replace(small.accelerator, memory_bytes=2 * small.accelerator.memory_bytes))
    kept = [
        search(run, tree, {small.name: shape}, solver=BestFitSolver()).rejections.get(search_module.NO_MEMORY, 0)
        for shape in (small, large)
    ]
    assert kept[1] < kept[0]


def test_the_objective_orders_the_plans() -> None:
    run = workload(LLAMA31_8B)
    fast = find(replace(run, objective=ObjectiveWeights(throughput=1.0)), fleet(8)).plans[0]
    cheap = find(replace(run, objective=ObjectiveWeights(throughput=0.0, cost=1.0)), fleet(8)).plans[0]
    modest = find(replace(run, objective=ObjectiveWeights(throughput=0.0, fairness=1.0)), fleet(8)).plans[0]
    assert fast.prediction.step_s < cheap.prediction.step_s
    assert cheap.prediction.usd_per_hour * cheap.prediction.step_s < (
        fast.prediction.usd_per_hour * fast.prediction.step_s
    )
    assert modest.layout.world_size < fast.layout.world_size == 64


def test_a_plan_that_keeps_the_budget_comes_before_one_that_the_objective_likes_better() -> None:
    """The cheapest plan is the slowest: a deadline between it and the fastest has to be kept, at the least cost."""
    run = workload(LLAMA31_8B, objective=ObjectiveWeights(throughput=0, cost=1), budget=BudgetSpec(num_steps=100))
    tree = fleet(8, slots=8, shape="p5.48xlarge")
    free = find(run, tree).plans
    fastest_s = min(plan.prediction.run_s for plan in free)
    assert free[0].prediction.run_s > 1.5 * fastest_s
    deadline_s = 1.5 * fastest_s
    kept = find(replace(run, budget=replace(run.budget, deadline_s=deadline_s)), tree).plans
    in_time = [plan for plan in free if plan.prediction.run_s <= deadline_s]
    assert kept[0] == min(in_time, key=lambda plan: plan.prediction.run_usd)
    late = [plan.prediction.run_s > deadline_s for plan in kept]
    assert late == sorted(late)


def test_where_no_plan_keeps_the_budget_the_objective_orders_them_as_ever() -> None:
    run = workload(LLAMA31_8B, budget=BudgetSpec(num_steps=100))
    tree = fleet(2, slots=8, shape="p5.48xlarge")
    hopeless = replace(run, budget=replace(run.budget, deadline_s=1.0, max_usd=0.01))
    assert find(hopeless, tree).plans == find(run, tree).plans


def test_a_calibration_of_ones_own_changes_what_is_predicted_and_how_sure_that_is() -> None:
    run, tree = workload(LLAMA2_7B), fleet(1)
    slow = FittedKind(
        rates=Rates(matmul_ratio=0.3), error_ratio=0.07, left_out_error_ratio=0.03, num_rows_by_source={"run": 20}
    )
    usual = find(run, tree).plans
    measured = find(run, tree, calibration=Calibration(fitted_on="2026-11-30", kinds={"hopper": slow})).plans
    assert measured[0].prediction.error_ratio == 0.07
    assert min(plan.prediction.step_s for plan in measured) > 1.3 * min(plan.prediction.step_s for plan in usual)


def test_the_order_of_nodes_and_the_seed_do_not_matter() -> None:
    tree = fleet(4)
    nodes = list(tree.nodes)
    random.Random(3).shuffle(nodes)
    run = workload(LLAMA31_8B)
    assert find(run, tree) == find(run, TopologyTree(levels=tree.levels, nodes=tuple(nodes)), seed=9)


def test_a_search_survives_the_codec() -> None:
    found = find(local_workload(), local_fleet(2))
    assert from_json(PlanSearch, to_json(found)) == found


@pytest.mark.parametrize(
    ("objective", "chosen"),
    [(ObjectiveWeights(), "p5.48xlarge"), (ObjectiveWeights(throughput=0, cost=1), "p4de.24xlarge")],
)
def test_a_gang_has_nodes_of_one_shape(objective: ObjectiveWeights, chosen: str) -> None:
    tree = tree_of(
        *(node(f"h{number}", path=("b", "r1")) for number in range(2)),
        *(node(f"a{number}", path=("b", "r2"), shape="p4de.24xlarge") for number in range(2)),
    )
    # At its list price the older kind is neither faster nor cheaper, whatever the layout.
    cheap = node_shapes() | {"p4de.24xlarge": node_shape("p4de.24xlarge", usd_per_hour=1.0)}
    found = search(workload(LLAMA31_8B, objective=objective), tree, cheap, solver=BestFitSolver())
    assert found.plans[0].node_shape == chosen
    for plan in found.plans:
        assert {name[0] for name in plan.placement.nodes} == {"h" if plan.node_shape == "p5.48xlarge" else "a"}


def test_a_node_of_ones_own_is_paid_whole_and_a_shared_one_by_the_slot() -> None:
    whole = find(local_workload(capacity=CapacityWish(max_ranks=1)), local_fleet(1)).plans[0]
    shared_tree = tree_of(node("n", free=1, slots=2, shape="local-cpu"))
    shared = find(local_workload(capacity=CapacityWish(max_ranks=1)), shared_tree).plans[0]
    assert whole.prediction.usd_per_hour == pytest.approx(2 * node_shape("local-cpu").usd_per_hour)
    assert shared.prediction.usd_per_hour == pytest.approx(node_shape("local-cpu").usd_per_hour)


def test_a_required_level_of_the_gang_bounds_the_plan() -> None:
    wish = PlacementWish(group=RankGroup.GANG, level="rack", required=True)
    found = find(workload(LLAMA31_8B, placement=(wish,)), fleet(8))
    assert max(plan.layout.world_size for plan in found.plans) == 32
    assert found.rejections[search_module.NOT_PLACED] > 0
    assert all(plan.num_domains == 1 for plan in found.plans)


def test_a_required_level_of_a_group_turns_down_what_breaks_it() -> None:
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    tree = fleet(4, nodes_per_rack=2)
    pins = ParallelismWish(tp=1, cp=1)
    found = find(workload(LLAMA31_8B, placement=(wish,), parallelism=pins, capacity=CapacityWish(min_ranks=32)), tree)
    assert found.rejections[search_module.WISH_BROKEN] > 0
    assert found.plans
    assert all(plan.layout.pp > 1 for plan in found.plans)


def test_a_preferred_level_of_a_group_is_a_cost() -> None:
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=False)
    tree = fleet(4, nodes_per_rack=2)
    run = workload(
        LLAMA31_8B, num_sequences=4096, parallelism=ParallelismWish(tp=1, cp=1), capacity=CapacityWish(min_ranks=32)
    )
    free, wishing = find(run, tree).plans[0], find(replace(run, placement=(wish,)), tree).plans[0]
    assert free.layout.pp == 1
    assert wishing.layout.pp > 1
    assert wishing.prediction.step_s < free.prediction.step_s * (1 + search_module.PREFERENCE_WEIGHT)


def test_an_unknown_level_is_a_spec_error_that_names_the_known_ones() -> None:
    wish = PlacementWish(group=RankGroup.TP, level="pod", required=False)
    with pytest.raises(SpecError, match=r"placement\.tp\.preferred.*block, rack, node"):
        find(workload(LLAMA31_8B, placement=(wish,)), fleet(1))


def test_other_roles_keep_their_slots_and_every_plan_says_where_they_are() -> None:
    roles = (
        RoleSpec(kind=RoleKind.TRAINER),
        RoleSpec(kind=RoleKind.EVALUATOR, num_ranks=2, command=("evaluate",)),
        RoleSpec(kind=RoleKind.DATA_LOADER, num_ranks=3, command=("load",), accelerators_per_rank=0),
    )
    found = find(local_workload(roles=roles), local_fleet(2))
    assert max(plan.layout.world_size for plan in found.plans) == 2
    for plan in found.plans:
        assert [(each.role, each.index) for each in plan.placement.helpers] == [
            *((RoleKind.EVALUATOR, index) for index in range(2)),
            *((RoleKind.DATA_LOADER, index) for index in range(3)),
        ]
        held = [(node, slot) for node in plan.placement.nodes for slot in plan.placement.held_on(node)]
        assert len(held) == len(set(held)) == plan.layout.world_size + 2
    assert is_accounted_for(found)


def test_gang_whose_other_roles_find_no_room_on_one_node_is_not_placed() -> None:
    evaluator = RoleSpec(kind=RoleKind.EVALUATOR, num_ranks=1, command=("evaluate",), accelerators_per_rank=3)
    found = find(local_workload(roles=(RoleSpec(kind=RoleKind.TRAINER), evaluator)), local_fleet(2))
    assert not found.plans
    assert found.relaxation is not None
    assert "one process of another role" in found.relaxation
    assert is_accounted_for(found)


def test_a_plan_says_who_made_its_accelerators() -> None:
    assert {plan.accelerator_vendor for plan in find(workload(LLAMA31_8B), fleet(1)).plans} == {"nvidia"}


def test_a_job_without_a_model_takes_all_ranks_it_may_within_its_stated_memory() -> None:
    run = workload(None, num_sequences=64, memory=(MemoryDemand(tier="hbm", bytes_per_rank=2**30),))
    plan = find(run, fleet(2)).plans[0]
    assert plan.layout.dp == plan.layout.world_size == 16
    assert plan.prediction.memory_breakdown_bytes["stated"] == 2**30
    too_large = workload(None, num_sequences=64, memory=(MemoryDemand(tier="hbm", bytes_per_rank=2**40),))
    assert not find(too_large, fleet(2)).plans


def test_a_job_goes_where_each_accelerators_share_of_the_host_is_what_it_states_and_nowhere_else() -> None:
    """200 GiB of 256 GiB there are for each accelerator; of 144 GiB nobody's neighbours would have theirs."""
    run = workload(None, num_sequences=64, memory=(MemoryDemand(tier="host", bytes_per_rank=200 * 2**30),))
    tree = tree_of(node("large"), node("small", shape="p4d.24xlarge"))
    found = find(run, tree)
    assert {plan.node_shape for plan in found.plans} == {"p5.48xlarge"}
    assert found.rejections[search_module.SHORT_OUTSIDE] > 0
    assert is_accounted_for(found)


def test_a_large_fleet_is_thinned_and_says_so() -> None:
    run = workload(LLAMA2_7B, num_sequences=5040, parallelism=ParallelismWish(micro_batch_size=1, zero_stage=3))
    found = find(run, fleet(64, nodes_per_rack=16))
    assert found.rejections[search_module.NOT_TRIED] > 0
    assert is_accounted_for(found)


def test_nothing_is_offloaded_unless_it_may_be_and_nothing_fits_otherwise() -> None:
    tight = workload(LLAMA2_70B, capacity=CapacityWish(max_ranks=4))
    refused = find(tight, fleet(1))
    assert not refused.plans
    found = find(replace(tight, parallelism=MAY_OFFLOAD), fleet(1))
    assert found.plans
    assert is_accounted_for(found)
    assert found.num_candidates > refused.num_candidates
    assert all(plan.layout.offload is not Offload.NONE for plan in found.plans)
    roomy = workload(LLAMA31_8B)
    assert find(replace(roomy, parallelism=MAY_OFFLOAD), fleet(1)) == find(roomy, fleet(1))
    never = replace(tight, parallelism=replace(MAY_OFFLOAD, offload=Offload.NONE))
    assert not find(never, fleet(1)).plans


def test_what_does_not_fit_beside_the_accelerators_either_is_counted_by_that_reason() -> None:
    tight = workload(LLAMA2_70B, capacity=CapacityWish(max_ranks=4), parallelism=MAY_OFFLOAD)
    poor = node_shape("p5.48xlarge")
    poor = replace(poor, host=replace(poor.host, memory_bytes=8 * GIB, disk_bytes=0))
    found = search(tight, fleet(1), node_shapes() | {"p5.48xlarge": poor}, solver=BestFitSolver())
    assert not found.plans
    assert found.rejections[search_module.NO_ROOM_OUTSIDE] > 0
    assert is_accounted_for(found)


def test_a_pinned_offload_is_the_only_one() -> None:
    pins = ParallelismWish(offload=Offload.OPTIMIZER_HOST, tp=1)
    found = find(workload(LLAMA31_8B, parallelism=pins), fleet(1))
    assert {plan.layout.offload for plan in found.plans} == {Offload.OPTIMIZER_HOST}


def racks(num_nodes: int, *, nodes_per_rack: int = 18) -> TopologyTree:
    tree = fleet(num_nodes, slots=4, shape=RACK.name, nodes_per_rack=nodes_per_rack)
    return replace(tree, scale_up_level="rack")


def priced_by_itself(run: WorkloadSpec, plan: Plan, machine: Machine) -> float:
    return float(evaluate(run, LayoutTable.of([plan.layout]), machine).step_s_C[0])


def test_what_is_predicted_of_a_plan_is_what_its_own_placement_takes() -> None:
    tree = tree_of(node("a"), node("b", free=4), node("c", free=4, path=("b0", "r1")))
    run = workload(LLAMA31_8B, capacity=CapacityWish(min_ranks=16, max_ranks=16))
    found = find(run, tree)
    assert len(found.plans) > 1
    for plan in found.plans:
        machine = PlacedMachine.on(plan.placement, tree=tree, shape=node_shape("p5.48xlarge"))
        assert plan.prediction.step_s == pytest.approx(priced_by_itself(run, plan, machine))


def test_plans_are_ranked_by_what_they_take_where_they_are() -> None:
    """On nodes of 8, 4 and 4 a flat machine of fours has every group of eight leave its node."""
    tree = tree_of(node("a"), node("b", free=4), node("c", free=4))
    run = workload(LLAMA2_7B, capacity=CapacityWish(min_ranks=16, max_ranks=16))
    seconds = [plan.prediction.step_s for plan in find(run, tree).plans]
    assert seconds[0] == min(seconds)


def test_a_narrow_core_makes_the_step_longer_only_for_gangs_that_cross_it() -> None:
    wide = fleet(8, nodes_per_rack=4, racks_per_block=1)
    narrow = replace(wide, network=(NetworkLevel(level=None, bandwidth_bytes_per_s=1e9),))
    rack = (NetworkLevel(level="rack", bandwidth_bytes_per_s=5e10), *narrow.network)
    narrow = replace(narrow, network=rack)
    for num_ranks, is_slower in ((32, False), (64, True)):
        run = workload(
            LLAMA31_8B, capacity=CapacityWish(min_ranks=num_ranks, max_ranks=num_ranks),
            parallelism=ParallelismWish(tp=1, pp=1, cp=1),
        )  # fmt: skip
        usual_s, narrow_s = (find(run, tree).plans[0].prediction.step_s for tree in (wide, narrow))
        assert (narrow_s > 1.05 * usual_s) is is_slower
        assert math.isclose(narrow_s, usual_s) is not is_slower


def test_switches_that_add_up_shorten_the_step_and_come_with_the_setting_that_has_them_do_so() -> None:
    run = workload(
        LLAMA2_7B, num_sequences=32, parallelism=ParallelismWish(tp=4, pp=1, cp=1, zero_stage=0),
        capacity=CapacityWish(min_ranks=32, max_ranks=32),
    )  # fmt: skip
    tree = fleet(4, shape="dgx-h100")
    usual, added = (find(run, each).plans[0] for each in (tree, replace(tree, switches_reduce=True)))
    data_parallel_s = [plan.prediction.step_breakdown_s["data_parallel"] for plan in (usual, added)]
    assert data_parallel_s[1] < 0.8 * data_parallel_s[0]
    assert usual.launch_settings == ()
    assert [(each.name, each.value) for each in added.launch_settings] == [("NCCL_COLLNET_ENABLE", "1")]
    words = explain_plan(run, PlanSearch(plans=(added,)), replace(tree, switches_reduce=True), node_shapes())
    assert "  NCCL_COLLNET_ENABLE=1: switches of the network add gradients up (SHARP)" in words
    assert "over infiniband-ndr" in words
    assert ", whose switches add up" in words


def test_tensor_parallelism_reaches_as_far_as_the_racks_links_do() -> None:
    run = workload(LLAMA2_70B, parallelism=ParallelismWish(tp=16), capacity=CapacityWish(min_ranks=32, max_ranks=32))
    plan = find(run, racks(8)).plans[0]
    tensor = plan.spans[0]
    assert (tensor.group, tensor.num_ranks, tensor.num_nodes, tensor.level) == (RankGroup.TP, 16, 4, "rack")
    silent = find(run, replace(racks(8), scale_up_level=None))
    assert not silent.plans
    assert silent.rejections[LayoutRule.TP_INSIDE_DOMAIN] > 0


def test_no_group_is_torn_between_racks() -> None:
    """Racks of nine slots hold one group of eight each, and 72 slots in all hold no ninth."""
    tree = tree_of(
        *(node(f"n{number:02d}", path=("b0", f"r{number // 3}"), free=3, slots=4, shape=RACK.name)
          for number in range(12)),
    )  # fmt: skip
    tree = replace(tree, scale_up_level="rack")
    run = workload(LLAMA2_70B, num_sequences=64, parallelism=ParallelismWish(tp=8), capacity=CapacityWish(min_ranks=32))
    for plan in find(run, tree).plans:
        rack_of = {each.id: each.path for each in tree.nodes}
        groups = [
            {rack_of[slot.node] for slot in plan.placement.slots[first : first + 8]}
            for first in range(0, plan.layout.world_size, 8)
        ]
        assert len(groups) <= 4
        assert all(len(paths) == 1 for paths in groups)


def test_the_explanation_says_why_tensor_parallelism_stays_and_where_groups_are() -> None:
    run = workload(LLAMA2_70B, parallelism=ParallelismWish(tp=16), capacity=CapacityWish(min_ranks=32, max_ranks=32))
    tree = racks(8, nodes_per_rack=4)
    found = find(run, tree)
    words = explain_plan(replace(run, parallelism=ParallelismWish()), found, tree, node_shapes())
    assert "  tp: 16 ranks on 4 nodes, in one rack, over nvswitch4 at " in words
    assert (
        "Tensor parallelism (tp) stays at 16. At 32 (dp=1): tp does not fit into a domain of the fastest links "
        "(NVLink): nvswitch4 joins at most 16 of these ranks."
    ) in words


def test_where_the_topology_does_not_say_which_nodes_are_joined_the_search_says_so() -> None:
    run = workload(LLAMA31_8B, num_sequences=16)
    (note,) = find(run, replace(racks(2), scale_up_level=None)).notes
    assert note.startswith("nvswitch4 joins 72 accelerators over several nodes of gb200-nvl72, but the topology does")
    assert not find(run, racks(2)).notes
