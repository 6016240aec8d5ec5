"""What a watcher concludes, look by look."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.poller import (
    MAX_BACKOFF_S,
    HandOver,
    KeepWatching,
    Observation,
    WatchState,
    observe,
    wants_reports,
)
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus, NodeStatus, RankEnd
from airflow_llmsched.domain.health import Fault, FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport, RankProgress, StepRecord
from tests.support.sim_house import RUN

KEY = AttemptKey(run=RUN, generation=1, attempt=1)
WATCH = WatchState(
    handle=GangHandle(engine="sim", key=KEY, native_id="x"),
    channel_root="ch",
    launched_at_s=100.0,
    start_limit_s=30.0,
    hang_limit_s=60.0,
    poll_interval_s=2.0,
    max_look_errors=5,
    num_steps=50,
)


def status(phase: GangPhase, at_s: float = 0.0, **more: object) -> GangStatus:
    return GangStatus(phase=phase, observed_at_s=at_s, **more)  # type: ignore[arg-type]


def running(at_s: float, *reports: NodeReport) -> Observation:
    return Observation(at_s=at_s, status=status(GangPhase.RUNNING, at_s), reports=reports)


def blind(at_s: float) -> Observation:
    return Observation(at_s=at_s, error="connection refused")


def report(
    at_s: float, *, step: int | None, heartbeat_s: float, node: str = "n0", rank: int = 0, speaks: bool = True
) -> NodeReport:
    steps = (StepRecord(step=step, start_s=0.0, end_s=1.0, loss=1.0, num_tokens=1),) if step else ()
    return NodeReport(
        node=NodeId(node),
        seq=int(at_s * 10) + 1,
        at_s=at_s,
        ranks=(RankProgress(rank=rank, step=step, heartbeat_s=heartbeat_s, pid=1, speaks=speaks),),
        steps=steps,
    )


def after(watch: WatchState, *seen: Observation) -> tuple[WatchState, object]:
    verdict: object = None
    for each in seen:
        watch, verdict = observe(watch, each)
    return watch, verdict


def test_failure_on_the_first_look_is_handed_over_at_once_with_the_backends_reason() -> None:
    """Field case A16."""
    failed = status(GangPhase.FAILED, 101.0, reason="rank 1 on n0 exited with code 3")
    _, verdict = observe(WATCH, Observation(at_s=101.0, status=failed))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.GangEnded)
    assert verdict.event.status is failed
    assert verdict.event.fault is not None
    assert verdict.event.fault.summary == "rank 1 on n0 exited with code 3"


@pytest.mark.parametrize("phase", [phase for phase in GangPhase if phase.ended])
def test_every_end_is_handed_over_on_the_first_look(phase: GangPhase) -> None:
    _, verdict = observe(WATCH, Observation(at_s=101.0, status=status(phase, 101.0)))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.GangEnded)
    assert (verdict.event.fault is None) == (phase is GangPhase.SUCCEEDED)


def test_running_for_longer_than_the_error_limit_is_still_running() -> None:
    """Field case A22."""
    _, verdict = after(WATCH, *(running(100.0 + 2 * count) for count in range(6)))
    assert verdict == KeepWatching(after_s=2.0)


def test_only_errors_in_a_row_count() -> None:
    """Field case A22."""
    looks = []
    for round_ in range(4):
        start_s = 100.0 + 10 * round_
        looks += [blind(start_s + count) for count in range(5)] + [running(start_s + 6)]
    watch, verdict = after(WATCH, *looks)
    assert isinstance(verdict, KeepWatching)
    assert watch.num_look_errors == 0


def test_one_error_too_many_in_a_row_is_handed_over_and_says_nothing_about_the_gang() -> None:
    watch, verdict = after(WATCH, *(blind(100.0 + count) for count in range(5)))
    assert isinstance(verdict, KeepWatching)
    _, verdict = observe(watch, blind(106.0))
    assert verdict == HandOver(event=ev.LookFailed(at_s=106.0, key=KEY, num_errors=6, reason="connection refused"))


def test_errors_are_met_with_longer_and_longer_pauses() -> None:
    watch, pauses_s = replace(WATCH, max_look_errors=20), []
    for count in range(10):
        watch, verdict = observe(watch, blind(100.0 + count))
        assert isinstance(verdict, KeepWatching)
        pauses_s.append(verdict.after_s)
    assert pauses_s[:4] == [4.0, 8.0, 16.0, 32.0]
    assert pauses_s[-1] == MAX_BACKOFF_S


@pytest.mark.parametrize("looked_at_s", [101.0, 100_000.0])
def test_live_gang_that_the_engine_says_will_never_end_by_itself_is_handed_over_at_once(looked_at_s: float) -> None:
    nodes = (
        NodeStatus(node=NodeId("n0"), phase=GangPhase.STOPPED),
        NodeStatus(node=NodeId("n1"), phase=GangPhase.RUNNING, reason="its supervisor is gone"),
    )
    left = replace(
        status(GangPhase.RUNNING, looked_at_s), nodes=nodes, fault=FaultKind.NODE_LOST, reason="ranks go on unwatched"
    )
    watch, _ = observe(WATCH, running(100.5))
    _, verdict = observe(watch, Observation(at_s=looked_at_s, status=left))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)
    assert verdict.event.fault == Fault(
        kind=FaultKind.NODE_LOST, summary="ranks go on unwatched", at_s=looked_at_s, node=NodeId("n1")
    )


def test_gang_that_does_not_start_in_time_is_a_fault_that_names_the_node() -> None:
    nodes = (
        NodeStatus(node=NodeId("n0"), phase=GangPhase.RUNNING),
        NodeStatus(node=NodeId("n1"), phase=GangPhase.STARTING),
    )
    starting = status(GangPhase.STARTING, nodes=nodes)
    _, verdict = observe(WATCH, Observation(at_s=129.0, status=starting))
    assert isinstance(verdict, KeepWatching)
    _, verdict = observe(WATCH, Observation(at_s=131.0, status=starting))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)
    fault = verdict.event.fault
    assert (fault.kind, fault.node) == (FaultKind.START_TIMEOUT, "n1")
    assert "31 s" in fault.summary
    assert "limit 30 s" in fault.summary


def test_time_in_the_platforms_own_queue_is_not_time_to_start() -> None:
    queued = replace(status(GangPhase.PENDING, 5_000.0), queued_until_s=5_000.0)
    _, verdict = observe(WATCH, Observation(at_s=5_000.0, status=queued))
    assert isinstance(verdict, KeepWatching)
    for at_s, expected in ((5_039.0, KeepWatching), (5_041.0, HandOver)):
        starting = replace(status(GangPhase.STARTING, at_s), queued_until_s=5_010.0)
        _, verdict = observe(WATCH, Observation(at_s=at_s, status=starting))
        assert isinstance(verdict, expected)


def test_gang_without_progress_is_hung_once_its_limit_has_passed() -> None:
    watch, _ = after(WATCH, running(110.0, report(110.0, step=7, heartbeat_s=110.0)))
    watch, verdict = after(watch, running(169.0, report(169.0, step=7, heartbeat_s=110.0)))
    assert isinstance(verdict, KeepWatching)
    _, verdict = observe(watch, running(171.0, report(171.0, step=7, heartbeat_s=110.0)))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)
    assert verdict.event.fault.kind is FaultKind.HUNG
    assert verdict.event.last_step == 7
    assert "after step 7" in verdict.event.fault.summary


def test_heartbeat_without_a_step_is_progress() -> None:
    watch, verdict = after(
        WATCH,
        running(110.0, report(110.0, step=7, heartbeat_s=110.0)),
        running(169.0, report(169.0, step=7, heartbeat_s=168.0)),
        running(200.0, report(200.0, step=7, heartbeat_s=168.0)),
    )
    assert isinstance(verdict, KeepWatching)
    assert watch.last_progress_s == 168.0


def test_gang_whose_programs_never_use_the_agent_is_not_taken_for_hung() -> None:
    silent = report(110.0, step=None, heartbeat_s=105.0, speaks=False)
    _, verdict = after(WATCH, running(110.0, silent), running(100_000.0))
    assert verdict == KeepWatching(after_s=2.0)
    _, verdict = after(WATCH, running(110.0), running(100_000.0))
    assert verdict == KeepWatching(after_s=2.0)


def test_gang_that_has_spoken_once_is_hung_before_its_first_step_too() -> None:
    spoken, _ = after(WATCH, running(110.0, report(110.0, step=None, heartbeat_s=105.0)))
    # what was said is remembered by whoever takes over
    spoken = codec.from_json(WatchState, codec.to_json(spoken))
    spoken, verdict = observe(spoken, running(170.0))
    assert isinstance(verdict, KeepWatching)
    _, verdict = observe(spoken, running(171.0))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)
    assert "rank 0 on n0 is furthest behind, before its first step" in verdict.event.fault.summary


def test_hang_before_the_first_step_blames_a_rank_that_has_not_spoken_yet() -> None:
    _, verdict = after(
        WATCH,
        running(
            110.0,
            report(110.0, step=None, heartbeat_s=109.0),
            report(110.0, step=None, heartbeat_s=105.0, node="n1", rank=2, speaks=False),
        ),
        running(169.0),
        running(171.0),
    )
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)
    assert verdict.event.fault.rank == 2


def test_hang_after_steps_blames_no_rank_that_leaves_the_reporting_to_others() -> None:
    _, verdict = after(
        WATCH,
        running(
            110.0,
            report(110.0, step=7, heartbeat_s=110.0),
            report(110.0, step=None, heartbeat_s=105.0, node="n1", rank=2, speaks=False),
        ),
        running(169.0),
        running(171.0),
    )
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)
    assert (verdict.event.fault.rank, verdict.event.fault.node) == (0, "n0")


def test_hang_blames_the_rank_that_is_furthest_behind() -> None:
    _, verdict = after(
        WATCH,
        running(
            110.0,
            report(110.0, step=7, heartbeat_s=110.0),
            report(110.0, step=6, heartbeat_s=110.0, node="n1", rank=2),
        ),
        running(169.0),
        running(171.0),
    )
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)
    assert (verdict.event.fault.rank, verdict.event.fault.node) == (2, "n1")


def test_hang_in_a_fleet_blames_the_node_by_the_fleets_name() -> None:
    """Its agents know nothing of a fleet: left out by their own name, another cluster's node would be."""
    node = NodeStatus(node=NodeId("a/n0"), phase=GangPhase.RUNNING)
    seen = running(110.0, report(110.0, step=7, heartbeat_s=110.0))
    seen = replace(seen, status=status(GangPhase.RUNNING, 110.0, nodes=(node,)))
    _, verdict = after(WATCH, seen, running(169.0), running(171.0))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)
    assert verdict.event.fault.node == "a/n0"


@given(skew_s=st.floats(min_value=-1e6, max_value=1e6))
def test_skewed_node_clocks_neither_hide_a_hang_nor_make_one(skew_s: float) -> None:
    def node(at_s: float, heartbeat_s: float) -> NodeReport:
        return replace(report(at_s, step=3, heartbeat_s=heartbeat_s + skew_s), at_s=at_s + skew_s)

    watch, verdict = after(WATCH, running(110.0, node(110.0, 110.0)), running(165.0, node(165.0, 164.0)))
    assert isinstance(verdict, KeepWatching)
    _, verdict = observe(watch, running(230.0, node(230.0, 164.0)))
    assert isinstance(verdict, HandOver)


def test_watcher_that_starts_late_sees_how_long_the_gang_has_been_still() -> None:
    def late(heartbeat_s: float) -> Observation:
        seen = running(500.0, report(500.0, step=7, heartbeat_s=heartbeat_s))
        return replace(seen, status=status(GangPhase.RUNNING, 500.0, started_at_s=101.0))

    assert isinstance(observe(WATCH, late(480.0))[1], KeepWatching)
    assert isinstance(observe(WATCH, late(430.0))[1], HandOver)


def test_clock_set_forward_makes_no_hang_of_a_look_between_two_reports() -> None:
    watch, _ = after(WATCH, running(110.0, report(110.0, step=3, heartbeat_s=110.0)))
    watch, verdict = observe(watch, running(3712.0))
    assert isinstance(verdict, KeepWatching)
    watch, verdict = observe(watch, running(3714.0, report(3714.0, step=4, heartbeat_s=3713.0)))
    assert isinstance(verdict, KeepWatching)


def test_gang_that_hung_while_its_watcher_stood_still_is_found_by_the_next_look() -> None:
    watch, _ = after(WATCH, running(110.0, report(110.0, step=3, heartbeat_s=110.0)))
    still = report(400.0, step=3, heartbeat_s=111.0)
    assert isinstance(observe(watch, running(400.0, still))[1], HandOver)
    watch, verdict = observe(watch, running(400.0))
    assert isinstance(verdict, KeepWatching)
    _, verdict = observe(watch, running(402.0))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.FaultDetected)


def test_clock_set_back_hides_no_hang_for_longer_than_the_limit() -> None:
    watch, _ = after(WATCH, running(7200.0, report(7200.0, step=3, heartbeat_s=7200.0)))
    watch, verdict = observe(watch, running(3600.0))
    assert isinstance(verdict, KeepWatching)
    looks = [running(3600.0 + 2.0 * index) for index in range(1, 32)]
    _, verdict = after(watch, *looks)
    assert isinstance(verdict, HandOver)


def test_clock_set_forward_does_not_end_a_gang_that_is_starting() -> None:
    starting = Observation(at_s=102.0, status=status(GangPhase.STARTING, 102.0))
    watch, _ = after(WATCH, starting)
    _, verdict = observe(watch, replace(starting, at_s=3702.0))
    assert isinstance(verdict, KeepWatching)


def test_preemption_notice_is_kept_once_and_watching_goes_on() -> None:
    noticed = status(
        GangPhase.RUNNING,
        nodes=(NodeStatus(node=NodeId("n1"), phase=GangPhase.RUNNING, notice_deadline_s=140.0),),
    )
    watch, verdict = after(WATCH, Observation(at_s=110.0, status=noticed), Observation(at_s=112.0, status=noticed))
    assert isinstance(verdict, KeepWatching)
    assert watch.notices == (ev.NoticeReceived(at_s=110.0, node=NodeId("n1"), deadline_s=140.0),)
    _, verdict = observe(watch, Observation(at_s=141.0, status=status(GangPhase.PREEMPTED)))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.GangEnded)
    assert verdict.event.notices == watch.notices


def test_deadline_is_absolute_and_holds_even_while_blind() -> None:
    watch = replace(WATCH, deadline_s=120.0)
    _, verdict = observe(watch, running(119.5))
    assert verdict == KeepWatching(after_s=0.5)
    for late in (running(120.0), blind(120.0)):
        _, verdict = observe(watch, late)
        assert verdict == HandOver(event=ev.DeadlineReached(at_s=120.0))


def test_end_is_more_than_the_deadline() -> None:
    watch = replace(WATCH, deadline_s=120.0, num_steps=None)
    _, verdict = observe(watch, Observation(at_s=130.0, status=status(GangPhase.SUCCEEDED)))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.GangEnded)


def test_exit_0_before_the_last_step_is_a_fault() -> None:
    watch, _ = after(WATCH, running(110.0, report(110.0, step=20, heartbeat_s=110.0)))
    _, verdict = observe(watch, Observation(at_s=112.0, status=status(GangPhase.SUCCEEDED)))
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.GangEnded)
    assert verdict.event.fault is not None
    assert verdict.event.fault.kind is FaultKind.RANK_EXITED_EARLY


def test_reports_read_with_the_end_count() -> None:
    done = Observation(
        at_s=112.0,
        status=status(GangPhase.SUCCEEDED),
        reports=(report(112.0, step=50, heartbeat_s=112.0),),
        cursor=ChannelCursor(positions={"n0": 9}),
    )
    watch, verdict = observe(WATCH, done)
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.GangEnded)
    assert (verdict.event.fault, verdict.event.last_step) == (None, 50)
    assert watch.cursor == ChannelCursor(positions={"n0": 9})


def test_watcher_without_a_gang_wakes_when_told_or_at_the_deadline() -> None:
    waiting = WatchState(handle=None, wake_at_s=200.0)
    assert observe(waiting, Observation(at_s=150.0))[1] == KeepWatching(after_s=50.0)
    assert observe(waiting, Observation(at_s=200.0))[1] == HandOver(event=ev.Woke(at_s=200.0))
    hurried = replace(waiting, deadline_s=180.0)
    assert observe(hurried, Observation(at_s=150.0))[1] == KeepWatching(after_s=30.0)
    assert observe(hurried, Observation(at_s=180.0))[1] == HandOver(event=ev.DeadlineReached(at_s=180.0))


def test_watch_state_and_events_survive_json() -> None:
    end = RankEnd(rank=0, node=NodeId("n0"), exit_code=None, signal=9, at_s=1.0, log_tail="bye")
    noticed = status(
        GangPhase.RUNNING,
        nodes=(NodeStatus(node=NodeId("n1"), phase=GangPhase.RUNNING, notice_deadline_s=140.0),),
    )
    watch, _ = after(
        replace(WATCH, deadline_s=900.0, lease_s=30.0),
        Observation(
            at_s=110.0,
            status=noticed,
            reports=(report(110.0, step=7, heartbeat_s=109.0),),
            cursor=ChannelCursor(positions={"n0": 3}),
        ),
    )
    assert codec.from_json(WatchState, codec.to_json(watch)) == watch
    _, verdict = observe(watch, Observation(at_s=112.0, status=status(GangPhase.FAILED, first_end=end)))
    assert isinstance(verdict, HandOver)
    plain = codec.to_plain(verdict.event, ev.Handover)
    assert codec.from_plain(ev.Handover, plain) == verdict.event  # type: ignore[arg-type]


def test_channel_is_read_once_in_a_fifth_of_the_hang_limit_while_all_is_well() -> None:
    watch, _ = after(WATCH, replace(running(100.0), cursor=ChannelCursor(positions={})))
    assert watch.read_at_s == 100.0
    assert not wants_reports(watch, at_s=111.9)
    assert wants_reports(watch, at_s=112.0)
    watch, _ = after(watch, running(104.0))
    assert watch.read_at_s == 100.0


def test_channel_never_read_or_of_a_gang_that_is_still_is_read_at_every_look() -> None:
    assert wants_reports(WATCH, at_s=100.0)
    watch = replace(WATCH, read_at_s=199.0, last_progress_s=170.0)
    assert not wants_reports(watch, at_s=200.0)
    assert wants_reports(watch, at_s=200.1)
    assert wants_reports(watch, at_s=198.0), "the clock was set back: what is known is from an unknown time ago"
    assert wants_reports(replace(watch, deadline_s=200.0), at_s=200.0)


@given(limit_s=st.floats(0.1, 1e4), idle_s=st.floats(0.0, 1e5), read_s=st.floats(0.0, 1e5))
def test_no_gang_is_called_hung_by_a_look_that_did_not_read(limit_s: float, idle_s: float, read_s: float) -> None:
    now_s = 1e6
    watch = replace(
        WATCH,
        hang_limit_s=limit_s,
        running_since_s=0.0,
        last_progress_s=now_s - idle_s,
        read_at_s=now_s - read_s,
    )
    _, verdict = after(watch, running(now_s))
    assert isinstance(verdict, KeepWatching) or wants_reports(watch, at_s=now_s)


def test_look_that_brings_nothing_new_leaves_the_state_as_it_is() -> None:
    watch, _ = after(WATCH, running(100.0))
    again, verdict = after(watch, running(101.0))
    assert again is watch
    assert verdict == KeepWatching(after_s=2.0)


def test_renewed_lease_is_remembered_in_good_looks_and_bad() -> None:
    watch, _ = after(WATCH, replace(running(100.0), lease_until_s=130.0))
    assert watch.lease_until_s == 130.0
    watch, _ = after(watch, replace(blind(101.0), lease_until_s=131.0), blind(102.0))
    assert watch.lease_until_s == 131.0
