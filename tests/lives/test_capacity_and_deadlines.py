"""Runs that wait for capacity, take a plan made before, or run out of time."""

from __future__ import annotations

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Succeeded
from airflow_llmsched.control.runs import run_blocking
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.sim_house import ROOT, SimHouse, plan_of, tree_of

N1 = NodeId("n1")


def test_deadline_has_the_ranks_save_and_then_ends_the_run() -> None:
    house = SimHouse()
    deadline_s = house.clock.now_s() + 25.0
    outcome = house.run(deadline_s=deadline_s)
    assert isinstance(outcome, Failed)
    assert "deadline reached at step" in outcome.reason
    assert house.live() == ()
    newest = max(ref.step for ref in house.checkpoints.scan(ROOT) if ref.complete)
    assert newest == max(house.steps()[0])
    assert newest % 10 != 0  # saved because it was asked to
    assert outcome.reason.endswith(f"the newest sound checkpoint is that of step {newest}")
    assert house.clock.now_s() < deadline_s + 10.0


def test_gang_that_completes_while_the_deadline_ends_it_has_succeeded() -> None:
    house = SimHouse()
    outcome = house.run(deadline_s=house.clock.now_s() + 48.5)
    assert isinstance(outcome, Succeeded)
    assert "deadline_reached" in house.kinds()


def test_run_past_its_deadline_is_not_launched() -> None:
    house = SimHouse()
    outcome = house.run(deadline_s=house.clock.now_s() - 1.0)
    assert isinstance(outcome, Failed)
    assert "deadline reached before the first step" in outcome.reason
    assert house.driver().attempts() == ()


def test_gang_killed_by_the_deadline_after_its_last_save_has_succeeded() -> None:
    house = SimHouse(training=SimTraining(num_steps=40, leave_s=500.0))
    outcome = house.run(deadline_s=house.clock.now_s() + 100.0)
    assert isinstance(outcome, Succeeded)
    assert (outcome.last_step, outcome.note) == (40, "")
    assert house.live() == ()


def test_deadline_before_the_first_report_still_says_how_far_the_checkpoints_came() -> None:
    house = SimHouse()
    house.driver().start()
    house.clock.sleep(8.5)  # steps have been trained, and nobody has read of them
    outcome = house.driver().handle(ev.DeadlineReached(at_s=house.clock.now_s()))
    assert isinstance(outcome, Failed)
    newest = max(ref.step for ref in house.checkpoints.scan(ROOT) if ref.complete)
    assert f"deadline reached at step {newest}:" in outcome.reason
    assert outcome.reason.endswith(f"the newest sound checkpoint is that of step {newest}")


def test_run_waits_for_capacity_and_the_wait_is_queue_time() -> None:
    house = SimHouse(tree=tree_of(1))
    house.engine.lose_node(NodeId("n0"), return_after_s=100.0)
    outcome = house.run()
    assert isinstance(outcome, Succeeded)
    queued_s = sum(span.end_s - span.start_s for span in house.driver().spans() if span.bucket is Bucket.QUEUE)
    assert 100.0 <= queued_s <= 160.0
    assert house.driver().state().last_step == 40


def test_run_gives_up_on_capacity_after_its_limit() -> None:
    house = SimHouse(tree=tree_of(1))
    house.engine.lose_node(NodeId("n0"))
    outcome = house.run(capacity_wait_s=300.0)
    assert isinstance(outcome, Failed)
    assert "waited 300 s for capacity" in outcome.reason


def test_run_that_could_never_fit_fails_at_once() -> None:
    house = SimHouse(tree=tree_of(1, 1))
    started_at_s = house.clock.now_s()
    outcome = house.run()
    assert isinstance(outcome, Failed)
    assert "fewer than 2 ranks" in outcome.reason
    assert "waiting cannot help" in outcome.reason
    assert house.clock.now_s() == started_at_s


def test_given_plan_is_used_for_the_first_launch() -> None:
    house = SimHouse()
    given_plan = plan_of(("n1", 2))
    assert isinstance(house.run(first_plan=given_plan), Succeeded)
    assert house.driver().attempts()[0].plan == given_plan


def test_given_plan_whose_node_is_taken_is_replaced_with_a_note() -> None:
    house = SimHouse()
    house.engine.lose_node(N1)
    assert isinstance(house.run(first_plan=plan_of(("n1", 2))), Succeeded)
    chosen = next(event for event in house.journal.read() if isinstance(event, ev.PlanChosen))
    assert chosen.plan.placement.nodes == ("n0",)
    assert "node n1 cannot be used: lost" in chosen.note


def test_run_blocking_waits_for_capacity_too() -> None:
    house = SimHouse(tree=tree_of(1))
    house.engine.lose_node(NodeId("n0"), return_after_s=30.0)
    outcome = run_blocking(house.driver(), engine=house.engine, open_channel=house.hub.open, clock=house.clock)
    assert isinstance(outcome, Succeeded)
