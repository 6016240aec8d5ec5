"""Workers that stand still just before they submit, while everyone else goes on: they start nothing when they go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.gang import GangHandle, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.errors import AbandonedError
from tests.support.sim_house import RUN, SimHouse, tree_of


def submit_late(house: SimHouse, meanwhile: Callable[[], object]) -> list[Exception]:
    """Let ``meanwhile`` happen while the next worker to submit stands still. Returns what its submit then raised."""
    submit, raised = house.engine.submit, []

    def stand_still(request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        house.engine.submit = submit  # type: ignore[method-assign]
        meanwhile()
        try:
            return submit(request, key=key)
        except Exception as error:
            raised.append(error)
            raise

    house.engine.submit = stand_still  # type: ignore[method-assign]
    return raised


def names(house: SimHouse) -> list[str]:
    return [handle.key.name for handle in house.live()]


@pytest.mark.parametrize("ending", ["cancel", "release", "release twice", "cancel and release"])
def test_a_run_that_was_ended_meanwhile_stays_ended(ending: str) -> None:
    house = SimHouse()

    def end() -> None:
        if "cancel" in ending:
            assert house.driver(owner="try-1").cancel("marked failed")
        for _ in range(ending.count("release") + ending.count("twice")):
            house.driver(owner="teardown").release()

    raised = submit_late(house, end)
    outcome = house.driver(owner="try-1").start()
    assert isinstance(outcome, Failed)
    assert outcome.cancelled
    assert [type(error) for error in raised] == [AbandonedError]
    house.clock.sleep(1000.0)
    assert house.live() == ()
    assert house.driver().state().phase is RunPhase.CANCELLED
    assert house.engine.overlaps == []


def test_a_clear_meanwhile_leaves_the_new_generation_alone() -> None:
    house = SimHouse()
    newer: list[Outcome] = []
    raised = submit_late(house, lambda: newer.append(house.driver(generation=1, owner="try-2").start()))
    outcome = house.driver(generation=0, owner="try-1").start()
    assert isinstance(outcome, Failed)
    assert "superseded" in outcome.reason
    assert [type(error) for error in raised] == [AbandonedError]
    assert names(house) == [f"{RUN}-g2-a1"]
    assert isinstance(house.finish(newer[0], generation=1, owner="try-2"), Succeeded)
    assert house.max_live == 1
    assert house.engine.overlaps == []


def test_a_next_try_that_found_no_capacity_and_went_on_to_the_next_attempt_stays_alone() -> None:
    house = SimHouse(tree=tree_of(1))
    newer: list[Outcome] = []

    def next_try() -> None:
        house.engine.lose_node(NodeId("n0"), return_after_s=20.0)
        outcome = house.driver(owner="try-2").start()
        assert isinstance(outcome, Watch)
        assert outcome.state.handle is None  # attempt 1 was refused, and given up
        newer.append(house.finish(outcome, owner="try-2"))

    raised = submit_late(house, next_try)
    outcome = house.driver(owner="try-1").start()
    assert [type(error) for error in raised] == [AbandonedError]
    assert newer == [outcome]
    assert isinstance(outcome, Succeeded)
    assert outcome.num_attempts == 2
    house.clock.sleep(1000.0)
    assert [list(house.steps_of(each.channel_root)) for each in house.driver().attempts()] == [[], list(range(1, 41))]
    assert house.engine.overlaps == []


def test_a_next_try_that_submits_the_same_attempt_shares_its_gang() -> None:
    house = SimHouse()
    newer: list[Outcome] = []
    raised = submit_late(house, lambda: newer.append(house.driver(owner="try-2").start()))
    house.driver(owner="try-1").start()
    assert raised == []
    assert names(house) == [f"{RUN}-g1-a1"]
    assert isinstance(house.finish(newer[0], owner="try-2"), Succeeded)
    assert house.engine.overlaps == []


def test_a_worker_that_gave_an_attempt_up_and_died_before_it_said_so_costs_an_attempt_and_no_more() -> None:
    house = SimHouse()
    house.engine.abandon(AttemptKey(run=RUN, generation=1, attempt=1))
    outcome = house.run(owner="try-2")
    assert isinstance(outcome, Succeeded)
    assert outcome.num_attempts == 2
    assert house.max_live == 1
