"""Several engines on one ground, checks before launches, rented nodes, slices and objectives: who is given what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.control.arbiter_ground import Decider, Ground
from airflow_llmsched.control.arbiter_state import GroundState, launch_number
from airflow_llmsched.control.arbiter_watch import summons
from airflow_llmsched.control.commands import ChoosePlan
from airflow_llmsched.control.context import Failed, Succeeded
from airflow_llmsched.control.events import PlanChosen, PlanRefused
from airflow_llmsched.control.journal import JournalRaceError
from airflow_llmsched.domain.fleet import FLEET
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.queue import SliceAsk
from airflow_llmsched.domain.queue_decision import WaitReason
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWeights
from airflow_llmsched.domain.topology import Division, NodeTerms, TopologyTree
from tests.support import shared_house
from tests.support.shared_house import SharedHouse, Tenant, racks, run_of


@pytest.fixture
def house() -> SharedHouse:
    """Two racks of two nodes with two accelerators each."""
    return SharedHouse()


def is_over(*tenants: Tenant) -> bool:
    return all(isinstance(each.outcome, Succeeded | Failed) for each in tenants)


def checked(house: SharedHouse, tenant: Tenant, **others: Any) -> RunKey:
    """Have the checks of a run that has not begun hold the first rack."""
    key, held = run_of("k"), {NodeId("r0n0"): (0, 1), NodeId("r0n1"): (0, 1)}
    claim = house.driver_claim(tenant)
    gang = replace(claim.gang, key=key)
    number = launch_number(AttemptKey(run=key, generation=0, attempt=1))
    house.ground().claim(replace(claim, gang=gang, beside=tenant.key, held=held, num_records=number, **others))
    tenant.checked_as = key
    return key


@pytest.mark.parametrize("priority", [None, "normal"])
def test_a_run_takes_over_what_its_nodes_were_checked_on(house: SharedHouse, priority: str | None) -> None:
    tenant = house.add("a", 4, priority=priority)
    key = checked(house, tenant)
    house.start("b", 4, priority="urgent")
    house.begin(tenant)
    assert house.held()[tenant.key] == {"r0n0", "r0n1"}
    claims = house.claims()
    assert key not in claims.claims
    assert claims.claims[tenant.key].beside is None
    with pytest.raises(JournalRaceError):  # a worker of the checks that stood still
        checked(house, tenant)
    house.until(lambda: is_over(tenant))
    assert isinstance(tenant.outcome, Succeeded)


def test_a_run_whose_checks_were_told_to_make_room_asks_anew(house: SharedHouse) -> None:
    tenant = house.add("a", 4)
    key = checked(house, tenant, yields_to=run_of("u"))
    house.begin(tenant)
    assert key not in house.claims().claims
    assert house.held()[tenant.key]
    house.until(lambda: is_over(tenant))


def test_what_the_checks_of_a_newer_generation_hold_is_not_a_late_workers(house: SharedHouse) -> None:
    tenant = house.add("a", 4)
    key = checked(house, tenant)
    tenant.generation = 1
    house.begin(tenant)
    assert house.held()[key] == {"r0n0", "r0n1"}
    assert house.held()[tenant.key] == {"r1n0", "r1n1"}


def part(tree: TopologyTree, *nodes: str) -> TopologyTree:
    """Return what one engine has of a cluster."""
    return replace(tree, nodes=tuple(node for node in tree.nodes if node.id in nodes))


def waits_in(house: SharedHouse, letter: str, num_slots: int, scope: str) -> RunKey:
    """Have a run wait whose engine has a part of the cluster."""
    tenant = house.add(letter, num_slots)
    house.ground().claim(replace(house.driver_claim(tenant), scope=scope))
    return tenant.key


def decides(house: SharedHouse, scope: str, tree: TopologyTree) -> GroundState:
    ground = Ground(house.store, shared_house.GROUND, clock=house.clock, scope=scope)
    return Decider(ground, rules=house.rules, clock=house.clock).decide(tree)


def test_nobody_is_given_a_node_that_his_own_engine_does_not_have(house: SharedHouse) -> None:
    run = waits_in(house, "a", 4, "right")
    left, right = part(house.engine.topology(), "r0n0", "r0n1"), part(house.engine.topology(), "r0n1", "r1n0")
    state = decides(house, "left", left)
    assert state.claims[run].waits
    assert state.undecided == {run}
    assert summons(state, run, has_gang=False, now_s=house.clock.now_s()) == "the queue has changed"
    state = decides(house, "right", right)
    assert set(state.claims[run].held) == {"r0n1", "r1n0"}
    assert state.undecided == frozenset()


def test_what_is_promised_to_a_run_of_another_part_is_not_given_away_where_the_parts_overlap(
    house: SharedHouse,
) -> None:
    holder, big, small = house.add("h", 2), house.add("b", 4), house.add("s", 4)
    claim = replace(house.driver_claim(holder), scope="right", held={NodeId("r1n0"): (0, 1)}, ends_by_s=1e6)
    house.ground().claim(claim)
    house.ground().claim(replace(house.driver_claim(big), scope="right"))
    right = part(house.engine.topology(), "r0n1", "r1n0")
    assert decides(house, "right", right).claims[big.key].reserved.num_slots == {"r0n1": 2, "r1n0": 2}
    house.ground().claim(replace(house.driver_claim(small), scope="left"))
    state = decides(house, "left", part(house.engine.topology(), "r0n0", "r0n1"))
    assert state.claims[small.key].waits
    assert state.claims[big.key].reserved is not None


def test_a_fleet_gives_a_run_that_names_a_cluster_nodes_of_that_only() -> None:
    nodes = tuple(replace(node, id=NodeId(f"{node.path[0]}/{node.id}")) for node in racks(2, 1).nodes)
    house = SharedHouse(tree=TopologyTree(levels=("rack",), nodes=nodes))
    run = waits_in(house, "a", 2, "r1")
    assert set(decides(house, FLEET, house.engine.topology()).claims[run].held) == {"r1/r1n0"}


def test_what_a_run_has_rented_is_claimed_and_nobody_makes_it_leave(house: SharedHouse) -> None:
    tenant = house.add("a", 4, priority="low")
    rented = part(house.engine.topology(), "r0n0", "r0n1")
    driver = house.driver(tenant)
    command = ChoosePlan(keep=None, excluded=(), first=True, waiting_since_s=None)
    assert isinstance(driver._arbiter.choose(command, rented, is_own=True), PlanChosen)
    assert house.claims().claims[tenant.key].is_own
    urgent = house.start("u", 8, priority="urgent")
    assert house.claims().claims[tenant.key].yields_to is None
    assert "needs 8 accelerators" in urgent.reasons[0]
    other = house.start("b", 4, priority=None)
    assert house.held()[other.key] == {"r1n0", "r1n1"}


def test_a_rented_node_that_another_run_holds_is_waited_for(house: SharedHouse) -> None:
    house.start("b", 8)
    driver = house.driver(house.add("a", 4, priority="urgent"))
    command = ChoosePlan(keep=None, excluded=(), first=True, waiting_since_s=None)
    refused = driver._arbiter.choose(command, part(house.engine.topology(), "r0n0", "r0n1"), is_own=True)
    assert isinstance(refused, PlanRefused)
    assert refused.retry_at_s is not None


@pytest.mark.parametrize(("objective", "makes_room"), [("latency", True), ("cost", False)])
def test_a_deployments_objective_says_whether_work_is_thrown_away_for_a_run_that_goes_first(
    objective: str, makes_room: bool
) -> None:
    house = SharedHouse(rules=QueueRules(objective=QueueWeights(**{objective: 1.0})))
    low = house.start("a", 8, priority="low", num_steps=200, save_every=None)
    for _ in range(60):
        house.turn()
    house.start("b", 4, priority="urgent", num_steps=20)
    assert (house.claims().claims[low.key].yields_to is not None) == makes_room


def test_with_weight_on_reliability_nodes_that_fail_often_are_given_out_last() -> None:
    tree = racks(2, 2)
    often = {"r0n0": NodeTerms(failures_per_hour=0.2), "r0n1": NodeTerms(failures_per_hour=0.2)}
    tree = replace(tree, nodes=tuple(replace(node, terms=often.get(node.id, node.terms)) for node in tree.nodes))
    house = SharedHouse(rules=QueueRules(objective=QueueWeights(reliability=1.0)))
    run = waits_in(house, "a", 4, "")
    assert set(decides(house, "", tree).claims[run].held) == {"r1n0", "r1n1"}


def test_slices_of_one_accelerator_are_given_to_as_many_as_there_are_and_to_nobody_twice(house: SharedHouse) -> None:
    division = Division(slot=1, kind="time", slices=(2000, 2001), free=(2000, 2001))
    nodes = racks(1, 1).nodes
    tree = TopologyTree(
        levels=("rack",),
        nodes=(replace(nodes[0], num_free_slots=1, free_slots=(0,), divisions=(division,)),),
    )
    runs = []
    for letter in "abc":
        claim = house.driver_claim(house.add(letter, 1))
        house.ground().claim(replace(claim, gang=replace(claim.gang, slices=SliceAsk(), layout=ParallelLayout(dp=1))))
        runs.append(claim.gang.key)
    state = decides(house, "", tree)
    assert [dict(state.claims[run].held) for run in runs] == [{"r0n0": (2000,)}, {"r0n0": (2001,)}, {}]
    assert [state.claims[run].part_ratio for run in runs] == [0.5, 0.5, 0.0]
    assert state.claims[runs[2]].wait.reason is WaitReason.NO_SLICE
    house.ground().free(runs[0], num_records=0)
    assert dict(decides(house, "", tree).claims[runs[2]].held) == {"r0n0": (2000,)}
