"""Attempts and measured spans, read back from the journal."""

from __future__ import annotations

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.history import attempts, spans
from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.decision import Migrate
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus
from airflow_llmsched.domain.health import Fault, FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.ledger import Bucket, Span
from tests.support.sim_house import RUN, SimHouse, plan_of

FIRST = AttemptKey(run=RUN, generation=1, attempt=1)
SECOND = AttemptKey(run=RUN, generation=1, attempt=2)
TAKEN = GangStatus(phase=GangPhase.PREEMPTED, observed_at_s=50.0, ended_at_s=49.0)
DONE = GangStatus(phase=GangPhase.SUCCEEDED, observed_at_s=90.0, ended_at_s=90.0)
FAULT = Fault(kind=FaultKind.PREEMPTED, summary="node n1 was preempted", at_s=49.0)
CHECKPOINT = CheckpointRef(step=10, path="c/10", format="sim")

OPENING: tuple[ev.AnyEvent, ...] = (
    ev.SpanNoted(at_s=5.0, span=Span(bucket=Bucket.STAGE, start_s=1.0, end_s=4.0)),
    ev.Opened(at_s=10.0, generation=1, asked_generation=0),
    ev.OthersStopped(at_s=11.0),
    ev.PlanChosen(at_s=13.0, plan=plan_of(("n0", 2), ("n1", 2))),
    ev.CheckpointChosen(at_s=14.0, checkpoint=None),
    ev.LaunchIntended(at_s=14.0, key=FIRST, channel_root="ch1"),
    ev.Launched(at_s=16.0, handle=GangHandle(engine="sim", key=FIRST, native_id="1")),
)
RECOVERY: tuple[ev.AnyEvent, ...] = (
    ev.HandedOver(at_s=53.0, yielded_at_s=51.0),
    ev.NoticeReceived(at_s=45.0, node=NodeId("n1"), deadline_s=49.0),
    ev.GangEnded(at_s=50.0, key=FIRST, status=TAKEN, fault=FAULT, last_step=12),
    ev.Stopped(at_s=54.0, key=FIRST, status=TAKEN),
    ev.CheckpointSeen(at_s=55.0, checkpoint=CHECKPOINT),
    ev.Decided(at_s=55.0, decision=Migrate(reason="node n1 was preempted")),
    ev.PlanChosen(at_s=56.0, plan=plan_of(("n0", 2))),
    ev.CheckpointChosen(at_s=57.0, checkpoint=CHECKPOINT),
    ev.LaunchIntended(at_s=57.0, key=SECOND, channel_root="ch2"),
    ev.Launched(at_s=58.0, handle=GangHandle(engine="sim", key=SECOND, native_id="2")),
)
ENDING: tuple[ev.AnyEvent, ...] = (
    ev.HandedOver(at_s=93.0, yielded_at_s=91.0),
    ev.GangEnded(at_s=91.0, key=SECOND, status=DONE, fault=None, last_step=40),
    ev.RunSucceeded(at_s=94.0, checkpoint=CHECKPOINT, last_step=40),
    ev.Released(at_s=101.0, started_at_s=100.0),
)


def test_gang_that_nobody_watched_to_its_end_is_over_once_nothing_is_alive() -> None:
    """Of a clear, and of a cancel: else it would be charged for ever."""
    ends: tuple[ev.AnyEvent, ...] = (
        ev.OthersStopped(at_s=61.0, stopped=(FIRST.name,)),
        ev.RunCancelled(at_s=62.0, stopped=(FIRST.name,)),
    )
    for end in ends:
        (record,) = attempts((*OPENING, ev.Opened(at_s=60.0, generation=2, asked_generation=1), end))
        assert (record.end_seen_at_s, record.status) == (end.at_s, None)
    (seen,) = attempts((*OPENING, ev.GangEnded(at_s=50.0, key=FIRST, status=TAKEN, fault=FAULT), ends[0]))
    assert seen.end_seen_at_s == 50.0


def total_s(events: tuple[ev.AnyEvent, ...]) -> dict[Bucket, float]:
    found: dict[Bucket, float] = {}
    for span in spans(RUN, events):
        found[span.bucket] = found.get(span.bucket, 0.0) + span.end_s - span.start_s
    return found


def test_attempts_carry_plan_checkpoint_times_and_ends() -> None:
    first, second = attempts((*OPENING, *RECOVERY, *ENDING))
    assert (first.key, first.channel_root, first.resumed_from) == (FIRST, "ch1", None)
    assert (first.intended_at_s, first.launched_at_s, first.end_seen_at_s) == (14.0, 16.0, 50.0)
    assert (first.status, first.fault) == (TAKEN, FAULT)
    assert (second.plan.layout.world_size, second.resumed_from) == (2, CHECKPOINT)
    assert (second.status, second.fault) == (DONE, None)


def test_running_attempt_has_no_end_yet() -> None:
    (only,) = attempts(OPENING)
    assert (only.status, only.end_seen_at_s, only.fault) == (None, None, None)


def test_fault_of_a_live_gang_stays_when_it_is_stopped() -> None:
    hung = Fault(kind=FaultKind.HUNG, summary="no rank made progress", at_s=50.0)
    stopped = GangStatus(phase=GangPhase.STOPPED, observed_at_s=55.0)
    events = (
        *OPENING,
        ev.FaultDetected(at_s=50.0, key=FIRST, fault=hung),
        ev.Stopped(at_s=55.0, key=FIRST, status=stopped),
    )
    (only,) = attempts(events)
    assert (only.fault, only.status, only.end_seen_at_s) == (hung, stopped, 55.0)


def test_time_before_the_first_launch_is_provisioning() -> None:
    assert total_s(OPENING) == {Bucket.STAGE: 3.0, Bucket.PROVISION: 6.0}


def test_time_from_a_fault_to_the_next_launch_is_recovery_and_the_yield_is_handoff() -> None:
    found = total_s((*OPENING, *RECOVERY))
    assert found[Bucket.RECOVER] == 58.0 - 50.0
    assert found[Bucket.HANDOFF] == 53.0 - 51.0
    assert found[Bucket.PROVISION] == 6.0


def test_time_after_the_last_gang_is_giving_back() -> None:
    found = total_s((*OPENING, *RECOVERY, *ENDING))
    assert found[Bucket.PROVISION] == 6.0 + (94.0 - 91.0) + (101.0 - 100.0)


def test_time_without_a_worker_is_queue_time_only_while_no_gang_runs() -> None:
    assert total_s((*OPENING[:3], ev.Resumed(at_s=40.0), *OPENING[3:]))[Bucket.QUEUE] == 29.0
    assert Bucket.QUEUE not in total_s((*OPENING, ev.Resumed(at_s=40.0)))


def test_wait_for_capacity_is_queue_time() -> None:
    waiting = (
        *OPENING[:3],
        ev.PlanRefused(at_s=12.0, reason="full", retry_at_s=30.0),
        ev.HandedOver(at_s=31.0, yielded_at_s=30.5),
        ev.Woke(at_s=30.0),
    )
    assert total_s(waiting)[Bucket.QUEUE] == 18.0
    assert total_s(waiting)[Bucket.HANDOFF] == 0.5


def test_time_between_the_end_and_a_clear_belongs_to_nobody() -> None:
    cleared = ev.Opened(at_s=5000.0, generation=2, asked_generation=1)
    before = total_s((*OPENING, *RECOVERY, *ENDING))
    assert total_s((*OPENING, *RECOVERY, *ENDING, cleared)) == before


def test_spans_of_a_simulated_run_lie_outside_its_gangs_lives() -> None:
    house = SimHouse()
    house.run(before_look=house.when_step(13, lambda: house.engine.lose_node(NodeId("n1"))))
    driver = house.driver()
    lives = [
        (attempt.launched_at_s or 0.0, attempt.status.ended_at_s or 0.0)
        for attempt in driver.attempts()
        if attempt.status is not None
    ]
    assert len(lives) == 2
    for span in driver.spans():
        assert all(span.end_s <= start_s or span.start_s >= end_s for start_s, end_s in lives), span
