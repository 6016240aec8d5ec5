"""Looking at a gang, in both the blocking and the deferred form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Watch
from airflow_llmsched.control.poller import HandOver, KeepWatching, WatchState
from airflow_llmsched.control.watching import Unseen, ask, conclude, look, see, step, watch
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.errors import CouldNotLookError, InternalError
from airflow_llmsched.sim.scripts import RankFails, SimTraining
from tests.support.sim_house import SimHouse


def watched(house: SimHouse, **changes: object) -> WatchState:
    outcome = house.driver(**changes).start()
    assert isinstance(outcome, Watch)
    return outcome.state


def test_look_sees_the_gang_and_what_its_agents_wrote() -> None:
    house = SimHouse()
    state = watched(house)
    house.clock.sleep(20.0)
    seen = look(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert seen.error is None
    assert seen.status is not None
    assert seen.status.phase is GangPhase.RUNNING
    assert max(record.step for report in seen.reports for record in report.steps) > 5
    assert seen.cursor is not None
    assert seen.cursor.positions == {"n0": 1, "n1": 1}


@pytest.mark.parametrize("what", ["engine", "channel"])
def test_look_that_fails_is_an_observation(what: str) -> None:
    house = SimHouse()
    state = watched(house)
    (house.engine if what == "engine" else house.hub).blind(for_s=10.0)
    seen = look(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert seen.status is None
    assert seen.error


def test_look_at_an_ended_gang_reads_its_last_words_however_lately_it_read() -> None:
    house = SimHouse(training=SimTraining(num_steps=10))
    state = watched(house)
    house.clock.sleep(30.0)
    state = replace(state, read_at_s=house.clock.now_s(), last_progress_s=house.clock.now_s())
    _, verdict = step(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.GangEnded)
    assert (verdict.event.fault, verdict.event.last_step) == (None, 10)


def test_fault_of_our_own_is_not_taken_for_a_failed_look() -> None:
    house = SimHouse()
    state = watched(house)

    def broken(_handles: object) -> None:
        raise InternalError("a bug")

    house.engine.poll = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(InternalError):
        look(house.engine, house.hub.open(state.channel_root), state, house.clock)


def test_look_renews_the_lease_and_a_hand_over_extends_it() -> None:
    house = SimHouse()
    state = watched(house, lease_s=30.0, handoff_limit_s=600.0)
    house.clock.sleep(5.0)
    line = house.hub.line(state.channel_root)
    state, verdict = step(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert isinstance(verdict, KeepWatching)
    assert line.lease_until_s == house.clock.now_s() + 30.0
    late = replace(state, deadline_s=house.clock.now_s())
    _, verdict = step(house.engine, house.hub.open(state.channel_root), late, house.clock)
    assert isinstance(verdict, HandOver)
    assert line.lease_until_s == line.last_extension_s == house.clock.now_s() + 630.0


def test_channel_of_a_gang_that_is_over_is_not_extended_by_whoever_waits_for_its_lease_to_end() -> None:
    """Else the wait for a gang that may be alive, unseen, would be put off by its own end."""
    house = SimHouse()
    state = watched(house, lease_s=30.0)
    channel = house.hub.open(state.channel_root)
    revoked_s = channel.revoke(at_s=house.clock.now_s(), lease_s=30.0)
    waiting = replace(state, handle=None, wake_at_s=house.clock.now_s())
    _, verdict = conclude(channel, waiting, None, house.clock)
    assert isinstance(verdict, HandOver)
    assert isinstance(verdict.event, ev.Woke)
    assert channel.revoke(at_s=house.clock.now_s(), lease_s=30.0) == revoked_s


def test_lease_of_a_gang_that_failed_is_not_extended_for_a_successor_to_wait_out() -> None:
    house = SimHouse()
    state = watched(house, lease_s=30.0, handoff_limit_s=600.0)
    line = house.hub.line(state.channel_root)
    house.engine.faults.append(RankFails(at_step=1))
    house.clock.sleep(10.0)
    _, verdict = step(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert isinstance(verdict, HandOver)
    assert (line.lease_until_s or 0.0) <= house.clock.now_s() + 30.0


def test_watch_blocks_until_there_is_something_to_hand_over() -> None:
    house = SimHouse(training=SimTraining(num_steps=10))
    state = watched(house)
    event = watch(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert isinstance(event, ev.GangEnded)
    assert (event.fault, event.last_step) == (None, 10)


def test_watch_without_a_gang_only_waits() -> None:
    house = SimHouse()
    wake_at_s = house.clock.now_s() + 50.0
    event = watch(house.engine, None, WatchState(handle=None, wake_at_s=wake_at_s), house.clock)
    assert event == ev.Woke(at_s=wake_at_s)


def test_lease_is_written_again_once_half_of_it_is_gone() -> None:
    house = SimHouse()
    state = watched(house, lease_s=30.0)
    channel = house.hub.open(state.channel_root)
    line = house.hub.line(state.channel_root)
    written, left_s = [], []
    for _ in range(20):
        house.clock.sleep(2.0)
        state, _ = step(house.engine, channel, state, house.clock)
        assert line.lease_until_s is not None
        written.append(line.lease_until_s)
        left_s.append(line.lease_until_s - house.clock.now_s())
    assert len(set(written)) == 3
    assert min(left_s) >= 15.0


def test_lease_is_written_again_when_the_clock_was_set_back() -> None:
    house = SimHouse()
    state = watched(house, lease_s=30.0)
    state = replace(state, lease_until_s=house.clock.now_s() + 3600.0)
    step(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert house.hub.line(state.channel_root).lease_until_s == house.clock.now_s() + 30.0


def test_lease_is_renewed_though_nobody_can_ask_the_engine() -> None:
    house = SimHouse()
    state = watched(house, lease_s=30.0)
    house.clock.sleep(5.0)
    seen = see(house.hub.open(state.channel_root), state, Unseen(reason="down"), house.clock)
    assert seen.error == "down"
    assert house.hub.line(state.channel_root).lease_until_s == house.clock.now_s() + 30.0


@pytest.mark.parametrize("poll_interval_s", [5.0, 15.0, 45.0])
@pytest.mark.parametrize("is_blind", [False, True])
def test_lease_outlasts_every_pause_between_two_looks(poll_interval_s: float, is_blind: bool) -> None:
    house = SimHouse(training=SimTraining(num_steps=1000))
    state = watched(house, lease_s=30.0, poll_interval_s=poll_interval_s, max_look_errors=20)
    channel = house.hub.open(state.channel_root)
    line = house.hub.line(state.channel_root)
    if is_blind:
        house.engine.blind(for_s=600.0)
    for _ in range(12):
        state, verdict = step(house.engine, channel, state, house.clock)
        assert isinstance(verdict, KeepWatching)
        house.clock.sleep(verdict.after_s)
        assert line.lease_until_s is not None
        assert line.lease_until_s - house.clock.now_s() >= 7.0
    assert len(house.live()) == 1


def test_batched_and_blocking_looks_conclude_the_same() -> None:
    house = SimHouse()
    state = watched(house)
    assert state.handle is not None
    house.clock.sleep(20.0)
    channel = house.hub.open(state.channel_root)
    told = ask(house.engine, [state.handle])[state.handle]
    assert conclude(channel, state, told, house.clock) == step(house.engine, channel, state, house.clock)


HANDLES = [
    GangHandle(engine="x", key=AttemptKey(run=RunKey(f"r-{index}"), generation=1, attempt=1), native_id=str(index))
    for index in range(64)
]
RUNNING = GangStatus(phase=GangPhase.RUNNING, observed_at_s=1.0)


class Answering:
    """An engine that breaks over ``bad`` gangs and is silent about ``mute`` ones."""

    def __init__(self, *, bad: Sequence[int] = (), mute: Sequence[int] = (), blind: bool = False) -> None:
        self.bad = {HANDLES[index] for index in bad}
        self.mute = {HANDLES[index] for index in mute}
        self.blind = blind
        self.num_calls = 0

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        self.num_calls += 1
        if self.blind:
            raise CouldNotLookError("down")
        if self.bad & set(handles):
            raise KeyError("a state nobody knows")
        return {each: RUNNING for each in handles if each not in self.mute}


def test_all_are_asked_for_by_one_call() -> None:
    engine = Answering()
    assert ask(engine, HANDLES) == dict.fromkeys(HANDLES, RUNNING)  # type: ignore[arg-type]
    assert engine.num_calls == 1
    assert ask(engine, []) == {}  # type: ignore[arg-type]
    assert engine.num_calls == 1


def test_back_end_that_is_down_is_asked_once() -> None:
    engine = Answering(blind=True)
    assert ask(engine, HANDLES) == dict.fromkeys(HANDLES, Unseen(reason="down"))  # type: ignore[arg-type]
    assert engine.num_calls == 1


def test_gang_that_the_answer_leaves_out_is_unseen() -> None:
    told = ask(Answering(mute=[3]), HANDLES)  # type: ignore[arg-type]
    assert isinstance(told[HANDLES[3]], Unseen)
    assert [each for each in HANDLES if told[each] != RUNNING] == [HANDLES[3]]


@pytest.mark.parametrize("bad", [0, 17, 63])
def test_gang_that_breaks_the_call_is_found_and_the_others_are_seen(bad: int) -> None:
    engine = Answering(bad=[bad])
    told = ask(engine, HANDLES)  # type: ignore[arg-type]
    assert isinstance(told[HANDLES[bad]], KeyError)
    assert [each for each in HANDLES if told[each] != RUNNING] == [HANDLES[bad]]
    assert engine.num_calls <= 13


def test_engine_that_always_breaks_is_not_called_for_ever() -> None:
    engine = Answering(bad=range(64))
    told = ask(engine, HANDLES)  # type: ignore[arg-type]
    assert engine.num_calls == 13
    assert set(told) == set(HANDLES)
    assert any(isinstance(each, KeyError) for each in told.values())
    assert any(isinstance(each, Unseen) and "a state nobody knows" in each.reason for each in told.values())
