"""Runs whose engine cannot be asked: nothing is concluded from that."""

from __future__ import annotations

import pytest

from airflow_llmsched.control.context import Succeeded
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.sim.scripts import Hangs
from tests.support.sim_house import SimHouse, workload_of


def test_engine_that_cannot_be_seen_fails_the_try_and_leaves_the_gang() -> None:
    """Field case A5: the next try watches the gang that is there."""
    house = SimHouse()
    outcome = house.driver(owner="try-1").start()
    house.engine.blind(for_s=1000.0)
    with pytest.raises(CouldNotLookError, match="has not been stopped"):
        house.finish(outcome, owner="try-1")
    house.clock.sleep(1000.0)
    assert len(house.driver().attempts()) == 1
    assert isinstance(house.run(owner="try-2"), Succeeded)
    assert len(house.driver().attempts()) == 1


def test_short_blindness_costs_nothing() -> None:
    house = SimHouse()
    outcome = house.run(before_look=house.when_step(5, lambda: house.engine.blind(for_s=6.0)))
    assert isinstance(outcome, Succeeded)
    assert outcome.num_attempts == 1
    assert "look_failed" not in house.kinds()


def test_submission_whose_answer_is_lost_is_found_and_not_repeated() -> None:
    """Field case A8."""
    house = SimHouse()
    house.engine.lose_answers(1)
    outcome = house.run()
    assert isinstance(outcome, Succeeded)
    assert "adopted" in house.kinds()
    assert len(house.driver().attempts()) == 1


def test_successor_is_not_started_while_the_old_gang_cannot_be_seen_to_be_gone() -> None:
    house = SimHouse(workload=workload_of(hang_limit_s=20.0))
    house.engine.faults = [Hangs(at_step=15)]
    outcome = house.driver().start()
    original = house.engine.stop

    def stop_and_go_blind(handle: GangHandle, *, grace_s: float) -> None:
        house.engine.blind(for_s=5000.0)
        original(handle, grace_s=grace_s)

    house.engine.stop = stop_and_go_blind  # type: ignore[method-assign]
    with pytest.raises(CouldNotLookError):
        house.finish(outcome)
    house.engine.stop = original  # type: ignore[method-assign]
    assert len(house.driver().attempts()) == 1
    house.clock.sleep(5000.0)
    assert isinstance(house.run(), Succeeded)
    assert house.max_live == 1
