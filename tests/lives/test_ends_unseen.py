"""Gangs that end while nobody watches: the next try of the same generation takes them for what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_llmsched.control.context import Succeeded, Watch
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.sim.scripts import RankFails
from tests.support.sim_house import SimHouse

N1 = NodeId("n1")


def fail(house: SimHouse) -> None:
    """The rank was to fail from the start on."""


def preempt(house: SimHouse) -> None:
    house.engine.preempt(N1, grace_s=2.0)


def lose(house: SimHouse) -> None:
    house.engine.lose_node(N1)


def stop(house: SimHouse) -> None:
    house.engine.stop(house.live()[0], grace_s=1.0)


@pytest.mark.parametrize(
    ("befall", "phase", "kind"),
    [
        (fail, GangPhase.FAILED, FaultKind.RANK_FAILED),
        (preempt, GangPhase.PREEMPTED, FaultKind.PREEMPTED),
        (lose, GangPhase.LOST, FaultKind.NODE_LOST),
        (stop, GangPhase.STOPPED, FaultKind.STOPPED_OUTSIDE),
    ],
)
def test_a_gang_that_broke_unseen_is_not_adopted_but_followed_by_a_new_one(
    befall: Callable[[SimHouse], None], phase: GangPhase, kind: FaultKind
) -> None:
    """Field cases A11 and A12: the leftover is found, and neither watched for ever nor in the way."""
    house = SimHouse()
    house.engine.faults = [RankFails(at_step=25, rank=1, exit_code=3)] if befall is fail else []
    house.driver(owner="try-1").start()
    house.clock.sleep(20.0)
    befall(house)
    house.clock.sleep(60.0 if befall is fail else 5.0)
    assert house.live() == ()
    outcome = house.run(owner="try-2")
    assert isinstance(outcome, Succeeded)
    first, second = house.driver().attempts()
    assert first.status is not None
    assert first.fault is not None
    assert (first.status.phase, first.fault.kind) == (phase, kind)
    assert (second.key.generation, second.key.attempt) == (first.key.generation, 2)
    assert second.resumed_from is not None
    assert house.max_live <= 1


def test_a_gang_that_succeeded_unseen_is_taken_and_nothing_is_trained_again() -> None:
    """Field case A12."""
    house = SimHouse()
    house.driver(owner="try-1").start()
    house.clock.sleep(500.0)
    outcome = house.run(owner="try-2")
    assert isinstance(outcome, Succeeded)
    assert outcome.last_step == 40
    assert len(house.driver().attempts()) == 1


def test_a_success_of_an_older_generation_is_not_taken_for_the_newer() -> None:
    """Field case A12: the result is that of the same generation only."""
    house = SimHouse()
    house.run(owner="try-1")
    outcome = house.driver(generation=1, owner="try-2").start()
    assert isinstance(outcome, Watch)
    assert [(each.key.generation, each.key.attempt) for each in house.driver().attempts()] == [(1, 1), (2, 1)]


def test_a_start_among_500_old_jobs_takes_a_few_calls_of_a_throttled_engine() -> None:
    """Field case A23: what exists is asked for by its name, in one call; who is told to wait waits, and asks again."""
    house = SimHouse()
    launch = house.driver(owner="old").start()
    assert isinstance(launch, Watch)
    house.engine.stop(house.live()[0], grace_s=0.0)
    for number in range(500):
        run = RunKey(f"ls-old{number:017d}")
        house.engine.abandon(AttemptKey(run=run, generation=1, attempt=1))
    house.driver().release()
    calls: list[tuple[str, float]] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **named: Any) -> Any:
            now_s = house.clock.now_s()
            calls.append((name, now_s))
            if sum(at_s > now_s - 1.0 for _, at_s in calls) > 5:
                raise CouldNotLookError("rate exceeded: try again")
            return call(*arguments, **named)

        return count

    for name in ("find", "poll", "submit", "stop", "abandon", "topology"):
        setattr(house.engine, name, counted(name, getattr(house.engine, name)))
    assert isinstance(house.driver(owner="new").start(), Watch)
    assert len({at_s for _, at_s in calls}) > 1, "it was never told to wait"
    assert len(calls) <= 20, calls
