from __future__ import annotations

import threading
import time

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control.events import Woke
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.provider.gang_watch import CANCEL, KILLED, GangWatch, cancel, handed_over
from airflow_llmsched.provider.operators.evaluation import EvaluateCheckpointOperator
from airflow_llmsched.provider.operators.gang import RunGangOperator
from airflow_llmsched.provider.operators.preflight import PreflightOperator
from tests.support.pipeline import through_json
from tests.support.waiting import wait_until

LIMIT_S = 60


def _to_the_end(watch):
    give_up_s = time.monotonic() + LIMIT_S
    while time.monotonic() < give_up_s:
        wait_s, event = watch.step()
        if event is not None:
            return event
        time.sleep(wait_s)
    raise AssertionError("no event")


def test_a_watch_goes_on_until_the_gang_has_ended(pipeline):
    trigger = pipeline.prepare().defer("run_gang").trigger
    event = _to_the_end(GangWatch.open(trigger.settings, trigger.watch))
    assert event["handover"]["kind"] == "gang_ended"
    assert event["handover"]["last_step"] == 6


def test_a_look_at_a_healthy_gang_says_when_to_look_again_and_renews_its_lease(slow):
    trigger = slow.defer("run_gang", poll_interval_s=0.7, lease_s=90.0).trigger
    before_s = time.time()
    wait_s, event = GangWatch.open(trigger.settings, trigger.watch).step()
    assert event is None
    assert wait_s == pytest.approx(0.7)
    (lease,) = (slow.scope.directory / "channel").rglob("lease.json")
    assert codec.from_json(dict, lease.read_bytes())["until_s"] >= before_s + 90.0


def test_without_a_gang_it_waits_until_it_is_time(slow):
    trigger = slow.defer("run_gang").trigger
    waiting = {**trigger.watch, "handle": None, "channel_root": "", "ground": "", "wake_at_s": time.time() + 3600}
    wait_s, event = GangWatch.open(trigger.settings, waiting).step()
    assert event is None
    assert wait_s == pytest.approx(3600, abs=60)
    _, event = GangWatch.open(trigger.settings, {**waiting, "wake_at_s": time.time()}).step()
    assert event["handover"]["kind"] == "woke"


def test_a_run_that_waits_is_woken_before_its_time_when_it_is_its_turn(slow):
    trigger = slow.defer("run_gang").trigger
    waiting = {**trigger.watch, "handle": None, "channel_root": "", "wake_at_s": time.time() + 3600}
    _, event = GangWatch.open(trigger.settings, waiting).step()
    assert event["handover"]["kind"] == "woke"
    _, event = GangWatch.open(trigger.settings, trigger.watch).step()
    assert event is None


def test_an_engine_that_is_gone_from_this_process_is_a_spec_error(slow):
    trigger = slow.defer("run_gang").trigger
    with pytest.raises(SpecError, match="lokal"):
        GangWatch.open({**trigger.settings, "engine": "lokal"}, trigger.watch)


def test_what_is_handed_over_is_json_and_says_when():
    payload = handed_over(Woke(at_s=1.5))
    assert payload["handover"] == {"at_s": 1.5, "kind": "woke"}
    assert payload["yielded_at_s"] == pytest.approx(time.time(), abs=5)
    assert through_json(payload) == payload


def test_every_gang_operators_purpose_is_one_that_a_trigger_can_end():
    operators = (RunGangOperator, EvaluateCheckpointOperator, PreflightOperator)
    assert {operator.purpose for operator in operators} == set(CANCEL)


def test_a_persons_end_of_the_task_ends_the_training_durably(slow):
    trigger = slow.defer("run_gang").trigger
    cancel(trigger.purpose, through_json(trigger.settings))
    assert not slow.live()
    assert KILLED in [event.reason for event in slow.journal() if event.kind == "cancel_requested"]
    cancel(trigger.purpose, through_json(trigger.settings))
    assert [event.kind for event in slow.journal()].count("cancel_requested") == 1


def test_a_run_whose_spec_is_gone_cannot_be_cancelled_and_says_so(slow):
    trigger = slow.defer("run_gang").trigger
    slow.lose("spec.json")
    with pytest.raises(DataError, match=r"spec\.json"):
        cancel(trigger.purpose, trigger.settings)


def test_a_blocking_watch_keeps_the_runs_leases_and_goes_on_while_a_cloud_hangs(slow, sim_cloud, monkeypatch):
    slow.run("provision")
    trigger = slow.defer("run_gang", poll_interval_s=0.1).trigger
    ((lease_id, request),) = sim_cloud.cloud._requests.items()
    sim_cloud.shorten(lease_id, until_s=time.time() + 100.0)
    began, go_on = threading.Event(), threading.Event()
    leases = sim_cloud.cloud.leases

    def hang(ids):
        began.set()
        assert go_on.wait(LIMIT_S)
        return leases(ids)

    monkeypatch.setattr(sim_cloud.cloud, "leases", hang)
    watch = GangWatch.open(trigger.settings, trigger.watch)
    for _ in range(3):
        assert watch.step()[1] is None
    assert began.wait(LIMIT_S)
    go_on.set()
    wait_until(lambda: request.lease.expires_at_s > time.time() + 1800.0, limit_s=LIMIT_S)
