from __future__ import annotations

import asyncio
import threading
import time

import pytest

from airflow_llmsched.agent.spool import read_json
from airflow_llmsched.control import open_clouds
from airflow_llmsched.domain.lease import NodeNotice, NoticeKind
from airflow_llmsched.errors import StoreError
from airflow_llmsched.provider import lease_watch
from airflow_llmsched.provider.lease_watch import (
    IDLE_PASS_EVERY_S,
    PASS_EVERY_S,
    BackgroundPasses,
    LeasePasses,
    Watched,
    watching_leases,
)
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.waiting import wait_until

LIMIT_S = 30


@pytest.fixture
def renting(pipeline, sim_cloud):
    """A run that has rented two nodes."""
    pipeline.run("provision")
    return pipeline


def _lease(pipeline, sim_cloud):
    (rental,) = pipeline.book().open()
    return sim_cloud.cloud.leases([rental.intent.lease_id])[rental.intent.lease_id]


def _grow_old(pipeline, sim_cloud):
    """Let nearly all of the lease's hold be over."""
    sim_cloud.shorten(_lease(pipeline, sim_cloud).id, until_s=time.time() + 100.0)


def _is_renewed(pipeline, sim_cloud):
    return _lease(pipeline, sim_cloud).expires_at_s > time.time() + 1800.0


def _num_orders(root) -> int:
    orders = read_json(root / "down" / "orders.json")
    return 0 if orders is None else orders["checkpoint_seq"]


def test_a_pass_renews_what_has_lost_half_of_its_hold(renting, sim_cloud):
    _grow_old(renting, sim_cloud)
    assert LeasePasses().make([Watched(scope=renting.scope)]) == PASS_EVERY_S
    assert _is_renewed(renting, sim_cloud)


def test_passes_over_runs_that_rent_nothing_are_rare(pipeline, sim_cloud):
    assert LeasePasses().make([Watched(scope=pipeline.scope)]) == IDLE_PASS_EVERY_S


def test_all_runs_of_a_pass_are_kept_by_one_call_of_their_cloud(make_pipeline, sim_cloud, monkeypatch):
    pipelines = [make_pipeline(dag_id=f"dag_{number}") for number in range(3)]
    for pipeline in pipelines:
        pipeline.run("provision")
        _grow_old(pipeline, sim_cloud)
    calls = []
    leases = sim_cloud.cloud.leases
    monkeypatch.setattr(sim_cloud.cloud, "leases", lambda ids: calls.append(len(ids)) or leases(ids))
    LeasePasses().make([Watched(scope=each.scope) for each in pipelines])
    assert calls == [3]
    assert all(_is_renewed(each, sim_cloud) for each in pipelines)


@pytest.mark.parametrize("at_s", [None, 120.0])
def test_an_announced_interruption_orders_one_checkpoint(renting, sim_cloud, tmp_path, at_s):
    passes = LeasePasses()
    watched = [Watched(scope=renting.scope, channel_root=str(tmp_path))]
    passes.make(watched)
    assert _num_orders(tmp_path) == 0
    effective_at_s = None if at_s is None else time.time() + at_s
    first, second = _lease(renting, sim_cloud).nodes
    sim_cloud.notify(first.id, NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=effective_at_s))
    for _ in range(3):
        passes.make(watched)
    assert _num_orders(tmp_path) == 1
    sim_cloud.notify(second.id, NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=effective_at_s))
    passes.make(watched)
    assert _num_orders(tmp_path) == 2


@pytest.mark.parametrize("kind", [NoticeKind.REBALANCE, NoticeKind.MAINTENANCE])
def test_a_hint_that_mostly_comes_to_nothing_orders_none(renting, sim_cloud, tmp_path, kind):
    sim_cloud.notify(_lease(renting, sim_cloud).nodes[0].id, NodeNotice(kind=kind))
    LeasePasses().make([Watched(scope=renting.scope, channel_root=str(tmp_path))])
    assert _num_orders(tmp_path) == 0


def test_an_order_that_could_not_be_given_is_given_at_the_next_pass(renting, sim_cloud, tmp_path, monkeypatch):
    passes = LeasePasses()
    watched = [Watched(scope=renting.scope, channel_root=str(tmp_path))]
    sim_cloud.notify(_lease(renting, sim_cloud).nodes[0].id, NodeNotice(kind=NoticeKind.INTERRUPTION))

    def fail(_self):
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryChannel, "order_checkpoint", fail)
        passes.make(watched)
    passes.make(watched)
    assert _num_orders(tmp_path) == 1


def test_what_is_wrong_is_said_once_for_as_long_as_it_lasts(renting, sim_cloud, caplog):
    passes = LeasePasses()
    sim_cloud.preempt(_lease(renting, sim_cloud).nodes[0].id)
    for _ in range(3):
        passes.make([Watched(scope=renting.scope)])
    assert caplog.text.count("has lost sim-000000") == 1
    sim_cloud.go_dark(is_dark=True)
    for _ in range(3):
        assert passes.make([Watched(scope=renting.scope)]) == PASS_EVERY_S
    assert caplog.text.count("does not answer") == 1


def test_a_damaged_record_is_said_once_and_what_can_be_read_is_renewed(renting, sim_cloud, caplog):
    _grow_old(renting, sim_cloud)
    (record,) = renting.state_root.glob("runs/*/leases/*/intended.json")
    damaged = record.parent.with_name("g0000-r00002") / record.name
    damaged.parent.mkdir()
    damaged.write_bytes(b"{")
    passes = LeasePasses()
    for _ in range(3):
        assert passes.make([Watched(scope=renting.scope)]) == PASS_EVERY_S
    damaged.unlink()
    assert _is_renewed(renting, sim_cloud)
    assert caplog.text.count(f"{damaged} is damaged") == 1
    assert "trying again" not in caplog.text


def test_after_trouble_the_cloud_is_opened_anew_for_its_credentials_may_have_changed(renting, sim_cloud, monkeypatch):
    opened = []
    load = open_clouds.load
    monkeypatch.setattr(open_clouds, "load", lambda group, name: opened.append(name) or load(group, name))
    passes, watched = LeasePasses(), [Watched(scope=renting.scope)]
    for _ in range(3):
        passes.make(watched)
    assert len(opened) == 1
    sim_cloud.go_dark(is_dark=True)
    passes.make(watched)
    sim_cloud.go_dark(is_dark=False)
    passes.make(watched)
    assert len(opened) == 2


def test_after_an_hour_too(renting, sim_cloud, monkeypatch):
    opened = []
    load = open_clouds.load
    monkeypatch.setattr(open_clouds, "load", lambda group, name: opened.append(name) or load(group, name))
    monkeypatch.setattr(lease_watch, "REOPEN_AFTER_S", 0.0)
    passes, watched = LeasePasses(), [Watched(scope=renting.scope)]
    for _ in range(2):
        passes.make(watched)
    assert len(opened) == 2


def test_what_nobody_foresaw_ends_no_pass_for_good(renting, sim_cloud, monkeypatch, caplog):
    _grow_old(renting, sim_cloud)
    passes = LeasePasses()

    def fail(_ids):
        raise ZeroDivisionError("unforeseen")

    with monkeypatch.context() as patch:
        patch.setattr(sim_cloud.cloud, "leases", fail)
        assert passes.make([Watched(scope=renting.scope)]) == PASS_EVERY_S
    assert "unforeseen" in caplog.text
    passes.make([Watched(scope=renting.scope)])
    assert _is_renewed(renting, sim_cloud)


def test_a_worker_goes_on_while_its_pass_hangs(renting, sim_cloud, monkeypatch):
    began, go_on = threading.Event(), threading.Event()
    leases = sim_cloud.cloud.leases

    def hang(ids):
        began.set()
        assert go_on.wait(LIMIT_S)
        return leases(ids)

    passes = BackgroundPasses(Watched(scope=renting.scope))
    with monkeypatch.context() as patch:
        patch.setattr(sim_cloud.cloud, "leases", hang)
        passes.tend()
        assert began.wait(LIMIT_S)
        passes.tend()  # and returns
        go_on.set()
        wait_until(passes._pass.done, limit_s=LIMIT_S)
    passes.tend()
    assert passes._pass is None  # the next is due in half a minute


def test_a_triggerer_keeps_the_leases_of_whoever_is_watched(renting, sim_cloud):
    _grow_old(renting, sim_cloud)

    async def scenario():
        with watching_leases(Watched(scope=renting.scope)):
            await _until(lambda: _is_renewed(renting, sim_cloud))

    asyncio.run(scenario())


def test_passes_go_on_for_as_long_as_anyone_is_watched(renting, sim_cloud, monkeypatch):
    monkeypatch.setattr(lease_watch, "GATHER_S", 0.01)
    monkeypatch.setattr(lease_watch, "PASS_EVERY_S", 0.05)
    made = _noting_passes(monkeypatch)

    async def scenario():
        with watching_leases(Watched(scope=renting.scope)):
            await _until(lambda: len(made) >= 3)
            _grow_old(renting, sim_cloud)
            await _until(lambda: _is_renewed(renting, sim_cloud))

    asyncio.run(scenario())


def test_whoever_joins_need_not_wait_for_the_next_pass(make_pipeline, sim_cloud, monkeypatch):
    monkeypatch.setattr(lease_watch, "GATHER_S", 0.01)
    idle, renting = make_pipeline(dag_id="idle"), make_pipeline(dag_id="renting")
    renting.run("provision")
    _grow_old(renting, sim_cloud)
    made = _noting_passes(monkeypatch)

    async def scenario():
        with watching_leases(Watched(scope=idle.scope)):
            await _until(lambda: made)
            with watching_leases(Watched(scope=renting.scope)):
                await _until(lambda: _is_renewed(renting, sim_cloud))

    asyncio.run(scenario())
    assert [len(each) for each in made] == [1, 2]


def test_whoever_comes_right_after_the_last_one_left_is_kept_too(renting, sim_cloud):
    async def scenario():
        with watching_leases(Watched(scope=renting.scope)):
            pass
        _grow_old(renting, sim_cloud)
        with watching_leases(Watched(scope=renting.scope)):
            await _until(lambda: _is_renewed(renting, sim_cloud))

    asyncio.run(scenario())


def test_nobody_watched_is_nothing_left_to_run(renting, sim_cloud):
    async def scenario():
        with watching_leases(Watched(scope=renting.scope)):
            assert "llmsched leases" in {task.get_name() for task in asyncio.all_tasks()}
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "llmsched leases" not in {task.get_name() for task in asyncio.all_tasks()}

    asyncio.run(scenario())


def test_a_cloud_that_hangs_never_stops_the_event_loop(renting, sim_cloud, monkeypatch):
    began, go_on = threading.Event(), threading.Event()

    def hang(_ids):
        began.set()
        go_on.wait(LIMIT_S)
        return {}

    async def scenario():
        with watching_leases(Watched(scope=renting.scope)):
            await _until(began.is_set)
            turns = 0
            while turns < 100:
                await asyncio.sleep(0)
                turns += 1
            assert not go_on.is_set()

    with monkeypatch.context() as patch:
        patch.setattr(sim_cloud.cloud, "leases", hang)
        asyncio.run(scenario())
        go_on.set()


def _noting_passes(monkeypatch) -> list[list[Watched]]:
    made: list[list[Watched]] = []
    make = LeasePasses.make
    monkeypatch.setattr(LeasePasses, "make", lambda self, watched: made.append(list(watched)) or make(self, watched))
    return made


async def _until(condition) -> None:
    async def wait():
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), LIMIT_S)
