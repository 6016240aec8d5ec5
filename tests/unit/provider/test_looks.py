from __future__ import annotations

import time

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.errors import InternalError
from airflow_llmsched.provider.looks import MAX_READERS, Look, Readers
from airflow_llmsched.provider.threads import DaemonThreads
from tests.support.local_engine import wait_until
from tests.support.poller_house import HouseChannel, state

LIMIT_S = 20.0


def status(phase: GangPhase = GangPhase.RUNNING) -> GangStatus:
    now_s = time.time()
    return GangStatus(phase=phase, observed_at_s=now_s, started_at_s=now_s, ended_at_s=now_s if phase.ended else None)


def look(index: int = 0, *, channel: HouseChannel | None = None, **changes) -> Look:
    told = changes.pop("told", status())
    return Look(watcher=index, channel=channel or HouseChannel(), state=state(index), told=told, asked_s=0.0, **changes)


@pytest.fixture
def readers():
    threads = DaemonThreads(MAX_READERS, name="readers")
    delivered: list[Look] = []
    made = Readers(threads, delivered.extend, SystemClock())
    made.delivered = delivered  # type: ignore[attr-defined]
    yield made
    threads.close()


def test_look_at_a_live_gang_says_when_to_look_again():
    one = look()
    one.finish(SystemClock())
    assert (one.wait_s, one.payload, one.error) == (0.05, None, None)
    assert one.after is not None
    assert one.after.read_at_s is not None


def test_look_at_an_ended_gang_has_the_payload_ready():
    one = look(told=status(GangPhase.SUCCEEDED))
    one.finish(SystemClock())
    assert one.payload is not None
    assert one.payload["handover"]["kind"] == "gang_ended"


def test_fault_of_ours_is_the_looks_own():
    one = look(told=InternalError("a bug"))
    one.finish(SystemClock())
    assert isinstance(one.error, InternalError)


def test_dropped_look_touches_nothing():
    channel = HouseChannel()
    one = look(channel=channel, dropped=True)
    one.finish(SystemClock())
    assert channel.num_looks == 0
    assert one.after is None


def test_every_look_is_finished_and_delivered_once(readers):
    looks = [look(index) for index in range(300)]
    readers.add(looks[:200])
    readers.add(looks[200:])
    wait_until(lambda: len(readers.delivered) == 300, LIMIT_S)
    assert {each.watcher for each in readers.delivered} == set(range(300))
    wait_until(lambda: readers.idle, LIMIT_S)
    assert readers.backlog == 0


def test_another_reader_helps_when_those_there_are_stalled_but_never_more_than_allowed(readers):
    channels = [HouseChannel() for _ in range(MAX_READERS + 3)]
    for each in channels:
        each.open.clear()
    readers.add([look(index, channel=channel) for index, channel in enumerate(channels)])

    def helped(num_looks: int) -> bool:
        readers.help()
        return sum(each.num_looks for each in channels) == num_looks

    wait_until(lambda: helped(MAX_READERS), LIMIT_S)
    assert readers.backlog == 3
    for each in channels:
        each.open.set()
    wait_until(lambda: len(readers.delivered) == len(channels), LIMIT_S)


def test_stuck_reader_is_not_counted_on(readers):
    hung = HouseChannel()
    hung.open.clear()
    stuck = look(0, channel=hung)
    readers.add([stuck])
    wait_until(lambda: hung.num_looks == 1, LIMIT_S)
    assert readers.give_up(stuck)
    readers.add([look(1)])
    wait_until(lambda: [each.watcher for each in readers.delivered] == [1], LIMIT_S)
    assert not readers.idle
    hung.open.set()
    wait_until(lambda: readers.idle, LIMIT_S)


def test_look_that_no_thread_has_taken_is_given_up_for_good(readers):
    waiting = look()
    assert not readers.give_up(waiting)
    assert waiting.dropped
