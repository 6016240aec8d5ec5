from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_llmsched import codec
from airflow_llmsched.control.events import CancelRequested
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.provider import gang_watch, poller
from airflow_llmsched.provider import looks as looks_module
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.poller import Connection
from airflow_llmsched.provider.triggers import gang as module
from airflow_llmsched.provider.triggers.gang import GangTrigger, broken
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.pipeline import first_event, python_sleeping, stored, through_json, watched
from tests.support.waiting import wait_until

LIMIT_S = 60


def test_arguments_survive_the_database_and_mean_the_same(slow):
    """Field case B1."""
    trigger = slow.defer("run_gang", lease_s=None, engine_options={**slow.options, "node_shape": "local-cpu"}).trigger
    again = stored(trigger)
    assert again.serialize() == trigger.serialize()
    assert codec.from_plain(GangSettings, again.settings).engine_options["node_shape"] == "local-cpu"
    assert codec.from_plain(GangSettings, again.settings).scope == slow.scope
    assert codec.from_plain(WatchState, again.watch).handle == slow.live()[0]
    json.dumps(trigger.serialize(), allow_nan=False)


def test_the_end_of_a_gang_is_handed_over_in_one_event_that_survives_the_database(pipeline):
    pipeline.prepare()
    deferred = pipeline.defer("run_gang")
    payload = asyncio.run(first_event(deferred.trigger))
    assert payload["handover"]["kind"] == "gang_ended"
    assert payload["handover"]["status"]["phase"] == "succeeded"
    assert through_json(payload) == payload


def test_a_failed_gang_is_an_event_at_the_first_look_with_the_backends_reason(make_pipeline):
    pipeline = make_pipeline(arguments=("--fail-at=1",)).prepare()
    deferred = pipeline.defer("run_gang")
    wait_until(lambda: not pipeline.live(), limit_s=LIMIT_S)
    looks = []
    conclude = looks_module.conclude
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looks_module, "conclude", lambda *look: looks.append(1) or conclude(*look))
        payload = asyncio.run(first_event(deferred.trigger))
    assert len(looks) == 1
    assert "exited with code 3" in payload["handover"]["fault"]["summary"]


@pytest.mark.parametrize(("where", "name"), [(Connection, "open"), (looks_module, "conclude"), (LocalEngine, "poll")])
def test_an_unforeseen_error_is_handed_over_and_never_raised(slow, where, name):
    trigger = slow.defer("run_gang").trigger

    def fail(*_arguments):
        raise ZeroDivisionError("unforeseen")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, fail)
        payload = asyncio.run(first_event(trigger))
    assert payload["broken"] == "ZeroDivisionError: unforeseen"
    assert payload["yielded_at_s"] > 0


def test_a_gang_whose_watch_broke_keeps_its_lease_while_the_task_waits_for_a_worker(slow):
    trigger = slow.defer("run_gang", lease_s=30.0).trigger

    def fail(*_arguments):
        raise ZeroDivisionError("unforeseen")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "poll", fail)
        payload = asyncio.run(first_event(trigger))
    assert "broken" in payload
    lease = DirectoryChannel(trigger.watch["channel_root"]).lease_until_s()
    assert lease == pytest.approx(payload["yielded_at_s"] + 30.0 + trigger.watch["handoff_limit_s"], abs=20.0)


@pytest.mark.parametrize("arguments", [{"settings": {}, "watch": {}}, {"settings": {"engine": "gone"}, "watch": {}}])
def test_arguments_that_no_longer_fit_are_handed_over_too(arguments):
    assert "broken" in asyncio.run(first_event(GangTrigger(purpose="train", **arguments)))


def test_cancelling_the_watch_propagates_and_leaves_the_gang_alone(slow):
    trigger = slow.defer("run_gang").trigger
    stepped = asyncio.Event()

    async def scenario():
        loop = asyncio.get_running_loop()
        conclude = looks_module.conclude

        def note(*look):
            loop.call_soon_threadsafe(stepped.set)
            return conclude(*look)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(looks_module, "conclude", note)
            watching = asyncio.ensure_future(first_event(trigger))
            await asyncio.wait_for(stepped.wait(), LIMIT_S)
            watching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watching
            mine = poller._pollers[loop]
            await asyncio.wait_for(_gone(mine), LIMIT_S)

    asyncio.run(scenario())
    assert len(slow.live()) == 1


async def _gone(pollers):
    while pollers:
        await asyncio.sleep(0.01)


def test_triggers_of_one_connection_share_a_poller_and_each_yields_its_own_event(slow):
    trigger = slow.defer("run_gang").trigger
    absent = [
        {**trigger.watch, "handle": _renamed(trigger.watch["handle"], f"ls-absent-{index}")} for index in range(8)
    ]

    async def scenario():
        triggers = [GangTrigger(purpose="train", settings=trigger.settings, watch=watch) for watch in absent]
        payloads = await asyncio.gather(*map(first_event, triggers))
        await asyncio.wait_for(_gone(poller._pollers[asyncio.get_running_loop()]), LIMIT_S)
        return payloads

    polled = []
    poll = LocalEngine.poll
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "poll", lambda engine, handles: polled.append(len(handles)) or poll(engine, handles))
        payloads = asyncio.run(scenario())
    assert [each["handover"]["key"]["run"] for each in payloads] == [f"ls-absent-{index}" for index in range(8)]
    assert sum(polled) == 8
    assert len(polled) < 8


def _renamed(handle, run):
    key = {**handle["key"], "run": run}
    return {**handle, "key": key, "native_id": f"{run}-g{key['generation']}-a{key['attempt']}"}


@pytest.mark.parametrize("state", ["failed", "success", "skipped", None])
def test_the_end_of_its_task_kills_the_gang(slow, monkeypatch, state):
    trigger = watched(slow.defer("run_gang").trigger, state=state, monkeypatch=monkeypatch)
    asyncio.run(trigger.on_kill())
    assert not slow.live()
    assert len([event for event in slow.journal() if isinstance(event, CancelRequested)]) == 1


@pytest.mark.parametrize("state", sorted(module.GOES_ON))
def test_a_move_kills_nothing_even_when_the_other_triggerer_has_handed_over_since(slow, monkeypatch, state):
    trigger = watched(slow.defer("run_gang").trigger, state=state, monkeypatch=monkeypatch)
    asyncio.run(trigger.on_kill())
    assert len(slow.live()) == 1
    assert not [event for event in slow.journal() if isinstance(event, CancelRequested)]


def test_a_mapped_tasks_state_is_read_by_its_index(slow, monkeypatch):
    trigger = watched(slow.defer("run_gang").trigger, state="deferred", monkeypatch=monkeypatch, map_index=3)
    asyncio.run(trigger.on_kill())
    assert len(slow.live()) == 1


def test_a_state_that_cannot_be_read_kills_nothing(slow, monkeypatch):
    trigger = watched(slow.defer("run_gang").trigger, state="failed", monkeypatch=monkeypatch)

    def fail(**_asked):
        raise ConnectionError("no answer")

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", fail)
    with pytest.raises(ConnectionError):
        asyncio.run(trigger.on_kill())
    assert len(slow.live()) == 1


@pytest.mark.parametrize("slow_part", ["reading the state", "killing"])
def test_the_kill_goes_on_when_airflow_gives_up_waiting_for_it(slow, monkeypatch, slow_part):
    trigger = watched(slow.defer("run_gang").trigger, state="failed", monkeypatch=monkeypatch)
    began, go_on = threading.Event(), threading.Event()

    def held(call):
        def hold(*arguments, **named):
            began.set()
            assert go_on.wait(LIMIT_S)
            return call(*arguments, **named)

        return hold

    if slow_part == "killing":
        monkeypatch.setattr(gang_watch, "cancel", held(gang_watch.cancel))
    else:
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", held(RuntimeTaskInstance.get_task_states))

    async def scenario():
        killing = asyncio.ensure_future(trigger.on_kill())
        while not began.is_set():
            await asyncio.sleep(0.01)
        killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing
        assert len(slow.live()) == 1
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*module._ENDINGS), LIMIT_S)

    asyncio.run(scenario())
    assert not slow.live()
    assert not module._ENDINGS


def test_a_kill_that_fails_after_airflow_gave_up_is_logged(slow, monkeypatch, caplog):
    trigger = watched(slow.defer("run_gang").trigger, state="failed", monkeypatch=monkeypatch)

    def fail(*_arguments):
        raise OSError("disk gone")

    monkeypatch.setattr(gang_watch, "cancel", fail)
    with pytest.raises(OSError, match="disk gone"):
        asyncio.run(trigger.on_kill())
    assert "may still be alive" in caplog.text


@pytest.mark.parametrize("changes", [{"try_number": 2, "ti_id": "another"}, {"max_tries": 1, "ti_id": "another"}])
def test_a_late_kill_leaves_the_gang_of_a_newer_try_or_generation_alone(slow, monkeypatch, changes):
    late = watched(slow.defer("run_gang").trigger, state="failed", monkeypatch=monkeypatch)
    task = slow.task("run_gang", deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(slow.context(task, **changes))
    (alive,) = slow.live()
    asyncio.run(late.on_kill())
    assert slow.live() == [alive]


def test_a_late_kill_of_an_evaluation_leaves_a_newer_generation_alone(make_pipeline, monkeypatch):
    pipeline = make_pipeline(evaluation={"command": python_sleeping()}).prepare()
    path = "/checkpoints/step-00000006"
    late = pipeline.defer("evaluate_checkpoint", checkpoint=path).trigger
    pipeline.clear()
    pipeline.defer("evaluate_checkpoint", checkpoint=path)
    (alive,) = pipeline.live(pipeline.scope.evaluation_key)
    asyncio.run(watched(late, state="failed", monkeypatch=monkeypatch).on_kill())
    assert pipeline.live(pipeline.scope.evaluation_key) == [alive]


def test_a_trigger_that_never_belonged_to_a_task_may_kill(slow):
    asyncio.run(slow.defer("run_gang").trigger.on_kill())
    assert not slow.live()


def test_a_broken_watch_says_what_and_when():
    payload = broken(ValueError("x"))
    assert payload["broken"] == "ValueError: x"
    assert through_json(payload) == payload


def test_a_watched_gangs_run_keeps_its_leases(slow, sim_cloud):
    slow.run("provision")
    trigger = slow.defer("run_gang").trigger
    ((lease_id, request),) = sim_cloud.cloud._requests.items()
    sim_cloud.shorten(lease_id, until_s=time.time() + 100.0)

    async def scenario():
        watching = asyncio.ensure_future(first_event(trigger))
        while request.lease.expires_at_s < time.time() + 1800.0:
            await asyncio.sleep(0.01)
        assert not watching.done()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_a_gang_is_watched_to_its_end_though_its_leases_cannot_be_kept(pipeline, sim_cloud, monkeypatch):
    pipeline.prepare()
    pipeline.run("provision")
    trigger = pipeline.defer("run_gang").trigger

    def fail(_ids):
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(sim_cloud.cloud, "leases", fail)
    payload = asyncio.run(first_event(trigger))
    assert payload["handover"]["kind"] == "gang_ended"
