"""The run machine: which event leads where, what is then to be done, and what it says when the story makes no sense."""

from __future__ import annotations

import pytest

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.machine import STORY_LENGTH, advance, commands, fold
from airflow_llmsched.control.run_state import RunPhase, RunState
from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.decision import Abort, Migrate, Restart
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus
from airflow_llmsched.domain.health import Fault, FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.errors import InternalError
from tests.support.sim_house import RUN, SimHouse, plan_of

PLAN = plan_of(("n0", 2))
KEY = AttemptKey(run=RUN, generation=1, attempt=1)
HANDLE = GangHandle(engine="sim", key=KEY, native_id=KEY.name)
FAULT = Fault(kind=FaultKind.NODE_LOST, summary="node n1 vanished", at_s=6.0, node=NodeId("n1"))
LOST = GangStatus(phase=GangPhase.LOST, observed_at_s=6.0)
CHECKPOINT = CheckpointRef(step=10, path="c/10", format="sim")

OPENED = ev.Opened(at_s=0.0, generation=1, asked_generation=0, owner="try-1")
TO_PLANNING = (OPENED, ev.OthersStopped(at_s=1.0))
TO_READY = (*TO_PLANNING, ev.PlanChosen(at_s=2.0, plan=PLAN), ev.CheckpointChosen(at_s=3.0, checkpoint=None))
TO_LAUNCHING = (*TO_READY, ev.LaunchIntended(at_s=4.0, key=KEY, channel_root="ch"))
TO_WATCHING = (*TO_LAUNCHING, ev.Launched(at_s=5.0, handle=HANDLE))
TO_RECOVERING = (*TO_WATCHING, ev.GangEnded(at_s=6.0, key=KEY, status=LOST, fault=FAULT, last_step=12))
TO_ASSESSING = (*TO_RECOVERING, ev.Stopped(at_s=7.0, key=KEY, status=LOST))


def after(*events: ev.AnyEvent) -> RunState:
    return fold(RUN, events)


@pytest.mark.parametrize(
    ("events", "phase", "command"),
    [
        ((), RunPhase.NEW, None),
        ((OPENED,), RunPhase.CLOSING, cmd.StopOthers),
        (TO_PLANNING, RunPhase.PLANNING, cmd.ChoosePlan),
        (TO_READY, RunPhase.READY, cmd.RecordIntent),
        (TO_LAUNCHING, RunPhase.LAUNCHING, cmd.Launch),
        (TO_WATCHING, RunPhase.WATCHING, cmd.WatchGang),
        (TO_RECOVERING, RunPhase.RECOVERING, cmd.StopGang),
        (TO_ASSESSING, RunPhase.ASSESSING, cmd.Assess),
    ],
)
def test_every_phase_has_the_command_that_leaves_it(
    events: tuple[ev.AnyEvent, ...], phase: RunPhase, command: type | None
) -> None:
    state = after(*events)
    assert state.phase is phase
    assert [type(each) for each in commands(state)] == ([command] if command else [])


def test_every_open_phase_has_a_command_and_no_terminal_one_does() -> None:
    house = SimHouse()
    house.driver().start()
    state = RunState(run=RUN, plan=PLAN, handle=HANDLE, fault=FAULT)
    from dataclasses import replace

    for phase in RunPhase:
        found = commands(replace(state, phase=phase))
        assert bool(found) == (not phase.terminal and phase is not RunPhase.NEW), phase


def test_commands_after_a_crash_are_those_before_it() -> None:
    for length in range(1, len(TO_ASSESSING) + 1):
        state, returned = advance(after(*TO_ASSESSING[: length - 1]), TO_ASSESSING[length - 1])
        assert commands(after(*TO_ASSESSING[:length])) == returned
        assert state == after(*TO_ASSESSING[:length])


def test_launch_command_carries_what_was_intended() -> None:
    (command,) = commands(after(*TO_LAUNCHING))
    assert command == cmd.Launch(key=KEY, channel_root="ch", plan=PLAN, checkpoint=None, waiting_since_s=None)


def test_restart_keeps_the_plan_and_migration_does_not() -> None:
    restart = after(*TO_ASSESSING, ev.Decided(at_s=8.0, decision=Restart(reason="again")))
    migrate = after(*TO_ASSESSING, ev.Decided(at_s=8.0, decision=Migrate(reason="away", excluded=(NodeId("n1"),))))
    (again,), (away,) = commands(restart), commands(migrate)
    assert isinstance(again, cmd.ChoosePlan)
    assert isinstance(away, cmd.ChoosePlan)
    assert (again.keep, again.excluded, again.first, again.waiting_since_s) == (PLAN, (), False, None)
    assert (away.keep, away.excluded, away.first, away.waiting_since_s) == (None, ("n1",), False, None)
    assert (again.line, again.newest) == (restart.line, restart.newest)


def test_abort_fails_the_run_with_the_policys_reason() -> None:
    state = after(*TO_ASSESSING, ev.Decided(at_s=8.0, decision=Abort(reason="enough")))
    assert commands(state) == (cmd.FailRun(reason="enough", fault=FAULT),)


def test_next_launch_counts_on_in_the_generation() -> None:
    state = after(
        *TO_ASSESSING,
        ev.Decided(at_s=8.0, decision=Restart(reason="")),
        ev.PlanChosen(at_s=9.0, plan=PLAN),
        ev.CheckpointChosen(at_s=9.0, checkpoint=CHECKPOINT),
    )
    assert commands(state) == (cmd.RecordIntent(key=AttemptKey(run=RUN, generation=1, attempt=2), plan=PLAN),)
    assert state.newest == CHECKPOINT


def test_launch_after_a_migration_still_knows_which_nodes_failed() -> None:
    key = AttemptKey(run=RUN, generation=1, attempt=2)
    state = after(
        *TO_ASSESSING,
        ev.Decided(at_s=8.0, decision=Migrate(reason="away", excluded=(NodeId("n1"),))),
        ev.PlanChosen(at_s=9.0, plan=PLAN),
        ev.CheckpointChosen(at_s=9.0, checkpoint=CHECKPOINT),
        ev.LaunchIntended(at_s=9.0, key=key, channel_root="ch"),
    )
    (command,) = commands(state)
    assert isinstance(command, cmd.Launch)
    assert (command.key, command.excluded) == (key, ("n1",))


def test_launch_without_capacity_waits_and_counts_no_launch() -> None:
    refused = ev.LaunchRefused(at_s=5.0, reason="n0 is full", retry_at_s=10.0)
    state = after(*TO_LAUNCHING, refused)
    assert (state.phase, state.waiting_since_s, state.history.num_launches_without_progress) == (
        RunPhase.WAITING,
        5.0,
        0,
    )
    assert commands(state) == (cmd.WaitForCapacity(until_s=10.0),)
    assert after(*TO_LAUNCHING, refused, ev.Woke(at_s=10.0)).phase is RunPhase.PLANNING


def test_refused_launch_with_a_fault_is_assessed_like_any_fault() -> None:
    fault = Fault(kind=FaultKind.START_FAILED, summary="no such command", at_s=5.0)
    state = after(*TO_LAUNCHING, ev.LaunchRefused(at_s=5.0, reason="no such command", fault=fault))
    assert state.phase is RunPhase.ASSESSING
    assert (state.history.num_code_faults, state.history.num_launches_without_progress) == (1, 1)


def test_new_checkpoint_is_progress_and_an_old_one_is_not() -> None:
    seen = after(*TO_ASSESSING, ev.CheckpointSeen(at_s=8.0, checkpoint=CHECKPOINT))
    assert seen.history.num_launches_without_progress == 0
    again, _ = advance(seen, ev.Decided(at_s=8.0, decision=Restart(reason="")))
    events = (
        ev.PlanChosen(at_s=9.0, plan=PLAN),
        ev.CheckpointChosen(at_s=9.0, checkpoint=CHECKPOINT),
        ev.LaunchIntended(at_s=9.0, key=again.next_key, channel_root="ch2"),
        ev.Launched(at_s=9.0, handle=GangHandle(engine="sim", key=again.next_key, native_id="x")),
    )
    for event in events:
        again, _ = advance(again, event)
    again, _ = advance(again, ev.CheckpointSeen(at_s=10.0, checkpoint=CHECKPOINT))
    assert again.history.num_launches_without_progress == 1


def test_deadline_ends_a_live_gang_with_a_save_and_a_waiting_run_at_once() -> None:
    (command,) = commands(after(*TO_WATCHING, ev.DeadlineReached(at_s=9.0, last_step=7)))
    assert isinstance(command, cmd.StopGang)
    assert command.save_first
    assert "step 7" in command.reason
    assert after(*TO_PLANNING, ev.DeadlineReached(at_s=9.0)).phase is RunPhase.FAILING


def test_run_that_a_deadline_ended_says_whether_anything_was_saved() -> None:
    stopped = ev.Stopped(at_s=9.0, key=KEY, status=GangStatus(phase=GangPhase.STOPPED, observed_at_s=9.0))
    ended = after(*TO_WATCHING, ev.DeadlineReached(at_s=8.0), stopped)
    assert ended.phase is RunPhase.FAILING
    assert ended.reason.endswith("nothing was saved")
    saved = after(
        *TO_WATCHING, ev.DeadlineReached(at_s=8.0), ev.CheckpointSeen(at_s=8.5, checkpoint=CHECKPOINT), stopped
    )
    assert saved.reason.endswith(f"the newest sound checkpoint is that of step {CHECKPOINT.step}")


def test_gang_that_completed_while_it_was_stopped_has_completed() -> None:
    status = GangStatus(phase=GangPhase.SUCCEEDED, observed_at_s=9.0)
    stopped = ev.Stopped(at_s=9.0, key=KEY, status=status, completed=True, last_step=40)
    ended = after(*TO_WATCHING, ev.DeadlineReached(at_s=8.0), stopped)
    hung = after(*TO_WATCHING, ev.FaultDetected(at_s=8.0, key=KEY, fault=FAULT), stopped)
    assert ended.phase is hung.phase is RunPhase.FINISHING
    assert ended.last_step == 40
    assert after(*TO_RECOVERING, stopped).phase is RunPhase.ASSESSING  # it had ended badly before


@pytest.mark.parametrize("length", range(1, len(TO_ASSESSING) + 1))
def test_cancel_is_possible_from_every_open_phase(length: int) -> None:
    state = after(*TO_ASSESSING[:length], ev.CancelRequested(at_s=9.0, reason="killed"))
    assert commands(state) == (cmd.CancelRun(reason="killed", through=state.key, unlaunched=state.unlaunched),)
    ended, nothing = advance(state, ev.RunCancelled(at_s=10.0))
    assert (ended.phase, nothing) == (RunPhase.CANCELLED, ())


def test_new_generation_forgets_the_old_ones_attempts_and_budgets() -> None:
    state = after(*TO_RECOVERING, ev.Opened(at_s=9.0, generation=2, asked_generation=3, owner="try-2"))
    assert (state.phase, state.generation, state.asked_generation, state.owner) == (RunPhase.CLOSING, 2, 3, "try-2")
    assert (state.attempt, state.plan, state.history.num_infrastructure_faults) == (0, None, 0)


def test_retry_of_a_failed_generation_has_whole_budgets_and_counts_attempts_on() -> None:
    failed = (
        *TO_ASSESSING,
        ev.Decided(at_s=8.0, decision=Abort(reason="enough")),
        ev.RunFailed(at_s=8.0, reason="enough", fault=FAULT),
        ev.Reopened(at_s=20.0, owner="try-2"),
    )
    state = after(*failed)
    assert (state.phase, state.attempt, state.owner) == (RunPhase.CLOSING, 1, "try-2")
    assert state.history.num_infrastructure_faults == 0


def test_event_out_of_place_is_a_bug_report_with_the_story() -> None:
    with pytest.raises(InternalError) as caught:
        after(*TO_PLANNING, ev.Launched(at_s=2.0, handle=HANDLE))
    assert "launched cannot follow in phase planning" in str(caught.value)
    assert "0.000 opened: new -> closing" in str(caught.value)


@pytest.mark.parametrize(
    "event",
    [
        ev.GangEnded(at_s=6.0, key=AttemptKey(run=RUN, generation=1, attempt=2), status=LOST, fault=FAULT),
        ev.LookFailed(at_s=6.0, key=AttemptKey(run=RUN, generation=2, attempt=1), num_errors=3, reason="x"),
        ev.Opened(at_s=6.0, generation=1, asked_generation=1),
    ],
)
def test_event_of_another_attempt_or_generation_is_refused(event: ev.AnyEvent) -> None:
    with pytest.raises(InternalError):
        after(*TO_WATCHING, event)


def test_story_is_bounded() -> None:
    state = after(*TO_WATCHING)
    for number in range(3 * STORY_LENGTH):
        state, _ = advance(state, ev.Resumed(at_s=float(number), owner="x"))
    assert len(state.story) == STORY_LENGTH


@pytest.mark.parametrize(
    ("events", "given_up"),
    [
        (TO_READY, None),
        (TO_LAUNCHING, KEY),
        (TO_WATCHING, None),
        ((*TO_LAUNCHING, ev.LaunchRefused(at_s=5.0, reason="full", retry_at_s=9.0)), None),
        ((*TO_LAUNCHING, ev.Opened(at_s=5.0, generation=2, asked_generation=1)), KEY),
        ((*TO_LAUNCHING, ev.CancelRequested(at_s=5.0, reason="killed")), KEY),
        (
            (
                *TO_LAUNCHING,
                ev.CancelRequested(at_s=5.0, reason="killed"),
                ev.Opened(at_s=6.0, generation=2, asked_generation=1),
                ev.CancelRequested(at_s=7.0, reason="killed again"),
                ev.Opened(at_s=8.0, generation=3, asked_generation=2),
            ),
            KEY,
        ),
    ],
)
def test_an_intended_launch_that_nobody_saw_is_remembered_until_it_was_given_up(
    events: tuple[ev.AnyEvent, ...], given_up: AttemptKey | None
) -> None:
    state = after(*events)
    assert state.unlaunched == given_up
    for command in commands(state):
        if isinstance(command, cmd.StopOthers | cmd.CancelRun):
            assert command.unlaunched == given_up


@pytest.mark.parametrize(
    "last",
    [
        (ev.CancelRequested(at_s=5.0, reason="killed"), ev.RunCancelled(at_s=6.0)),
        (ev.Opened(at_s=5.0, generation=2, asked_generation=1), ev.OthersStopped(at_s=6.0)),
    ],
)
def test_what_was_given_up_is_forgotten(last: tuple[ev.AnyEvent, ...]) -> None:
    assert after(*TO_LAUNCHING, *last).unlaunched is None


def watching() -> RunState:
    return after(*TO_ASSESSING[: [event.kind for event in TO_ASSESSING].index("launched") + 1])


def reviewed(*, keeps: bool, asks: str = "") -> ev.Reviewed:
    return ev.Reviewed(
        at_s=9.0,
        key=KEY,
        keeps=keeps,
        reason="a better place",
        step=7,
        spent_usd=1.0,
        again_at_s=19.0,
        pace_ratio=1.2,
        asks=asks,
    )


def test_a_review_that_keeps_the_gang_goes_on_watching_it_and_remembers_what_it_saw() -> None:
    state, (command,) = advance(watching(), ev.ReviewDue(at_s=8.5, key=KEY, cause="it is time", last_step=7))
    assert isinstance(command, cmd.Review)
    assert (command.cause, command.last_step, command.progress) == ("it is time", 7, ())
    state, (command,) = advance(state, reviewed(keeps=True, asks="more money?"))
    assert isinstance(command, cmd.WatchGang)
    assert (state.review_at_s, state.pace_ratio, state.asks) == (19.0, 1.2, "more money?")
    (point,) = state.progress
    assert (point.at_s, point.step, point.spent_usd) == (9.0, 7, 1.0)


def test_a_review_that_moves_the_gang_has_it_save_and_leave_and_plans_anew_without_spending_a_retry() -> None:
    state, _ = advance(watching(), ev.ReviewDue(at_s=8.5, key=KEY, cause="it is time"))
    before = state.history
    state, (command,) = advance(state, reviewed(keeps=False))
    assert isinstance(command, cmd.StopGang)
    assert (command.save_first, command.reason) == (True, "a better place")
    status = GangStatus(phase=GangPhase.FAILED, observed_at_s=9.5)
    state, (command,) = advance(state, ev.Stopped(at_s=9.5, key=KEY, status=status))
    assert isinstance(command, cmd.ChoosePlan)
    assert command.keep is None
    assert state.history == before


def test_a_gang_that_had_finished_when_it_was_to_move_is_not_moved() -> None:
    state, _ = advance(watching(), ev.ReviewDue(at_s=8.5, key=KEY, cause="it is time"))
    state, _ = advance(state, reviewed(keeps=False))
    status = GangStatus(phase=GangPhase.SUCCEEDED, observed_at_s=9.5)
    _, (command,) = advance(state, ev.Stopped(at_s=9.5, key=KEY, status=status, completed=True))
    assert isinstance(command, cmd.FinishRun)


def test_money_that_will_not_last_ends_a_gang_under_review_with_a_checkpoint_and_says_the_sum() -> None:
    state, _ = advance(watching(), ev.ReviewDue(at_s=8.5, key=KEY, cause="it is time", last_step=7))
    due = ev.DeadlineReached(at_s=9.0, last_step=7, cause=ev.DeadlineCause.PROJECTION, words="$2.00 too much")
    state, (command,) = advance(state, due)
    assert isinstance(command, cmd.StopGang)
    assert command.save_first
    assert "would not last, stopped at step 7" in state.reason
    assert "$2.00 too much" in state.reason
