"""Runs with a lease: what is watched lives, and what is not ends itself."""

from __future__ import annotations

from airflow_llmsched.control.context import Succeeded, Watch
from airflow_llmsched.sim.scripts import Hangs, SimTraining
from tests.support.sim_house import SimHouse, workload_of


def test_lease_keeps_the_gang_alive_while_watched_and_fences_it_when_not() -> None:
    house = SimHouse(training=SimTraining(num_steps=400))
    outcome = house.driver(lease_s=30.0).start()
    assert isinstance(outcome, Watch)
    house.clock.sleep(31.5)
    assert house.live() == ()
    watched = SimHouse()
    assert isinstance(watched.run(lease_s=30.0), Succeeded)
    assert len(watched.driver().attempts()) == 1


def test_hand_over_that_takes_long_does_not_cost_a_healthy_gang_its_lease() -> None:
    house = SimHouse(training=SimTraining(num_steps=400))
    deadline_s = house.clock.now_s() + 60.0
    outcome = house.driver(lease_s=30.0, handoff_limit_s=600.0, deadline_s=deadline_s).start()
    result = house.finish(outcome, handoff_s=500.0, lease_s=30.0, deadline_s=deadline_s)
    assert isinstance(result, Succeeded)  # it trained on to its end, long after its lease would have ended
    assert len(house.driver().attempts()) == 1


def test_hung_gang_fences_itself_in_a_long_hand_over_and_the_next_one_goes_on() -> None:
    house = SimHouse(training=SimTraining(num_steps=400), workload=workload_of(hang_limit_s=20.0))
    house.engine.faults = [Hangs(at_step=15)]
    outcome = house.driver(lease_s=30.0, handoff_limit_s=600.0).start()
    result = house.finish(outcome, handoff_s=500.0, lease_s=30.0)
    assert isinstance(result, Succeeded)
    assert len(house.driver().attempts()) == 2
    assert house.engine.overlaps == []
