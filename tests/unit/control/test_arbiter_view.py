from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control.arbiter_state import Claim, GroundState, PastHold, Slots
from airflow_llmsched.control.arbiter_view import (
    as_if_alone,
    asked_gang,
    beside,
    left_over,
    loads_beside,
    next_save_s,
    only,
    part_of,
    queue_state,
    slots_of,
    slots_of_slices,
    used,
)
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.network_load import LinkLoad, NetworkLoad
from airflow_llmsched.domain.placement import HelperSlot, Placement
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.queue import (
    Amounts,
    Limits,
    QueuedGang,
    QueuePolicy,
    Reservation,
    SliceAsk,
    SlicedSlot,
    SliceHold,
    SliceKind,
    TeamUsage,
)
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWish
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.domain.topology import Division, TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import CapacityWish, ParallelismWish
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, workload
from tests.support.queues import decided, runs_on, waits
from tests.support.queues import gang as queued
from tests.support.shared_house import racks
from tests.support.sim_house import plan_of, workload_of

ONE, TWO = RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), RunKey("ls-bbbbbbbbbbbbbbbbbbbb")
N0, N1 = NodeId("r0n0"), NodeId("r0n1")
TREE = racks(1, 2, num_slots=4)


def claim_of(run: RunKey, held: Slots, **others: object) -> Claim:
    gang = QueuedGang(key=run, team="red", priority_class="normal", layout=ParallelLayout(dp=2))
    return Claim(gang=gang, num_records=1, since_s=0.0, held=held, **others)  # type: ignore[arg-type]


def state_of(*claims: Claim) -> GroundState:
    return GroundState(claims={each.gang.key: each for each in claims})


def free_of(tree: TopologyTree) -> dict[NodeId, tuple[int, ...]]:
    return {node.id: node.usable_slot_indexes for node in tree.nodes}


def test_what_is_held_is_all_that_its_holder_plans_on_and_no_more_than_is_free() -> None:
    busy = replace(TREE.nodes[0], num_free_slots=2, free_slots=(1, 2))
    tree = replace(TREE, nodes=(busy, TREE.nodes[1]))
    assert free_of(only(tree, {N0: (0, 1), NodeId("gone"): (0,)})) == {N0: (1,)}


def test_what_others_hold_is_not_left_and_of_what_they_are_promised_the_last_is_kept() -> None:
    kept = Reservation(gang=TWO, start_s=5.0, until_s=None, num_slots={N0: 1, N1: 2}, is_promised=True)
    state = state_of(claim_of(ONE, {N0: (0, 2)}), claim_of(TWO, {}, reserved=kept))
    assert free_of(left_over(TREE, state, run=RunKey("ls-cccccccccccccccccccc"))) == {N0: (1,), N1: (0, 1)}
    assert free_of(left_over(TREE, state, run=TWO)) == {N0: (1, 3), N1: (0, 1, 2, 3)}
    assert left_over(TREE, state_of(claim_of(ONE, {N0: (0,)})), run=ONE) is TREE


def test_alone_a_run_has_all_that_works() -> None:
    broken = replace(TREE.nodes[0], unusable_reason="lost", num_free_slots=0)
    busy = replace(TREE.nodes[1], num_free_slots=1, free_slots=(3,))
    assert free_of(as_if_alone(replace(TREE, nodes=(broken, busy)))) == {N0: (), N1: (0, 1, 2, 3)}


def test_a_run_asks_for_as_much_as_its_plan_has_on_nodes_of_that_shape() -> None:
    other = TopologyNode(id=NodeId("old"), path=("r0",), shape="old", num_slots=4, num_free_slots=4)
    plan = replace(plan_of((N0, 4)), layout=ParallelLayout(dp=2, tp=2))
    workload = replace(
        workload_of(),
        queue=QueueWish(team="red", priority="high"),
        placement=(
            PlacementWish(group=RankGroup.GANG, level="rack", required=True),
            PlacementWish(group=RankGroup.TP, level="node", required=True),
        ),
    )
    gang = asked_gang(ONE, plan, workload, replace(TREE, nodes=(*TREE.nodes, other)), excluded=[N1])
    assert (gang.team, gang.priority_class, gang.required_level, gang.preferred_level) == ("red", "high", "rack", None)
    assert (gang.layout, gang.excluded) == (ParallelLayout(dp=2, tp=2), {N1, "old"})


def test_a_run_asks_for_the_part_of_memory_and_network_that_goes_with_its_accelerators() -> None:
    tree = fleet(2, shape="dgx-h100")
    plan = replace(plan_of((tree.nodes[0].id, 4)), node_shape="dgx-h100")
    gang = asked_gang(ONE, plan, workload_of(), tree, excluded=[])
    assert (gang.host_bytes, gang.network_bytes_per_s) == (2**40, pytest.approx(4 * 50e9))
    claim = Claim(gang=gang, num_records=1, since_s=0.0, held={tree.nodes[0].id: (0, 1)})
    assert claim.amounts == Amounts(
        num_accelerators=2.0, host_bytes=2**39, network_bytes_per_s=gang.network_bytes_per_s / 2
    )
    queue = queue_state(state_of(claim), tree, QueueRules(), now_s=20.0)
    assert (queue.totals.host_bytes, queue.running[0].gang.host_bytes) == (2 * 2**41, 2**39)
    assert queue.capacity == Limits()  # nobody is refused for it
    mixed = replace(tree, nodes=(*tree.nodes, replace(tree.nodes[0], id=NodeId("x"), shape="own")))
    assert queue_state(state_of(claim), mixed, QueueRules(), now_s=20.0).totals == Limits()


def test_accelerators_of_helpers_are_asked_for_too() -> None:
    plan = plan_of((N0, 3))
    helper = HelperSlot(role=RoleKind.EVALUATOR, index=0, node=N1, slots=(0, 1))
    plan = replace(plan, placement=Placement(slots=plan.placement.slots, helpers=(helper,)))
    gang = asked_gang(ONE, plan, workload_of(), TREE, excluded=())
    assert gang.num_slots == 5
    assert slots_of(plan.placement) == {N0: (0, 1, 2), N1: (0, 1)}


def test_the_queue_is_told_which_levels_groups_require_and_of_which_groups() -> None:
    helper = HelperSlot(role=RoleKind.EVALUATOR, index=0, node=N1, slots=(2,))
    plan = plan_of((N0, 4), (N1, 4))
    layout = replace(plan.layout, dp=2, tp=2, pp=2, zero_stage=1, num_micro_batches=8)
    plan = replace(plan, layout=layout, placement=replace(plan.placement, helpers=(helper,)))
    kept = (
        PlacementWish(group=RankGroup.PP, level="rack", required=True),
        PlacementWish(group=RankGroup.TP, level="socket", required=True),
    )
    needless = (
        PlacementWish(group=RankGroup.TP, level="node", required=True),
        PlacementWish(group=RankGroup.CP, level="rack", required=True),
        PlacementWish(group=RankGroup.DP, level="rack", required=False),
    )
    gang = asked_gang(ONE, plan, replace(workload_of(), placement=(*kept, *needless)), TREE, excluded=())
    assert (gang.group_levels, gang.layout) == (kept, ParallelLayout(dp=2, tp=2, pp=2))
    assert (gang.num_slots, gang.num_helper_slots) == (9, 1)


def test_a_gang_starts_where_a_plan_keeps_its_groups_and_nowhere_else() -> None:
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    run = workload(
        placement=(wish,),
        parallelism=ParallelismWish(tp=1, cp=1, pp=2),
        capacity=CapacityWish(min_ranks=16, max_ranks=16),
    )
    tree = fleet(6, nodes_per_rack=2)

    def plans_on(tree: TopologyTree) -> tuple[Plan, ...]:
        return search(run, tree, node_shapes(), solver=FleetSolver()).plans

    asked = asked_gang(ONE, plans_on(tree)[0], run, tree, excluded=())
    free = {"n0000": 2, "n0001": 2, "n0002": 2, "n0003": 2, "n0004": 4, "n0005": 4}
    taken = {node: 8 - number for node, number in free.items()}
    for gang, is_started in ((asked, False), (replace(asked, group_levels=()), True)):
        decision = decided(tree, runs_on(queued("x"), taken), waits(gang))
        assert bool(decision.starts) == is_started
        assert all(not plans_on(only(tree, each.held)) for each in decision.starts), "16 are free, but not so"
    (start,) = decided(tree, runs_on(queued("x"), taken | {"n0002": 2, "n0003": 6}), waits(asked)).starts
    assert plans_on(only(tree, start.held))


def test_a_level_of_groups_that_the_tree_does_not_have_keeps_a_gang_out_of_the_queue() -> None:
    claim = claim_of(ONE, {})
    for level, num_waiting in (("rack", 1), ("pod", 0)):
        wish = PlacementWish(group=RankGroup.DP, level=level, required=True)
        asked = replace(claim, gang=replace(claim.gang, group_levels=(wish,)))
        assert len(queue_state(state_of(asked), TREE, QueueRules(), now_s=0.0).waiting) == num_waiting


def test_the_queue_has_whoever_waits_and_whoever_holds_with_what_he_has_saved() -> None:
    state = state_of(
        claim_of(ONE, {N0: (0, 1)}, started_s=5.0, yields_to=TWO, yields_by_s=9.0),
        claim_of(TWO, {}, runs_for_s=60.0),
    )
    queue = queue_state(state, TREE, QueueRules(), now_s=20.0, saved_at=lambda _run: 15.0)
    (running,), (waiting,) = queue.running, queue.waiting
    assert (running.held, running.saved_s, running.yields_to) == ({N0: (0, 1)}, 15.0, TWO)
    assert (waiting.gang.key, waiting.runs_for_s) == (TWO, 60.0)
    assert queue_state(state, TREE, QueueRules(), now_s=20.0).running[0].saved_s == 5.0


@pytest.mark.parametrize(
    ("every_s", "now_s", "next_s"),
    [
        (None, 20.0, None),
        (0.0, 20.0, None),
        (30.0, 0.0, 35.0),
        (30.0, 20.0, 35.0),
        (30.0, 35.0, 35.0),
        (30.0, 36.0, 65.0),
    ],
)
def test_the_next_checkpoint_is_so_many_intervals_after_the_last_one(
    every_s: float | None, now_s: float, next_s: float | None
) -> None:
    assert next_save_s(every_s, since_s=5.0, now_s=now_s) == next_s


def test_words_that_nobody_knows_any_more_break_no_decision() -> None:
    odd = QueuedGang(key=ONE, team="red", priority_class="of-old", required_level="pod")
    state = state_of(
        Claim(gang=odd, num_records=1, since_s=0.0),
        Claim(gang=replace(odd, key=TWO), num_records=1, since_s=0.0, held={N0: (0,)}),
    )
    queue = queue_state(state, TREE, QueueRules(), now_s=20.0)
    assert queue.waiting == ()
    assert queue.running[0].gang.priority_class == "normal"


def test_what_teams_hold_is_added_to_what_they_have_used() -> None:
    before = TeamUsage(team="blue", accelerator_s=100.0, at_s=10.0)
    state = replace(state_of(claim_of(ONE, {N0: (0, 1)})), usage=(before,), decided_at_s=10.0)
    blue, red = used(state, QueueRules(), now_s=20.0)
    assert (blue.team, red.team) == ("blue", "red")
    assert 99.0 < blue.accelerator_s < 100.0
    assert 19.0 < red.accelerator_s < 20.0


def test_what_was_held_since_the_last_decision_counts_for_as_long_as_it_was_held() -> None:
    rules = QueueRules(policy=QueuePolicy(half_life_s=1e9))  # nothing is forgotten meanwhile
    gone = PastHold(run=TWO, team="blue", amounts=Amounts(num_accelerators=4.0), from_s=100.0, until_s=400.0)
    late = claim_of(ONE, {N0: (0, 1)}, started_s=900.0)
    state = replace(state_of(late), past=(gone, replace(gone, from_s=500.0, until_s=600.0)), decided_at_s=50.0)
    blue, red = used(state, rules, now_s=1000.0)
    assert blue.accelerator_s == pytest.approx(4 * (300.0 + 100.0), rel=1e-5)
    assert red.accelerator_s == pytest.approx(2 * 100.0, rel=1e-5)
    half = used(state, QueueRules(policy=QueuePolicy(half_life_s=450.0)), now_s=1000.0)[0]
    assert half.accelerator_s < blue.accelerator_s / 2 < 2 * half.accelerator_s


def test_what_a_run_has_rented_is_charged_to_no_team_and_waiting_costs_nothing() -> None:
    own = claim_of(ONE, {N0: (0, 1)}, started_s=10.0, is_own=True)
    state = replace(state_of(own, claim_of(TWO, {})), decided_at_s=10.0)
    assert [each.accelerator_s for each in used(state, QueueRules(), now_s=1000.0)] == [0.0]


def test_slices_are_shared_out_beside_whole_accelerators_and_count_as_parts_of_one() -> None:
    division = Division(slot=1, kind="mig", slices=(2000, 2001, 2002, 2003), free=(2000, 2001, 2002, 2003))
    node = TopologyNode(
        id=N0, path=(), shape="gpu", num_slots=2, num_free_slots=1, free_slots=(0,), divisions=(division,)
    )
    tree = TopologyTree(levels=(), nodes=(node,))
    asks = QueuedGang(key=RunKey("b"), team="red", priority_class="normal", slices=SliceAsk())
    held = Claim(gang=asks, num_records=1, since_s=0.0, held={N0: (2001,)}, part_ratio=0.25)
    state = GroundState(claims={asks.key: held}, decided_at_s=1.0)
    queue = queue_state(state, tree, QueueRules(), now_s=100.0)
    (running,) = queue.running
    assert (running.held, running.slices) == ({}, SliceHold(node=N0, slot=1, num_slices=1))
    assert queue.sliced == (SlicedSlot(node=N0, slot=1, kind=SliceKind.MIG, num_slices=4),)
    assert left_over(tree, state, run=RunKey("c")).nodes[0].divisions[0].free == (2000, 2002, 2003)
    assert only(tree, held.held).nodes[0].divisions[0].free == (2001,)
    busy = replace(tree, nodes=(replace(node, divisions=(replace(division, free=()),)),))
    alone = as_if_alone(busy).nodes[0]
    assert (alone.divisions[0].free, alone.usable_slot_indexes) == (division.slices, (0,))
    assert slots_of_slices(SliceHold(node=N0, slot=1, num_slices=2), tree, state) == {N0: (2000, 2002)}
    assert part_of(held.held, tree) == 0.25
    assert used(state, QueueRules(), now_s=100.0)[0].accelerator_s == pytest.approx(0.25 * 99.0, rel=0.01)


def test_what_is_listed_whole_here_and_divided_there_is_given_out_one_way_at_a_time() -> None:
    """Two DAGs may list a node otherwise, and an operator may divide an accelerator that a gang has."""
    division = Division(slot=1, kind="time", slices=(2000, 2001), free=(2000, 2001))
    divided = TopologyNode(
        id=N0, path=(), shape="gpu", num_slots=2, num_free_slots=1, free_slots=(0,), divisions=(division,)
    )
    undivided = TopologyNode(id=N0, path=(), shape="gpu", num_slots=2, num_free_slots=2)
    ours, theirs = (TopologyTree(levels=(), nodes=(node,)) for node in (divided, undivided))
    on_whole = claim_of(ONE, {N0: (1,)})
    asks = QueuedGang(key=TWO, team="red", priority_class="normal", slices=SliceAsk())
    on_slice = Claim(gang=asks, num_records=1, since_s=0.0, held={N0: (2000,)}, part_ratio=0.5)
    third = RunKey("ls-cccccccccccccccccccc")
    assert left_over(ours, state_of(on_whole), run=third).nodes[0].divisions[0].free == ()
    assert free_of(left_over(theirs, state_of(on_slice), run=third)) == {N0: (0,)}
    assert queue_state(state_of(on_whole), ours, QueueRules(), now_s=1.0).sliced == ()
    assert free_of(queue_state(state_of(on_slice), theirs, QueueRules(), now_s=1.0).tree) == {N0: (0,)}


def test_links_are_busy_with_what_other_runs_that_hold_slots_put_on_them() -> None:
    tree = fleet(4, nodes_per_rack=2)
    load = NetworkLoad(
        shape="p5.48xlarge",
        step_s=1.0,
        links=(LinkLoad(domains=(("b00", "r001"),), bytes_per_step=1e11, alone_bytes_per_s=2e11),),
    )
    running = claim_of(ONE, {NodeId("n0002"): (0,)}, load=load, dag_id="pretrain")
    waiting = claim_of(TWO, {}, load=load)
    silent = claim_of(RunKey("ls-cccccccccccccccccccc"), {NodeId("n0003"): (0,)})
    state = state_of(running, waiting, silent)
    assert loads_beside(state) == {f"run {ONE} (pretrain)": load}
    assert loads_beside(state, run=ONE) == {}
    assert loads_beside(state_of(replace(running, dag_id=""))) == {f"run {ONE}": load}
    busy = {node.id for node in beside(tree, state).nodes if node.busy_ratios}
    assert busy == {"n0002", "n0003"}
    assert beside(tree, state, run=ONE) == tree
    asked = queue_state(state, tree, QueueRules(), now_s=10.0)
    assert {node.id for node in asked.tree.nodes if node.busy_ratios} == busy
