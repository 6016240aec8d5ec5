"""A successor waits for agents that nobody can see: under partitions, crashes and clears, two gangs never overlap."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Succeeded, Watch
from airflow_llmsched.control.fencing import CLOCK_SKEW_S, KILL_S, LOOK_AGAIN_S
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.sim_house import RUN, SimHouse, tree_of, workload_of
from tests.support.switched_engine import SwitchedEngine

N0 = NodeId("n0")
LEASE_S = 30.0
GRACE_S = 10.0  # of the house's workload


def house_of(num_nodes: int = 3) -> SimHouse:
    house = SimHouse(training=SimTraining(num_steps=60), tree=tree_of(num_nodes), workload=workload_of())
    house.context = replace(house.context, lease_s=LEASE_S)
    return house


def switched(house: SimHouse, *nodes: str, num_nodes: int = 3) -> SwitchedEngine:
    """Give a house an engine that can turn these nodes off."""
    engine = SwitchedEngine(house.world, tree_of(num_nodes), hub=house.hub, checkpoints=house.checkpoints)
    engine.switched = frozenset(map(NodeId, nodes))
    house.engine = engine
    return engine


def awaited(house: SimHouse) -> list[ev.FenceAwaited]:
    return [event for event in house.journal.read() if isinstance(event, ev.FenceAwaited)]


def test_successor_of_a_gang_that_ended_unseen_waits_for_its_lease_grace_and_skew() -> None:
    house = house_of()
    outcome = house.run(before_look=house.when_step(12, lambda: house.engine.partition(N0)))
    assert isinstance(outcome, Succeeded)
    assert house.engine.overlaps == []
    (wait,) = awaited(house)
    assert wait.nodes == (N0,)
    assert wait.until_s >= wait.at_s + LEASE_S + GRACE_S + KILL_S + CLOCK_SKEW_S - 1.0
    first, second = house.driver().attempts()
    assert second.intended_at_s >= wait.until_s
    assert first.status is not None
    assert first.status.unconfirmed_nodes == (N0,)


def test_wait_is_a_measured_stretch_of_the_ledger() -> None:
    house = house_of()
    house.run(before_look=house.when_step(12, lambda: house.engine.partition(N0)))
    (wait,) = awaited(house)
    spans = [span for span in house.driver().spans() if span.start_s <= wait.at_s < span.end_s - 1.0]
    assert {span.bucket for span in spans} <= {Bucket.QUEUE, Bucket.RECOVER}
    assert max(span.end_s for span in spans) >= wait.until_s


def test_gang_whose_end_was_seen_is_not_waited_for() -> None:
    house = house_of()
    assert isinstance(house.run(before_look=house.when_step(12, lambda: house.engine.lose_node(N0))), Succeeded)
    assert awaited(house) == []


def test_without_a_lease_there_is_nothing_to_wait_for() -> None:
    house = house_of()
    house.context = replace(house.context, lease_s=None)
    house.run(before_look=house.when_step(12, lambda: house.engine.partition(N0)))
    assert awaited(house) == []
    assert house.engine.overlaps != []  # which is why the default is to have one


def test_nodes_that_the_engine_proves_off_are_not_waited_for() -> None:
    house = house_of()
    engine = switched(house, "n0")
    outcome = house.run(before_look=house.when_step(12, lambda: engine.partition(N0)))
    assert isinstance(outcome, Succeeded)
    assert awaited(house) == []
    assert engine.num_fenced == 1
    first, second = house.driver().attempts()
    assert first.status is not None
    assert first.status.unconfirmed_nodes == (N0,)
    assert second.intended_at_s <= (first.status.ended_at_s or 0.0) + 5.0
    assert engine.overlaps == []


def test_node_that_the_engine_cannot_prove_off_is_waited_for() -> None:
    house = house_of()
    engine = switched(house, "n1")
    assert isinstance(house.run(before_look=house.when_step(12, lambda: engine.partition(N0))), Succeeded)
    waits = awaited(house)
    assert {wait.nodes for wait in waits} == {(N0,)}
    assert len(waits) > 1, "it is asked again and again"
    _, second = house.driver().attempts()
    assert second.intended_at_s >= waits[0].until_s
    assert engine.num_fenced == 0
    assert engine.overlaps == []


def test_node_that_is_proven_off_while_it_is_waited_for_is_waited_for_no_longer() -> None:
    """A cloud takes a minute to turn off what it takes: its word counts from when it comes."""
    house = house_of()
    house.context = replace(house.context, lease_s=600.0)
    engine = switched(house)
    outcome = waiting(house)
    (wait,) = awaited(house)
    engine.switched = frozenset({N0})
    assert outcome.state.wake_at_s == pytest.approx(wait.at_s + LOOK_AGAIN_S)
    house.clock.sleep(LOOK_AGAIN_S)
    again = house.driver().handle(ev.Woke(at_s=house.clock.now_s()))
    assert isinstance(again, Watch)
    assert again.state.handle is not None, "it was launched at once"
    assert house.clock.now_s() < wait.until_s - 500.0
    assert engine.overlaps == []


def test_end_that_the_engine_confirms_later_is_not_waited_for_any_more() -> None:
    house = house_of()
    engine = switched(house)
    waiting(house)
    engine.switched = frozenset({N0})
    again = house.driver(generation=1).start()  # a clear: it plans anew, with the first gang's channel still on record
    assert isinstance(again, Watch)
    assert again.state.handle is not None, "it was launched at once"
    assert engine.overlaps == []


def waiting(house: SimHouse) -> Watch:
    """Run until the successor has to wait."""
    outcome = house.driver().start()
    look = house.when_step(12, lambda: house.engine.partition(N0))
    while not awaited(house):
        assert isinstance(outcome, Watch)
        outcome = house.driver().handle(house.watched(outcome, before_look=look))
    assert isinstance(outcome, Watch)
    return outcome


def test_worker_that_died_while_waiting_forgets_nothing() -> None:
    house = house_of()
    before = waiting(house)
    again = house.driver().start()
    assert isinstance(again, Watch)
    assert again.state.wake_at_s == before.state.wake_at_s
    assert house.driver().state().phase is RunPhase.WAITING


def test_clear_while_waiting_waits_on() -> None:
    house = house_of()
    before = waiting(house)
    cleared = house.driver(generation=1).start()
    assert isinstance(cleared, Watch)
    assert cleared.state.handle is None
    assert cleared.state.wake_at_s == before.state.wake_at_s
    assert isinstance(house.finish(cleared, generation=1), Succeeded)
    assert house.engine.overlaps == []


def test_wake_that_comes_too_early_is_sent_back() -> None:
    house = house_of()
    before = waiting(house)
    again = house.driver().handle(ev.Woke(at_s=house.clock.now_s()))
    assert isinstance(again, Watch)
    assert again.state.wake_at_s == before.state.wake_at_s


def test_lease_that_cannot_be_revoked_lets_nothing_start() -> None:
    house = house_of()
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)
    house.clock.sleep(5.0)
    house.engine.partition(N0)
    event = house.watched(outcome)
    house.hub.blind(for_s=10_000.0)
    with pytest.raises(CouldNotLookError):
        house.driver(max_look_errors=1).handle(event)
    assert len(house.driver().attempts()) == 1


def test_stale_watcher_that_goes_on_renewing_keeps_no_zombie_alive() -> None:
    house = house_of()
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)
    house.clock.sleep(5.0)
    house.engine.partition(N0, heals_after_s=1.0)
    outcome = house.driver().handle(house.watched(outcome))
    assert len(awaited(house)) == 1
    root = house.driver().attempts()[0].channel_root
    assert isinstance(outcome, Watch)
    while house.clock.now_s() < (outcome.state.wake_at_s or 0.0):
        house.clock.sleep(5.0)
        house.hub.open(root).renew(until_s=house.clock.now_s() + LEASE_S)
    assert isinstance(house.finish(outcome), Succeeded)
    assert house.engine.overlaps == []


PARTITIONS = st.lists(
    st.tuples(
        st.integers(2, 55),  # at this step
        st.sampled_from(["n0", "n1", "n2", "n3"]),
        st.one_of(st.none(), st.floats(0.5, 200.0)),  # back after
        st.floats(-CLOCK_SKEW_S, CLOCK_SKEW_S),  # its clock is ahead by
    ),
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(
    partitions=PARTITIONS,
    handoff_s=st.floats(0.0, 120.0),
    crashes=st.sets(st.integers(1, 12), max_size=4),
    clears=st.sets(st.integers(1, 8), max_size=2),
    world=st.tuples(st.integers(0, 3), st.sets(st.sampled_from(["n0", "n1", "n2"]))),  # seed; nodes with a switch
)
def test_ranks_of_two_gangs_are_never_alive_at_once(
    partitions: list[tuple[int, str, float | None, float]],
    handoff_s: float,
    crashes: set[int],
    clears: set[int],
    world: tuple[int, set[str]],
) -> None:
    seed, off = world
    house = SimHouse(training=SimTraining(num_steps=60), tree=tree_of(5), workload=workload_of(), seed=seed)
    house.context = replace(house.context, lease_s=LEASE_S, handoff_limit_s=200.0, capacity_wait_s=600.0)
    switched(house, *off, num_nodes=5)
    due = sorted(partitions, key=lambda each: each[0])

    def look() -> None:
        attempts = house.driver().attempts()
        steps = house.steps_of(attempts[-1].channel_root) if attempts else []
        while due and max(steps, default=0) >= due[0][0]:
            _, node, heals_after_s, offset_s = due.pop(0)
            house.engine.partition(NodeId(node), heals_after_s=heals_after_s, clock_offset_s=offset_s)

    house.run_through(before_look=look, handoff_s=handoff_s, crashes=crashes, clears=clears)
    assert house.engine.overlaps == []
    assert len(house.engine.live(RUN)) <= 1
