"""Runs that share one engine: who holds what, who makes room, and who resumes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control import effects
from airflow_llmsched.control.arbiter_ground import Decider, Ground
from airflow_llmsched.control.arbiter_state import ABSENT_S, Claimed, GroundState, Led, QueueLease
from airflow_llmsched.control.context import Failed, Succeeded, Watch
from airflow_llmsched.control.journal import Journal, JournalRaceError
from airflow_llmsched.control.planning import MAX_CAPACITY_POLL_S
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.decision import Migrate
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.queue import Limits, PriorityClass, QueuePolicy, Reclaim, TeamQuota
from airflow_llmsched.domain.queue_rules import DEFAULT_CLASSES, QueueRules
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import StoreError
from tests.support import shared_house
from tests.support.shared_house import SharedHouse, Tenant, planner_of, racks


@pytest.fixture
def house() -> SharedHouse:
    """Two racks of two nodes with two accelerators each."""
    return SharedHouse()


def is_over(*tenants: Tenant) -> bool:
    return all(isinstance(each.outcome, Succeeded | Failed) for each in tenants)


def trains(house: SharedHouse, tenant: Tenant) -> bool:
    return house.state(tenant).phase is RunPhase.WATCHING


def planned_step_s(house: SharedHouse, tenant: Tenant) -> float:
    plan = house.state(tenant).plan
    assert plan is not None
    return plan.prediction.step_s


def kinds(house: SharedHouse, tenant: Tenant) -> list[str]:
    return [event.kind for event in Journal(house.store, tenant.key).read()]


def quota(team: str, num_accelerators: float, **others: object) -> TeamQuota:
    return TeamQuota(team=team, nominal=Limits(num_accelerators=num_accelerators), **others)  # type: ignore[arg-type]


def test_runs_that_fit_beside_one_another_hold_what_they_train_on_and_give_it_back(house: SharedHouse) -> None:
    one, two = house.start("a", 4), house.start("b", 4)
    assert house.held() == {one.key: {"r0n0", "r0n1"}, two.key: {"r1n0", "r1n1"}}
    saves_every_s = one.training.checkpoint_interval_steps * planned_step_s(house, one)
    assert house.claims().claims[one.key].saves_every_s == saves_every_s > 0
    house.until(lambda: is_over(one, two))
    assert isinstance(one.outcome, Succeeded)
    assert isinstance(two.outcome, Succeeded)
    assert house.claims().claims == {}


def test_a_run_without_a_place_waits_with_a_reason_and_an_estimate_and_starts_when_there_is_one(
    house: SharedHouse,
) -> None:
    first, second = house.start("a", 8), house.start("b", 8)
    assert house.state(second).phase is RunPhase.WAITING
    assert "capacity" in second.reasons[0]
    assert "needs 8 accelerators" in second.reasons[0]
    assert " UTC" in second.reasons[0]
    house.until(lambda: is_over(first))
    house.until(lambda: trains(house, second), limit_s=5.0)
    house.until(lambda: is_over(second))
    waited_s = sum(span.end_s - span.start_s for span in house.driver(second).spans() if span.bucket is Bucket.QUEUE)
    assert waited_s > 50.0


def test_an_urgent_run_has_one_victim_yield_exactly_one_rack_and_the_victim_resumes_by_itself(
    house: SharedHouse,
) -> None:
    one, two = house.start("a", 4, num_steps=200), house.start("b", 4, num_steps=200)
    house.until(lambda: house.clock.now_s() > house.state(one).launched_at_s + 30.0)
    urgent = house.start("c", 4, priority="urgent", num_steps=50)
    assert (
        f"waits until {one.key} has left" in urgent.reasons[0] or f"waits until {two.key} has left" in urgent.reasons[0]
    )
    house.until(lambda: trains(house, urgent), limit_s=60.0)
    victim, other = (one, two) if "yield_ordered" in kinds(house, one) else (two, one)
    racks_of_urgent = {node[:2] for node in house.held()[urgent.key]}
    assert len(racks_of_urgent) == 1
    assert house.state(victim).phase is RunPhase.WAITING
    assert "yield_ordered" not in kinds(house, other)
    assert trains(house, other)
    saved_step = house.state(victim).newest.step
    house.until(lambda: is_over(one, two, urgent))
    assert all(isinstance(each.outcome, Succeeded) for each in (one, two, urgent))
    assert isinstance(victim.outcome, Succeeded)
    assert victim.outcome.num_attempts == 2
    resumed = house.steps(victim)[1]
    assert resumed[0] == saved_step + 1
    assert isinstance(other.outcome, Succeeded)
    assert other.outcome.num_attempts == 1


def test_whoever_has_lost_least_since_he_last_saved_makes_room(house: SharedHouse) -> None:
    rare, often = house.start("a", 4, save_every=None), house.start("b", 4, save_every=5)
    for _ in range(60):
        house.turn()
    house.start("c", 4, priority="high")
    house.until(lambda: "yield_ordered" in kinds(house, rare) + kinds(house, often))
    assert "yield_ordered" in kinds(house, often)


def test_a_run_of_the_same_class_never_makes_anybody_leave(house: SharedHouse) -> None:
    first = house.start("a", 8)
    second = house.start("b", 8)
    house.until(lambda: is_over(first))
    assert "yield_ordered" not in kinds(house, first)
    assert second.reasons


def test_a_run_that_has_just_started_is_protected_as_its_class_says() -> None:
    classes = tuple(replace(each, protected_s=45.0) if each.name == "normal" else each for each in DEFAULT_CLASSES)
    house = SharedHouse(rules=QueueRules(classes=classes))
    first = house.start("a", 8, num_steps=400)
    begun_s = house.clock.now_s()
    urgent = house.start("b", 8, priority="urgent", num_steps=20)
    house.until(lambda: trains(house, urgent))
    assert house.clock.now_s() >= begun_s + 45.0
    assert "yield_ordered" in kinds(house, first)


def test_teams_keep_to_their_quotas() -> None:
    house = SharedHouse(rules=QueueRules(quotas=(quota("red", 4), quota("blue", 4))))
    one, two = house.start("a", 4, team="red"), house.start("b", 4, team="red")
    assert "team_quota" in two.reasons[0]
    other = house.start("c", 4, team="blue")
    assert trains(house, other)
    house.until(lambda: is_over(one))
    house.until(lambda: trains(house, two), limit_s=5.0)


def test_what_was_borrowed_is_taken_back_where_the_lender_says_so() -> None:
    quotas = (
        quota("red", 4, cohort="lab", reclaim=Reclaim.ANY),
        quota("blue", 4, cohort="lab", reclaim=Reclaim.ANY),
    )
    house = SharedHouse(rules=QueueRules(quotas=quotas))
    one, borrows = house.start("a", 4, team="red"), house.start("b", 4, team="red")
    assert trains(house, borrows)
    owner = house.start("c", 4, team="blue")
    house.until(lambda: trains(house, owner))
    assert [trains(house, one), trains(house, borrows)].count(True) == 1


def test_a_run_that_asks_for_more_than_its_team_may_have_fails_at_once() -> None:
    house = SharedHouse(rules=QueueRules(quotas=(quota("red", 4),)))
    tenant = house.start("a", 8, team="red")
    assert isinstance(tenant.outcome, Failed)
    assert "over_quota" in tenant.outcome.reason
    assert house.claims().claims == {}


@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        ({"priority": "highest"}, "no class 'highest'; the fleet file has low, normal, high, urgent"),
        ({"team": "green"}, "no team 'green'; the fleet file has red"),
    ],
)
def test_words_that_the_rules_do_not_know_fail_the_run_with_those_they_do(
    wishes: dict[str, str], complaint: str
) -> None:
    house = SharedHouse(rules=QueueRules(quotas=(quota("red", 4),)))
    tenant = house.start("a", 2, **{"team": "red", **wishes})
    assert isinstance(tenant.outcome, Failed)
    assert complaint in tenant.outcome.reason


def test_a_run_without_a_queue_block_plans_on_what_is_left_in_whatever_size_fits(house: SharedHouse) -> None:
    house.start("a", 6, num_steps=400)
    small = house.start("b", 8, priority=None, fewest=2)
    assert house.held()[small.key] == {"r1n1"}
    nothing = house.start("c", 8, priority=None, fewest=2)
    assert house.state(nothing).phase is RunPhase.WAITING
    assert "no legal plan fits 0 free slots" in house.state(nothing).reason
    assert nothing.key not in house.claims().claims
    house.until(lambda: is_over(small))
    house.until(lambda: trains(house, nothing))


def test_a_run_without_a_queue_block_leaves_alone_what_is_kept_for_others(house: SharedHouse) -> None:
    holder = house.start("a", 4, num_steps=400)
    waiting = house.start("b", 8)
    assert house.state(waiting).phase is RunPhase.WAITING
    plain = house.start("c", 4, priority=None)
    assert house.state(plain).phase is RunPhase.WAITING
    house.until(lambda: is_over(holder))
    house.until(lambda: trains(house, waiting))


def test_a_run_without_a_queue_block_waits_its_turn_once_it_has_made_room(house: SharedHouse) -> None:
    plain = house.start("a", 8, priority=None, num_steps=200)
    urgent = house.start("b", 8, priority="urgent", num_steps=50)
    house.until(lambda: trains(house, urgent))
    house.until(lambda: is_over(plain, urgent))
    assert isinstance(plain.outcome, Succeeded)
    assert plain.outcome.num_attempts == 2


def test_a_run_that_lost_a_node_goes_on_with_what_works_in_the_queue(house: SharedHouse) -> None:
    tenant = house.start("a", 8, num_steps=200, fewest=2)
    house.until(lambda: house.clock.now_s() > house.state(tenant).launched_at_s + 30.0)
    house.engine.lose_node(NodeId("r0n0"))
    house.until(lambda: house.state(tenant).attempt == 2)
    assert house.held()[tenant.key] == {"r0n1", "r1n0", "r1n1"}
    house.until(lambda: is_over(tenant))
    assert isinstance(tenant.outcome, Succeeded)


def test_a_run_that_fails_while_it_waits_or_yields_leaves_no_claim(house: SharedHouse) -> None:
    holder = house.start("a", 8, num_steps=400)
    waiting = house.start("b", 8)
    assert house.driver(waiting).cancel("marked failed")
    waiting.outcome = None
    assert set(house.claims().claims) == {holder.key}
    urgent = house.start("c", 8, priority="urgent")
    assert house.claims().claims[holder.key].yields_to == urgent.key
    assert house.driver(holder).cancel("marked failed")
    holder.outcome = None
    house.until(lambda: trains(house, urgent), limit_s=30.0)
    assert set(house.claims().claims) == {urgent.key}


def test_a_run_that_is_cleared_while_it_waits_keeps_to_one_claim(house: SharedHouse) -> None:
    holder = house.start("a", 8)
    waiting = house.start("b", 8)
    waiting.generation, waiting.owner = 1, "try-2"
    house.begin(waiting)
    assert set(house.claims().claims) == {holder.key, waiting.key}
    house.until(lambda: is_over(holder, waiting))
    assert isinstance(waiting.outcome, Succeeded)


def test_a_victim_whose_beneficiary_is_gone_before_it_obeys_stays(house: SharedHouse) -> None:
    holder = house.start("a", 8)
    urgent = house.start("b", 8, priority="urgent")
    assert house.claims().claims[holder.key].yields_to == urgent.key
    house.release(urgent)
    urgent.outcome = None
    house.until(lambda: is_over(holder))
    assert "yield_ordered" not in kinds(house, holder)


def test_a_teardown_frees_what_its_run_holds_and_whoever_waits_sees_to_the_rest(house: SharedHouse) -> None:
    holder = house.start("a", 8, num_steps=400)
    waiting = house.start("b", 8)
    house.release(holder)
    holder.outcome = None
    assert set(house.claims().claims) == {waiting.key}
    house.until(lambda: trains(house, waiting), limit_s=5.0)


def test_a_worker_that_stood_still_claims_nothing_for_a_run_that_is_over(house: SharedHouse) -> None:
    tenant = house.add("a", 4)
    late = house.driver(tenant)
    create = house.store.create

    def stand_still(key: str, data: bytes) -> None:
        if key.startswith("arbiter/"):
            house.store.create = create  # type: ignore[method-assign]
            house.release(tenant)
        create(key, data)

    house.store.create = stand_still  # type: ignore[method-assign]
    outcome = late.start()
    assert isinstance(outcome, Failed)
    assert house.claims().claims == {}
    assert house.engine.live(tenant.key) == ()


def test_a_worker_that_was_overtaken_gives_nothing_back_of_what_its_successor_holds(house: SharedHouse) -> None:
    tenant = house.start("a", 4)
    claim = house.claims().claims[tenant.key]
    house.ground().free(tenant.key, num_records=claim.num_records - 1)
    assert tenant.key in house.claims().claims
    with pytest.raises(JournalRaceError, match="moved on"):
        house.ground().claim(replace(claim, num_records=claim.num_records - 1, held={}))


def test_while_somebody_else_is_about_to_decide_a_run_waits_for_that_and_no_longer_than_his_lease(
    house: SharedHouse,
) -> None:
    lease = QueueLease(holder="frozen", until_s=house.clock.now_s() + 30.0)
    house.ground().change(lambda _state: Led(lease=lease))
    tenant = house.start("a", 4)
    assert house.state(tenant).phase is RunPhase.WAITING
    assert tenant.reasons == ["waits in the queue"]
    began_s = house.clock.now_s()
    house.until(lambda: trains(house, tenant))
    assert 30.0 <= house.clock.now_s() - began_s <= 32.0


def test_a_frozen_holder_of_the_lease_decides_nothing_once_another_has(house: SharedHouse) -> None:
    holder = house.start("a", 8, num_steps=30)
    frozen = house.decider()
    house.until(lambda: is_over(holder))
    tenant = house.add("b", 8)
    create, stood_still = house.store.create, []

    def stand_still(key: str, data: bytes) -> None:
        if key.startswith("arbiter/") and b'"decided"' in data and not stood_still:
            stood_still.append(key)
            house.clock.sleep(60.0)
            house.begin(tenant)  # takes the lease over, decides, and launches
            house.turn()
        create(key, data)

    waiting = house.add("c", 8)
    claim = replace(house.driver_claim(waiting), since_s=house.clock.now_s())
    house.ground().change(lambda _state: Claimed(claim=claim))
    house.store.create = stand_still  # type: ignore[method-assign]
    state = frozen.decide(house.engine.topology())
    assert stood_still
    assert state.lease is None
    assert [key for key, each in state.claims.items() if each.held] in ([waiting.key], [tenant.key])
    house.check()


def test_a_store_that_fails_where_it_is_decided_who_gets_what_was_freed_fails_no_run(house: SharedHouse) -> None:
    holder = house.start("a", 8, num_steps=30)
    waiting = house.start("b", 8)
    create = house.store.create

    def refuse(key: str, data: bytes) -> None:
        if key.startswith("arbiter/") and b'"led"' in data:
            raise StoreError("full")
        create(key, data)

    house.store.create = refuse  # type: ignore[method-assign]
    deferred, waiting.outcome = waiting.outcome, None
    house.until(lambda: is_over(holder))
    assert isinstance(holder.outcome, Succeeded)
    house.store.create = create  # type: ignore[method-assign]
    waiting.outcome = deferred
    house.until(lambda: trains(house, waiting), limit_s=5.0)


def test_a_run_gives_up_once_it_has_waited_for_as_long_as_it_wants(house: SharedHouse) -> None:
    holder = house.start("a", 8, num_steps=400)
    tenant = house.add("b", 8)
    assert tenant.wish is not None
    tenant.wish = replace(tenant.wish, max_wait_s=90.0)
    house.begin(tenant)
    house.until(lambda: is_over(tenant), limit_s=200.0)
    assert isinstance(tenant.outcome, Failed)
    assert "waited 90 s" in tenant.outcome.reason
    assert set(house.claims().claims) == {holder.key}


def test_whoever_starves_goes_before_all_classes() -> None:
    house = SharedHouse(rules=QueueRules(policy=QueuePolicy(starving_after_s=50.0)))
    first = house.start("a", 8, num_steps=200)
    low = house.start("b", 8, priority="low", num_steps=20)
    for _ in range(60):
        house.turn()
    normal = house.start("c", 8, num_steps=20)
    house.until(lambda: is_over(first))
    house.until(lambda: is_over(low))
    assert isinstance(normal.outcome, Watch)


def test_many_runs_of_all_sizes_and_classes_all_come_to_their_turn() -> None:
    house = SharedHouse(racks(3, 2), rules=QueueRules(quotas=(quota("red", 8), quota("blue", 8))))
    sizes = [2, 4, 8, 1, 6, 4, 2, 3, 8, 4]
    priorities = ["low", "normal", "high", "normal", "urgent"]
    tenants = []
    for number, size in enumerate(sizes):
        team = ("red", "blue")[number % 2]
        tenants.append(
            house.start("abcdefghij"[number], size, priority=priorities[number % 5], team=team, num_steps=60)
        )
        for _ in range(7):
            house.turn()
    house.until(lambda: is_over(*tenants), limit_s=4000.0)
    assert all(isinstance(each.outcome, Succeeded) for each in tenants), house.story()
    assert house.claims().claims == {}


def test_a_class_that_may_not_preempt_waits_behind_lower_ones() -> None:
    classes = (PriorityClass(name="normal", priority=0), PriorityClass(name="calm", priority=10, may_preempt=False))
    house = SharedHouse(rules=QueueRules(classes=classes))
    first, calm = house.start("a", 8), house.start("b", 8, priority="calm")
    house.until(lambda: is_over(first))
    assert "yield_ordered" not in kinds(house, first)
    house.until(lambda: trains(house, calm), limit_s=5.0)


@pytest.mark.parametrize("priority", [None, "normal"])
def test_a_run_that_waits_for_a_fence_is_not_called_for_what_it_holds(house: SharedHouse, priority: str | None) -> None:
    tenant = house.start("a", 8, num_steps=200, fewest=2, priority=priority)
    house.until(lambda: house.clock.now_s() > house.state(tenant).launched_at_s + 30.0)
    house.engine.partition(NodeId("r0n0"))
    house.until(lambda: house.state(tenant).attempt == 2)
    assert "fence_awaited" in kinds(house, tenant)
    assert kinds(house, tenant).count("woke") == 1


def test_a_run_that_gets_what_no_plan_fits_leaves_it_to_others_and_gives_up_in_time(
    house: SharedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_the_whole_only(workload: WorkloadSpec, tree: TopologyTree, excluded: frozenset[NodeId]) -> PlanSearch:
        found = planner_of(1)(workload, tree, excluded)
        return found if len(tree.nodes) == 4 else replace(found, plans=())

    with monkeypatch.context() as patched:
        patched.setattr(shared_house, "planner_of", lambda *_args, **_others: of_the_whole_only)
        tenant = house.start("a", 1)
    assert "no plan fits there" in house.state(tenant).reason
    assert tenant.key not in house.claims().claims
    assert trains(house, house.start("b", 8, num_steps=5))
    with monkeypatch.context() as patched:
        patched.setattr(shared_house, "planner_of", lambda *_args, **_others: of_the_whole_only)
        house.until(lambda: isinstance(tenant.outcome, Failed), limit_s=2 * 3600.0)
    assert kinds(house, tenant).count("woke") < 40


def test_an_order_that_comes_while_the_run_plans_anew_on_what_it_holds_is_obeyed(house: SharedHouse) -> None:
    holder, urgent = house.start("a", 8, num_steps=2000), house.add("b", 8, priority="urgent", num_steps=20)
    house.turn()
    create = house.store.create

    def be_late(key: str, data: bytes) -> None:
        if key.startswith("arbiter/") and b'"claimed"' in data:
            house.store.create = create  # type: ignore[method-assign]
            house.begin(urgent)
        create(key, data)

    house.store.create = be_late  # type: ignore[method-assign]
    handle = house.state(holder).handle
    assert handle is not None
    house.engine.lose_part(handle, NodeId("r0n0"))
    house.until(lambda: urgent.outcome is not None)
    house.until(lambda: trains(house, urgent), limit_s=5.0)
    assert house.state(holder).attempt == 1


def test_a_run_asks_for_nodes_that_failed_before_where_there_is_no_plan_without(
    house: SharedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = house.start("a", 8, num_steps=200)
    house.engine.lose_node(NodeId("r0n0"), return_after_s=10.0)
    decision = Migrate(reason="again on node r0n0", excluded=(NodeId("r0n0"),))
    monkeypatch.setattr(effects, "decide", lambda *_args: decision)
    house.until(lambda: house.state(tenant).excluded != ())
    house.until(lambda: house.state(tenant).attempt == 2, limit_s=600.0)
    assert len(house.held()[tenant.key]) == 4


def test_whoever_does_not_leave_long_after_he_was_told_to_is_not_counted_on() -> None:
    house = SharedHouse()
    lost, other = house.start("a", 4, num_steps=5000), house.start("b", 4, num_steps=5000, save_every=None)
    house.turn(30.0)
    urgent = house.start("c", 4, priority="urgent", num_steps=2000)
    assert house.claims().claims[lost.key].yields_to == urgent.key
    lost.outcome = None  # whoever looked after it is gone, and so is its lease
    house.until(lambda: trains(house, urgent), limit_s=1500.0)
    assert "yield_ordered" in kinds(house, other)


def test_a_queue_that_cannot_be_decided_keeps_no_run_from_its_end(
    house: SharedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = house.start("a", 8, num_steps=30)
    waiting = house.start("b", 8)
    waiting.outcome = None

    def fail(_decider: Decider, _tree: TopologyTree) -> GroundState:
        raise ValueError("what nobody foresaw")

    monkeypatch.setattr(Decider, "decide", fail)
    house.until(lambda: is_over(holder))
    assert isinstance(holder.outcome, Succeeded)
    assert set(house.claims().claims) == {waiting.key}


def test_a_run_whose_records_were_deleted_says_why_it_cannot_claim(house: SharedHouse) -> None:
    tenant = house.start("a", 4, num_steps=20)
    house.until(lambda: is_over(tenant))
    for each in list(house.store.list(f"runs/{tenant.key}/")):
        house.store.delete(each.key)
    with pytest.raises(JournalRaceError, match="its records in the state root were deleted"):
        house.begin(tenant)


def test_what_a_run_is_given_and_does_not_come_for_goes_to_others_until_it_comes(house: SharedHouse) -> None:
    """Its DAG is paused, or its DAG run was deleted: nobody tells."""
    holder = house.start("a", 8, num_steps=10_000)
    house.until(lambda: trains(house, holder))
    urgent = house.start("b", 8, priority="urgent")
    outcome, urgent.outcome = urgent.outcome, None
    house.until(lambda: house.claims().claims[urgent.key].held != {})
    began_s = house.clock.now_s()
    house.until(lambda: trains(house, holder))
    assert ABSENT_S < house.clock.now_s() - began_s < ABSENT_S + MAX_CAPACITY_POLL_S + 10.0
    urgent.outcome = outcome
    house.until(lambda: trains(house, urgent))


def test_nobody_leaves_for_a_run_that_no_longer_comes(house: SharedHouse) -> None:
    house.start("a", 8, priority="urgent", num_steps=2_000)
    gone = house.start("b", 8, priority="urgent")
    waiting = house.start("c", 8, priority="low")
    gone.outcome = None
    house.until(lambda: trains(house, waiting), limit_s=5000.0)
    assert house.claims().claims[gone.key].waits
    assert "yield_ordered" not in kinds(house, waiting)


@pytest.mark.parametrize("priority", ["normal", None])
def test_a_run_plans_on_nothing_that_its_claims_do_not_share_out(house: SharedHouse, priority: str | None) -> None:
    """Its DAG's list of hosts was changed, and has some now that another ground has."""
    lacks = frozenset({NodeId("r0n0"), NodeId("r1n1")})
    ground = Ground(house.store, shared_house.GROUND, clock=house.clock, lacks=lacks)
    house.ground = lambda: ground  # type: ignore[method-assign]
    tenant = house.start("a", 4, priority=priority)
    assert house.held() == {tenant.key: {"r0n1", "r1n0"}}
