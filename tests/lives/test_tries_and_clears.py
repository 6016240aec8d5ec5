"""Retries, clears and cancels: whose the run is, and what is left alone."""

from __future__ import annotations

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Succeeded, Watch
from airflow_llmsched.control.faults import fault_of
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.sim.scripts import RankFails
from tests.support.crashing import WorkerDied
from tests.support.sim_house import RUN, SimHouse, workload_of

N1 = NodeId("n1")


def test_retry_of_a_finished_run_does_not_train_again() -> None:
    house = SimHouse()
    house.run(owner="try-1")
    again = house.driver(owner="try-2").start()
    assert isinstance(again, Succeeded)
    assert again.last_step == 40
    assert len(house.driver().attempts()) == 1


def test_retry_of_a_failed_run_launches_again_with_whole_budgets() -> None:
    """Field case A11."""
    house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=0)))
    house.engine.faults = [RankFails(at_step=15)]
    assert isinstance(house.run(), Failed)
    outcome = house.run()
    assert isinstance(outcome, Succeeded)
    first, second = house.driver().attempts()
    assert (first.key.attempt, second.key.attempt) == (1, 2)
    assert second.resumed_from is not None
    assert second.resumed_from.step == 10


def test_clear_stops_the_old_generation_before_it_launches_its_own() -> None:
    house = SimHouse()
    house.driver(owner="try-1").start()
    house.clock.sleep(20.0)
    (old,) = house.live()
    outcome = house.driver(generation=2, owner="try-2").start()
    assert isinstance(outcome, Watch)
    (new,) = house.live()
    assert (old.key.generation, new.key.generation) == (1, 2)
    assert isinstance(house.finish(outcome, generation=2, owner="try-2"), Succeeded)
    assert house.max_live == 1


def test_late_worker_of_an_old_generation_touches_nothing() -> None:
    house = SimHouse()
    old = house.driver(owner="try-1")
    old.start()
    house.driver(generation=2, owner="try-2").start()
    before = house.kinds()
    assert not old.cancel("killed")
    late = old.start()
    assert isinstance(late, Failed)
    assert "superseded" in late.reason
    assert house.kinds() == before
    assert len(house.live()) == 1


def test_cancel_that_a_worker_did_not_live_to_finish_is_finished_by_the_next_try_which_begins_anew() -> None:
    """As after a cancel that was finished: a clear ends the generation, wherever the worker was killed meanwhile."""
    house = SimHouse()
    house.driver(owner="try-1").start()
    house.clock.sleep(10.0)

    def die(_key: str) -> None:
        raise WorkerDied

    house.store.after_create = die
    with pytest.raises(WorkerDied):
        house.driver(owner="try-1").cancel("cleared")
    house.store.after_create = lambda _key: None
    assert house.driver().state().phase is RunPhase.CANCELLING
    (old,) = house.live()
    outcome = house.driver(owner="try-2").start()
    (new,) = house.live()
    assert (old.key.generation, new.key.generation) == (1, 2)
    assert isinstance(house.finish(outcome, owner="try-2"), Succeeded)
    assert house.kinds().count("run_cancelled") == 1
    assert house.max_live == 1


def test_cancel_records_before_it_stops_and_ends_the_generation() -> None:
    house = SimHouse()
    driver = house.driver(owner="try-1")
    driver.start()
    house.clock.sleep(10.0)
    assert driver.cancel("marked failed")
    assert house.live() == ()
    assert house.kinds()[-2:] == ["cancel_requested", "run_cancelled"]
    assert not driver.cancel("again")


def test_cancel_of_an_earlier_try_leaves_the_adopter_alone() -> None:
    house = SimHouse()
    first = house.driver(owner="try-1")
    first.start()
    house.driver(owner="try-2").start()
    assert not first.cancel("late on_kill of the old trigger")
    assert len(house.live()) == 1


def test_start_after_a_cancel_is_a_new_generation_even_with_the_same_count() -> None:
    house = SimHouse()
    driver = house.driver(owner="try-1")
    driver.start()
    house.clock.sleep(25.0)
    driver.cancel("cleared while running")
    outcome = house.run(owner="try-2")
    assert isinstance(outcome, Succeeded)
    first, second = house.driver().attempts()
    assert (first.key.generation, second.key.generation) == (1, 2)
    assert second.resumed_from is not None
    assert house.max_live == 1


def test_event_handed_over_after_a_cancel_reports_the_cancel() -> None:
    house = SimHouse()
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)
    house.driver().cancel("marked failed")
    result = house.finish(outcome)
    assert isinstance(result, Failed)
    assert result.cancelled
    assert "marked failed" in result.reason


def test_event_of_an_earlier_attempt_is_ignored() -> None:
    house = SimHouse()
    house.engine.faults = [RankFails(at_step=12)]
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)
    stale = ev.GangEnded(
        at_s=house.clock.now_s(),
        key=AttemptKey(run=RUN, generation=1, attempt=7),
        status=GangStatus(phase=GangPhase.LOST, observed_at_s=house.clock.now_s()),
        fault=None,
    )
    assert house.driver().handle(stale) == outcome
    assert isinstance(house.finish(outcome), Succeeded)


def test_handling_one_event_twice_launches_one_successor() -> None:
    house = SimHouse()
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)
    house.engine.lose_node(N1)
    assert outcome.state.handle is not None
    status = house.engine.poll([outcome.state.handle])[outcome.state.handle]
    event = ev.GangEnded(
        at_s=house.clock.now_s(),
        key=outcome.state.handle.key,
        status=status,
        fault=fault_of(status, last_step=None, num_steps=40),
    )
    first = house.driver().handle(event)
    assert house.driver().handle(event) == first
    assert len(house.driver().attempts()) == 2
    assert len(house.live()) == 1
