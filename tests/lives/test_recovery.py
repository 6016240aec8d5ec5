"""Runs whose gangs break: what recovery costs, and where it ends."""

from __future__ import annotations

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Succeeded
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.sim.scripts import Hangs, RankFails, SimTraining
from tests.support.sim_house import ROOT, RUN, SimHouse, tree_of, workload_of

N1 = NodeId("n1")


def test_preempted_gang_resumes_on_the_ranks_left_from_the_newest_checkpoint() -> None:
    house = SimHouse()
    outcome = house.run(before_look=house.when_step(13, lambda: house.engine.preempt(N1, grace_s=5.0)))
    assert isinstance(outcome, Succeeded)
    first, second = house.driver().attempts()
    assert first.fault is not None
    assert first.fault.kind is FaultKind.PREEMPTED
    assert first.status is not None
    assert first.status.phase is GangPhase.PREEMPTED
    assert (first.plan.layout.world_size, second.plan.layout.world_size) == (4, 2)
    assert second.resumed_from is not None
    assert second.resumed_from.step >= 13  # the notice made the ranks save
    assert house.steps()[1][0] == second.resumed_from.step + 1
    notices = [event for event in house.journal.read() if isinstance(event, ev.NoticeReceived)]
    assert [notice.node for notice in notices] == [N1]
    assert house.driver().state().history.num_preemptions == 1
    assert house.driver().state().history.num_infrastructure_faults == 0


def test_preemptions_with_progress_never_exhaust_a_budget() -> None:
    house = SimHouse(
        training=SimTraining(num_steps=200, checkpoint_interval_steps=5),
        workload=workload_of(
            retries=RetrySpec(max_code_failures=0, max_infrastructure_failures=0, max_attempts_without_progress=1)
        ),
    )
    due = [15, 45, 75, 105, 135, 165]

    def preempt_again() -> None:
        done = max((step for attempt in house.steps() for step in attempt), default=0)
        if due and done >= due[0]:
            due.pop(0)
            node = house.driver().attempts()[-1].plan.placement.nodes[-1]
            house.engine.preempt(node, grace_s=5.0, return_after_s=1.0)

    outcome = house.run(before_look=preempt_again)
    assert isinstance(outcome, Succeeded)
    assert outcome.num_attempts == 7
    assert house.max_live == 1


def test_hung_gang_is_stopped_and_restarted_from_its_checkpoint() -> None:
    house = SimHouse(workload=workload_of(hang_limit_s=20.0))
    house.engine.faults = [Hangs(at_step=15)]
    outcome = house.run()
    assert isinstance(outcome, Succeeded)
    first, second = house.driver().attempts()
    assert first.fault is not None
    assert first.fault.kind is FaultKind.HUNG
    assert "after step 14" in first.fault.summary
    assert first.status is not None
    assert first.status.phase is GangPhase.STOPPED
    assert second.resumed_from is not None
    assert second.resumed_from.step == 10
    assert second.plan == first.plan


def test_stall_below_the_hang_limit_is_left_alone() -> None:
    house = SimHouse(workload=workload_of(hang_limit_s=20.0))
    house.engine.faults = [Hangs(at_step=15, lasts_s=15.0)]
    outcome = house.run()
    assert isinstance(outcome, Succeeded)
    assert outcome.num_attempts == 1


def test_code_failure_that_repeats_at_the_same_rank_ends_the_run_with_its_last_lines() -> None:
    house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=9, max_attempts_without_progress=9)))
    house.engine.faults = [RankFails(at_step=5, rank=1, exit_code=3, says="loss is nan")] * 2
    outcome = house.run()
    assert isinstance(outcome, Failed)
    assert "rank 1 on n0 exited with code 3" in outcome.reason
    assert outcome.reason.endswith("loss is nan")
    assert outcome.fault is not None
    assert len(house.driver().attempts()) == 2
    assert house.live() == ()


def test_code_failures_at_different_places_are_bounded_by_their_budget() -> None:
    house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=2)))
    house.engine.faults = [RankFails(at_step=step, rank=step % 3, exit_code=step) for step in (12, 13, 14)]
    outcome = house.run()
    assert isinstance(outcome, Failed)
    assert "retries.max_code_failures=2" in outcome.reason
    assert len(house.driver().attempts()) == 3


def test_lost_node_is_replaced_by_what_is_left() -> None:
    house = SimHouse(tree=tree_of(3))
    outcome = house.run(before_look=house.when_step(12, lambda: house.engine.lose_node(N1)))
    assert isinstance(outcome, Succeeded)
    first, second = house.driver().attempts()
    assert first.fault is not None
    assert (first.fault.kind, first.fault.node) == (FaultKind.NODE_LOST, N1)
    assert second.plan.placement.nodes == ("n0", "n2")
    assert second.resumed_from is not None
    assert second.resumed_from.step == 10


def test_launches_in_a_row_without_a_new_checkpoint_stop_the_run() -> None:
    house = SimHouse(tree=tree_of(1, 4), workload=workload_of(retries=RetrySpec(max_infrastructure_failures=99)))

    def lose_it_again() -> None:
        if house.engine.live(RUN) and house.engine.num_live_ranks(house.engine.live(RUN)[0]):
            house.engine.lose_node(NodeId("n0"), return_after_s=5.0)

    outcome = house.run(before_look=lose_it_again)
    assert isinstance(outcome, Failed)
    assert "3 launches in a row left no new checkpoint" in outcome.reason
    assert len(house.driver().attempts()) == 3


def test_gang_taken_after_its_last_save_is_not_launched_again_for_nothing() -> None:
    """Rank 0 saved the last step; before all ranks had left, their node was taken."""
    house = SimHouse(training=SimTraining(num_steps=40, leave_s=30.0))

    def lose_it_once_all_is_saved() -> None:
        if any(ref.step == 40 and ref.complete for ref in house.checkpoints.scan(ROOT)):
            house.engine.lose_node(N1)

    outcome = house.run(before_look=lose_it_once_all_is_saved)
    assert isinstance(outcome, Succeeded)
    assert (outcome.last_step, outcome.num_attempts) == (40, 1)
    assert outcome.checkpoint is not None
    assert outcome.checkpoint.step == 40
    assert outcome.note.startswith("the gang was over before its ranks had left, but step 40, the last, is saved: ")
    assert house.live() == ()


def test_gang_that_exits_0_before_the_last_step_has_failed() -> None:
    house = SimHouse(training=SimTraining(num_steps=20))
    outcome = house.run(num_steps=40)
    assert isinstance(outcome, Failed)
    assert "every rank exited 0 after step 20 of 40" in outcome.reason
    assert len(house.driver().attempts()) == 2
