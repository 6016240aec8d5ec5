from __future__ import annotations

import asyncio
import gc
import itertools
import json
import threading
import time
import weakref

import pytest

from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.errors import CouldNotLookError, InternalError, SpecError
from airflow_llmsched.provider import poller as poller_module
from airflow_llmsched.provider.poller import MAX_HUNG_CALLS, Connection, SharedPoller, shared_poller
from tests.support.poller_house import House, handle, run, state, until


def poller_of(house: House, **changes) -> SharedPoller:
    return SharedPoller(lambda: house.engine, name="house", open_channel=house.open_channel, **changes)


def watches(poller: SharedPoller, *states: WatchState) -> list[asyncio.Task]:
    return [asyncio.ensure_future(poller.watch(each)) for each in states]


async def stop(*tasks: asyncio.Task) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def kind(payload: dict) -> str:
    return payload["handover"]["kind"]


def test_all_gangs_that_are_due_are_asked_for_by_one_call():
    async def scenario() -> None:
        house = House()
        tasks = watches(poller_of(house), *(state(index, poll_interval_s=0.3) for index in range(200)))
        await until(lambda: len(house.engine.calls) >= 3)
        assert [len(call) for call in house.engine.calls[:3]] == [200, 200, 200]
        await stop(*tasks)

    run(scenario())


def test_newcomers_fall_into_step_with_the_others():
    async def scenario() -> None:
        house = House()
        poller = poller_of(house)
        tasks = watches(poller, state(0, poll_interval_s=0.4))
        await until(lambda: len(house.engine.calls) == 1)
        tasks += watches(poller, state(1, poll_interval_s=0.4))
        await until(lambda: len(house.engine.calls) >= 6)
        assert [len(call) for call in house.engine.calls[3:6]] == [2, 2, 2]
        await stop(*tasks)

    run(scenario())


def test_ended_gang_is_handed_over_and_the_others_are_watched_on():
    async def scenario() -> None:
        house = House()
        ended, going = watches(poller_of(house), state(0), state(1))
        house.engine.ended.add(handle(0))
        payload = await ended
        assert kind(payload) == "gang_ended"
        json.dumps(payload)
        seen = len(house.engine.calls)
        await until(lambda: len(house.engine.calls) > seen + 2)
        assert house.engine.calls[-1] == [handle(1)]
        assert not going.done()
        await stop(going)

    run(scenario())


def test_watch_without_a_gang_waits_and_never_asks_the_engine():
    async def scenario() -> None:
        house = House()
        house.engine.open.clear()
        hung, waiting = watches(poller_of(house), state(0), WatchState(handle=None, wake_at_s=time.time() + 0.2))
        assert kind(await waiting) == "woke"
        await stop(hung)
        house.engine.open.set()

    run(scenario())


def test_hung_engine_delays_neither_the_loop_nor_another_connection():
    async def scenario() -> None:
        hung, well = House(), House()
        hung.engine.open.clear()
        stuck = watches(poller_of(hung), *(state(index) for index in range(20)))
        await until(lambda: bool(hung.engine.calls))
        well.engine.ended.add(handle(0))
        (ended,) = watches(poller_of(well), state(0))
        assert kind(await asyncio.wait_for(ended, timeout=10)) == "gang_ended"
        assert not any(each.done() for each in stuck)
        await stop(*stuck)
        hung.engine.open.set()

    run(scenario())


def test_call_that_takes_too_long_is_a_failed_look_of_each_gang_that_was_due():
    async def scenario() -> None:
        house = House()
        house.engine.open.clear()
        tasks = watches(poller_of(house, call_limit_s=0.1), *(state(index, max_look_errors=2) for index in range(5)))
        payloads = await asyncio.gather(*tasks)
        assert {kind(each) for each in payloads} == {"look_failed"}
        assert {each["handover"]["num_errors"] for each in payloads} == {3}
        house.engine.open.set()

    run(scenario())


def test_engine_that_hangs_holds_a_few_threads_and_is_not_called_again_until_one_is_back():
    async def scenario() -> None:
        house = House()
        house.engine.open.clear()
        tasks = watches(poller_of(house, call_limit_s=0.05), state(0, max_look_errors=6))
        payload = await tasks[0]
        assert "hang" in payload["handover"]["reason"]
        assert len(house.engine.calls) == MAX_HUNG_CALLS
        house.engine.open.set()

    run(scenario())


def test_back_end_that_comes_back_is_looked_at_again():
    async def scenario() -> None:
        house = House()
        house.engine.open.clear()
        (task,) = watches(poller_of(house, call_limit_s=0.05), state(0, max_look_errors=60))
        await until(lambda: len(house.engine.calls) == MAX_HUNG_CALLS)
        house.engine.open.set()
        house.engine.ended.add(handle(0))
        assert kind(await task) == "gang_ended"

    run(scenario())


def test_hung_channel_delays_no_other_gang_and_is_not_looked_at_twice_at_once():
    async def scenario() -> None:
        house = House()
        house.channel(0).open.clear()
        stuck, *going = watches(
            poller_of(house, call_limit_s=2.0), state(0, max_look_errors=2), *(state(index) for index in range(1, 30))
        )
        await until(lambda: house.channel(0).num_looks == 1)
        house.engine.ended |= {handle(index) for index in range(1, 30)}
        payloads = await asyncio.wait_for(asyncio.gather(*going), timeout=20)
        assert {kind(each) for each in payloads} == {"gang_ended"}
        payload = await stuck
        assert kind(payload) == "look_failed"
        assert house.channel(0).num_looks == 1
        house.channel(0).open.set()

    run(scenario())


def test_500_old_jobs_and_a_throttled_api_take_a_few_calls():
    """Field case A23: whoever lists or describes job by job is throttled after 20 calls."""

    async def scenario() -> None:
        house = House()

        def throttle(_handles: object) -> None:
            if len(house.engine.calls) > 20:
                raise AssertionError("more calls than 500 jobs are worth")
            if len(house.engine.calls) % 2:
                raise CouldNotLookError("rate exceeded: try again")

        house.engine.fails = throttle
        tasks = watches(poller_of(house), *(state(index, poll_interval_s=0.2) for index in range(500)))
        await until(lambda: len(house.engine.calls) >= 2)
        house.engine.ended |= {handle(index) for index in range(500)}
        payloads = await asyncio.gather(*tasks)
        assert {kind(each) for each in payloads} == {"gang_ended"}
        assert len(house.engine.calls) <= 6

    run(scenario())


def test_failed_calls_are_made_less_and_less_often():
    async def scenario() -> None:
        house = House()
        made_s: list[float] = []

        def fail(_handles: object) -> None:
            made_s.append(time.monotonic())
            raise CouldNotLookError("down")

        house.engine.fails = fail
        begun_s = time.monotonic()
        tasks = watches(poller_of(house), *(state(index, max_look_errors=4) for index in range(10)))
        await asyncio.gather(*tasks)
        # Pauses count from when a call is due, not from when a thread got to it: late ones bring the next no further.
        due_s = itertools.accumulate((0.05 * 2**number for number in range(1, 5)), initial=0.0)
        assert all(made - begun_s >= 0.9 * due for made, due in zip(made_s, due_s, strict=True))

    run(scenario())


def test_gang_that_breaks_its_call_ends_its_own_watch_only():
    async def scenario() -> None:
        house = House()

        def fail(handles: object) -> None:
            if handle(7) in handles:  # type: ignore[operator]
                raise InternalError("an outcome nobody knows")

        house.engine.fails = fail
        tasks = watches(poller_of(house), *(state(index) for index in range(20)))
        with pytest.raises(InternalError, match="nobody knows"):
            await tasks[7]
        seen = len(house.engine.calls)
        await until(lambda: len(house.engine.calls) > seen + 2)
        assert len(house.engine.calls[-1]) == 19
        assert sum(each.done() for each in tasks) == 1
        await stop(*tasks)

    run(scenario())


def test_engine_that_cannot_be_opened_breaks_the_watches_that_need_it():
    async def scenario() -> None:
        def refuse() -> None:
            raise SpecError(path="engine", value="x", hint="unknown")

        poller = SharedPoller(refuse, name="x", open_channel=House().open_channel)
        tasks = watches(poller, state(0), state(1))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in results] == [SpecError, SpecError]

    run(scenario())


def test_lease_is_renewed_though_the_engine_cannot_be_asked():
    async def scenario() -> None:
        house = House()

        def fail(_handles: object) -> None:
            raise CouldNotLookError("down")

        house.engine.fails = fail
        (task,) = watches(poller_of(house), state(0, lease_s=0.1, max_look_errors=1000))
        await until(lambda: len(house.channel(0).renewed_until_s) >= 3)
        await stop(task)

    run(scenario())


def test_nothing_is_left_when_the_last_watch_has_left():
    async def scenario() -> None:
        house = House()
        idle: list[str] = []
        poller = poller_of(house, on_idle=lambda: idle.append("idle"))
        tasks = watches(poller, state(0), state(1))
        await until(lambda: len(house.engine.calls) >= 2)
        mine = [each for each in threading.enumerate() if each.ident in house.engine.threads]
        assert mine
        await stop(*tasks)
        await until(lambda: idle == ["idle"])
        await until(lambda: not any(each.is_alive() for each in mine))
        gone = weakref.ref(poller)
        del poller, tasks
        await asyncio.sleep(0)
        gc.collect()
        assert gone() is None

    run(scenario())


def local(root: str) -> Connection:
    return Connection.of("local", {"root": root, "num_nodes": 2})


def lost(**changes: object) -> WatchState:
    """A gang of which the local engine has never heard."""
    key = AttemptKey(run=RunKey("ls-abc-1"), generation=1, attempt=1)
    gang = GangHandle(engine="local", key=key, native_id=key.name)
    return WatchState(handle=gang, channel_root="/nowhere", launched_at_s=0.0, poll_interval_s=0.05, **changes)


def test_equal_options_in_any_order_are_one_connection(tmp_path):
    assert Connection.of("local", {"a": 1, "b": [2]}) == Connection.of("local", {"b": [2], "a": 1})
    assert Connection.of("local", {"a": 1}) != Connection.of("local", {"a": 2})

    async def scenario() -> None:
        assert shared_poller(local(str(tmp_path))) is shared_poller(local(str(tmp_path)))
        assert shared_poller(local(str(tmp_path))) is not shared_poller(local(str(tmp_path / "other")))

    run(scenario())


def test_poller_is_made_anew_in_another_loop_and_after_the_last_watch_has_left(tmp_path):
    found: list[SharedPoller] = []

    async def scenario() -> None:
        connection = local(str(tmp_path))
        for _ in range(2):
            poller = shared_poller(connection)
            found.append(poller)
            assert kind(await poller.watch(lost())) == "gang_ended"
            await until(lambda: connection not in poller_module._pollers[asyncio.get_running_loop()])

    run(scenario())
    run(scenario())
    assert len(set(map(id, found))) == 4


def test_poller_of_a_loop_that_was_closed_half_way_is_forgotten(tmp_path):
    async def half_way() -> None:
        task = asyncio.ensure_future(shared_poller(local(str(tmp_path))).watch(lost()))
        await asyncio.sleep(0)
        assert not task.done()

    async def another() -> None:
        shared_poller(local(str(tmp_path)))
        assert set(poller_module._pollers) == {asyncio.get_running_loop()}

    asyncio.run(half_way())
    asyncio.run(another())
