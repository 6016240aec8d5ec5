"""The event queue."""

from __future__ import annotations

from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.sim.world import SimWorld


def test_what_is_due_happens_in_order_of_time_and_of_scheduling() -> None:
    clock = VirtualClock(0.0)
    world, seen = SimWorld(clock), []
    for at_s, name in ((3.0, "c"), (1.0, "a"), (3.0, "d"), (2.0, "b"), (9.0, "later")):
        world.at(at_s, lambda name=name: seen.append((world.time_s, name)))  # type: ignore[misc]
    clock.sleep(5.0)
    assert world.advance() == 5.0
    assert seen == [(1.0, "a"), (2.0, "b"), (3.0, "c"), (3.0, "d")]
    assert world.time_s == 5.0


def test_event_may_cause_others_at_their_own_times() -> None:
    clock = VirtualClock(0.0)
    world, seen = SimWorld(clock), []

    def tick() -> None:
        seen.append(world.time_s)
        world.after(2.0, tick)

    world.at(1.0, tick)
    clock.sleep(6.0)
    world.advance()
    assert seen == [1.0, 3.0, 5.0]


def test_event_in_the_past_happens_at_the_next_look_without_turning_time_back() -> None:
    clock = VirtualClock(10.0)
    world, seen = SimWorld(clock), []
    world.at(1.0, lambda: seen.append(world.time_s))
    world.advance()
    assert seen == [10.0]
