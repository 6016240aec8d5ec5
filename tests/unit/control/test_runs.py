"""Whole lives of runs on the simulated house: the real driver, machine, policy, poller and journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.faults import fault_of
from airflow_llmsched.control.journal import Journal, JournalRaceError, list_runs
from airflow_llmsched.control.machine import RunPhase
from airflow_llmsched.control.runs import run_blocking
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.sim.scripts import Hangs, RankFails, SimTraining
from tests.support.crashing import WorkerDied
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import ROOT, RUN, SimHouse, plan_of, tree_of, workload_of

N1 = NodeId("n1")


def test_run_trains_every_step_once_and_returns_the_final_checkpoint() -> None:
    house = SimHouse()
    outcome = house.run()
    assert isinstance(outcome, Succeeded)
    assert outcome.checkpoint is not None
    assert (outcome.checkpoint.step, outcome.last_step, outcome.num_attempts, outcome.note) == (40, 40, 1, "")
    assert steps(house) == [list(range(1, 41))]
    assert house.max_live == 1


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
    assert steps(house)[1][0] == second.resumed_from.step + 1
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
        done = max((step for attempt in steps(house) for step in attempt), default=0)
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


def test_corrupt_newest_checkpoint_is_passed_over_with_a_note() -> None:
    house = SimHouse()

    def spoil() -> None:
        house.checkpoints.damage(house.saved(20))
        house.engine.lose_node(N1)

    outcome = house.run(before_look=house.when_step(23, spoil))
    assert isinstance(outcome, Succeeded)
    second = house.driver().attempts()[1]
    assert second.resumed_from is not None
    assert second.resumed_from.step == 10
    chosen = [event for event in house.journal.read() if isinstance(event, ev.CheckpointChosen)][1]
    assert [(skipped.step, "checksum" in skipped.reason) for skipped in chosen.skipped] == [(20, True)]
    assert "resumes at step 10" in chosen.note


def test_run_that_lost_every_checkpoint_fails_rather_than_start_again_at_step_0() -> None:
    house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=5)))
    house.engine.faults = [RankFails(at_step=12, rank=0), RankFails(at_step=23, rank=1)]
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)

    def spoil_after_first_relaunch() -> None:
        if len(house.driver().attempts()) == 2:
            for ref in house.checkpoints.scan(ROOT):
                house.checkpoints.damage(ref.path)

    result = house.finish(outcome, before_look=spoil_after_first_relaunch)
    assert isinstance(result, Failed)
    assert "a checkpoint of step 10 had been saved" in result.reason
    assert len(house.driver().attempts()) == 2


def test_required_resume_with_nothing_to_resume_from_is_a_clear_failure() -> None:
    house = SimHouse(workload=workload_of(require_resume=True))
    outcome = house.run()
    assert isinstance(outcome, Failed)
    assert "checkpoint.require_resume" in outcome.reason
    assert house.driver().attempts() == ()


def test_checkpoint_of_another_world_size_is_refused_before_the_launch() -> None:
    house = SimHouse(resharding=False)
    outcome = house.run(before_look=house.when_step(13, lambda: house.engine.lose_node(N1)))
    assert isinstance(outcome, Failed)
    assert "saved by 4 ranks, cannot be loaded by 2" in outcome.reason
    assert len(house.driver().attempts()) == 1


def test_gang_that_exits_0_before_the_last_step_has_failed() -> None:
    house = SimHouse(training=SimTraining(num_steps=20))
    outcome = house.run(num_steps=40)
    assert isinstance(outcome, Failed)
    assert "every rank exited 0 after step 20 of 40" in outcome.reason
    assert len(house.driver().attempts()) == 2


def test_deadline_has_the_ranks_save_and_then_ends_the_run() -> None:
    house = SimHouse()
    deadline_s = house.clock.now_s() + 25.0
    outcome = house.run(deadline_s=deadline_s)
    assert isinstance(outcome, Failed)
    assert "deadline reached at step" in outcome.reason
    assert house.live() == ()
    newest = max(ref.step for ref in house.checkpoints.scan(ROOT) if ref.complete)
    assert newest == max(steps(house)[0])
    assert newest % 10 != 0  # saved because it was asked to
    assert outcome.reason.endswith(f"the newest sound checkpoint is that of step {newest}")
    assert house.clock.now_s() < deadline_s + 10.0


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


def test_retry_of_a_finished_run_does_not_train_again() -> None:
    house = SimHouse()
    house.run(owner="try-1")
    again = house.driver(owner="try-2").start()
    assert isinstance(again, Succeeded)
    assert again.last_step == 40
    assert len(house.driver().attempts()) == 1


def test_gang_that_finished_while_no_worker_lived_is_not_trained_again() -> None:
    house = SimHouse()
    house.driver(owner="try-1").start()
    house.clock.sleep(500.0)
    outcome = house.run(owner="try-2")
    assert isinstance(outcome, Succeeded)
    assert len(house.driver().attempts()) == 1


def test_retry_of_a_failed_run_launches_again_with_whole_budgets() -> None:
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


def test_try_that_stood_still_before_its_first_record_takes_nothing_from_a_later_one() -> None:
    house = SimHouse()
    frozen = house.driver(owner="try-1")
    outcome: list[Outcome] = []

    def stand_still(_key: str) -> None:
        house.store.before_create = lambda _key: None
        house.clock.sleep(120.0)
        outcome.append(house.driver(owner="try-2").start())

    house.store.before_create = stand_still
    thawed = frozen.start()
    assert isinstance(thawed, Failed)
    assert "superseded" in thawed.reason
    assert house.driver().state().owner == "try-2"
    assert isinstance(house.finish(outcome[0], owner="try-2"), Succeeded)
    assert house.kinds().count("launched") == 1


def test_of_two_tries_that_set_out_at_once_the_last_to_begin_owns_the_run() -> None:
    """Clocks may differ by seconds, so seconds do not say who is later."""
    house = SimHouse()
    first = house.driver(owner="try-1")

    def be_overtaken(_key: str) -> None:
        house.store.before_create = lambda _key: None
        house.clock.sleep(5.0)
        house.driver(owner="try-2").start()

    house.store.before_create = be_overtaken
    assert isinstance(first.start(), Watch)
    assert house.driver().state().owner == "try-1"


def test_try_that_stood_still_reopens_no_generation_that_has_failed_meanwhile() -> None:
    house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=0)))
    house.engine.faults = [RankFails(at_step=3)]
    frozen = house.driver(owner="try-1")

    def stand_still(_key: str) -> None:
        house.store.before_create = lambda _key: None
        house.clock.sleep(120.0)
        assert isinstance(house.run(owner="try-2"), Failed)

    house.store.before_create = stand_still
    assert isinstance(frozen.start(), Failed)
    assert house.kinds()[-1] == "run_failed"
    assert house.live() == ()


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


def test_release_ends_whatever_lives_and_the_second_time_does_nothing() -> None:
    house = SimHouse()
    house.driver().start()
    house.clock.sleep(10.0)
    assert house.driver(owner="teardown").release() == (f"{RUN}-g1-a1",)
    assert house.live() == ()
    before = house.kinds()
    assert before[-1] == "released"
    assert house.driver(owner="teardown").release() == ()
    assert house.kinds() == before


def test_two_releases_at_once_record_one_release() -> None:
    store = MemoryStore()
    house = SimHouse(store=store)
    house.run()
    raced: list[str] = []

    def other_first(key: str) -> None:
        if not raced:
            raced.append(key)
            house.driver().release()

    store.before_create = other_first
    house.driver().release()
    assert raced
    assert house.kinds().count("released") == 1


def test_release_of_a_run_that_never_opened_does_nothing() -> None:
    house = SimHouse()
    assert house.driver().release() == ()
    assert house.journal.read() == ()


def test_release_stops_a_gang_that_the_journal_does_not_know() -> None:
    house = SimHouse()
    house.driver().start()
    for key in [key for key in house.store.objects if "/journal/" in key]:
        house.store.delete(key)
    house.journal = Journal(house.store, RUN)
    assert house.driver().release() == (f"{RUN}-g1-a1",)
    assert house.live() == ()


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


def test_engine_that_cannot_be_seen_fails_the_try_and_leaves_the_gang() -> None:
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


def test_spec_that_the_engine_cannot_express_is_the_users_to_fix() -> None:
    house = SimHouse()

    def refuse(_gang: object) -> None:
        raise SpecError(path="launcher.kind", hint="not here")

    house.engine.render = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(SpecError, match=r"launcher\.kind"):
        house.driver().start()
    assert house.live() == ()


def test_run_blocking_ends_like_the_deferred_path() -> None:
    outcomes = []
    for blocking in (True, False):
        house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=0)))
        house.engine.faults = [RankFails(at_step=7, rank=2, exit_code=9, says="bad shard")]
        if blocking:
            outcome = run_blocking(house.driver(), engine=house.engine, open_channel=house.hub.open, clock=house.clock)
        else:
            outcome = house.run()
        assert isinstance(outcome, Failed)
        outcomes.append((outcome.reason, outcome.fault and replace(outcome.fault, at_s=0.0)))
    assert outcomes[0] == outcomes[1]


def test_run_blocking_waits_for_capacity_too() -> None:
    house = SimHouse(tree=tree_of(1))
    house.engine.lose_node(NodeId("n0"), return_after_s=30.0)
    outcome = run_blocking(house.driver(), engine=house.engine, open_channel=house.hub.open, clock=house.clock)
    assert isinstance(outcome, Succeeded)


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


def test_noted_span_is_kept_even_before_the_run_opens() -> None:
    house = SimHouse()
    span = Span(bucket=Bucket.STAGE, start_s=1.0, end_s=3.0, label="stage")
    house.driver().note_span(span)
    assert house.driver().spans() == (span,)
    assert isinstance(house.run(), Succeeded)


def test_summary_follows_the_run() -> None:
    house = SimHouse()
    house.run()
    house.driver().release()
    (summary,) = list_runs(house.store)
    assert (summary.run_key, summary.phase, summary.last_step, summary.checkpoint_step) == (RUN, "succeeded", 40, 40)
    assert (summary.dag_id, summary.workload, summary.released) == ("pretrain", "sim", True)


def test_worker_that_loses_every_append_gives_up_for_now() -> None:
    store = MemoryStore()
    house = SimHouse(store=store)

    def always_second(key: str) -> None:
        store.objects.setdefault(key, store.objects.get(key) or _noted_record(house, key))

    store.before_create = always_second
    with pytest.raises(JournalRaceError, match="appends in a row"):
        house.driver().start()
    assert house.live() == ()


def test_worker_that_was_cancelled_while_it_submitted_gives_the_gang_back() -> None:
    store = MemoryStore()
    house = SimHouse(store=store)
    original = house.engine.submit

    def submit_then_be_cancelled(request: object, *, key: AttemptKey) -> GangHandle:
        house.driver().cancel("marked failed")
        return original(request, key=key)  # type: ignore[arg-type]

    house.engine.submit = submit_then_be_cancelled  # type: ignore[method-assign, assignment]
    outcome = house.driver().start()
    assert isinstance(outcome, Failed)
    assert outcome.cancelled
    assert house.live() == ()


@pytest.mark.parametrize("late", ["start", "release", "cancel"])
def test_worker_that_stood_still_while_the_run_went_on_leaves_the_new_gang_alone(late: str) -> None:
    """It had read the journal and was about to look for gangs; meanwhile its gang failed and another was launched."""
    house = SimHouse()
    house.engine.faults = [RankFails(at_step=12)]
    outcome = house.driver(owner="try-1").start()
    assert isinstance(outcome, Watch)
    find, moved = house.engine.find, []

    def stand_still_once(key: RunKey) -> Sequence[GangHandle]:
        if not moved:
            moved.append(key)
            if late == "start":
                house.clock.sleep(20.0)
                status = house.engine.poll([outcome.state.handle])[outcome.state.handle]
                fault = fault_of(status, last_step=12, num_steps=40)
                ended = ev.GangEnded(at_s=house.clock.now_s(), key=status_key, status=status, fault=fault)
                assert isinstance(house.driver(owner="try-2").handle(ended), Watch)
            else:  # somebody clears the task after the cancel was recorded
                assert isinstance(house.driver(owner="try-1", generation=1).start(), Watch)
        return find(key)

    assert outcome.state.handle is not None
    status_key = outcome.state.handle.key
    house.engine.find = stand_still_once  # type: ignore[method-assign]
    driver = house.driver(owner="try-2" if late == "start" else "try-1")
    {"start": driver.start, "release": driver.release, "cancel": lambda: driver.cancel("marked failed")}[late]()
    assert moved
    (handle,) = house.live()
    expected = (1, 2) if late == "start" else (2, 1)
    assert (handle.key.generation, handle.key.attempt) == expected
    assert house.driver().state().history.num_code_faults <= 1


def test_two_workers_that_start_at_once_share_one_gang() -> None:
    store = MemoryStore()
    house = SimHouse(store=store)
    racing: list[str] = []

    def other_starts_first(key: str) -> None:
        if len(racing) < 1:
            racing.append(key)
            house.driver().start()

    store.before_create = other_starts_first
    outcome = house.driver().start()
    assert racing
    assert isinstance(outcome, Watch)
    assert len(house.live()) == 1
    assert isinstance(house.finish(outcome), Succeeded)
    assert house.max_live == 1


def test_journal_of_90_days_of_preemptions_stays_small() -> None:
    house = SimHouse(
        training=SimTraining(num_steps=3000, work_s=1200.0, checkpoint_interval_steps=4),
        workload=workload_of(hang_limit_s=7200.0),
    )
    next_s = [house.clock.now_s() + 4 * 3600.0]

    def preempt_every_four_hours() -> None:
        if house.clock.now_s() >= next_s[0]:
            next_s[0] += 4 * 3600.0
            node = house.driver().attempts()[-1].plan.placement.nodes[-1]
            house.engine.preempt(node, grace_s=120.0, return_after_s=60.0)

    started_at_s = house.clock.now_s()
    outcome = house.run(before_look=preempt_every_four_hours, poll_interval_s=900.0)
    assert isinstance(outcome, Succeeded)
    num_days = (house.clock.now_s() - started_at_s) / 86400.0
    assert num_days > 10.0
    assert outcome.num_attempts > 5 * num_days
    assert len(house.store.objects) * 90.0 / num_days < 2000


def steps(house: SimHouse) -> list[list[int]]:
    return [house.steps_of(attempt.channel_root) for attempt in house.driver().attempts()]


def _noted_record(house: SimHouse, key: str) -> bytes:
    """Return what another worker's journal record under ``key`` would hold."""
    other = MemoryStore()
    number = int(key.rsplit("/", 1)[1].removesuffix(".json"))
    span = Span(bucket=Bucket.QUEUE, start_s=0.0, end_s=1.0)
    Journal(other, RUN).append([ev.SpanNoted(at_s=1.0, span=span)], number=number)
    return other.objects[key]
