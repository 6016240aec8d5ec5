from __future__ import annotations

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_llmsched.control.spending import Spend
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.provider import metrics
from airflow_llmsched.provider.metrics import gauge_asks, gauge_queue, gauge_rentals


class Gauges(dict):
    """A metrics back end that remembers."""

    def gauge(self, stat, value, rate=1, delta=False, *, tags=None):
        self[stat] = value


@pytest.fixture
def gauges(monkeypatch):
    """What a configured back end gets; nothing has set up the Task SDK's metrics yet, as in a triggerer."""
    seen = Gauges()
    monkeypatch.setattr(stats_utils, "get_stats_factory", lambda: lambda: seen)
    metrics._set_up.cache_clear()
    yield seen
    metrics._set_up.cache_clear()
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)


def test_what_a_run_rents_is_a_gauge_under_its_key(gauges):
    gauge_rentals(RunKey("ls-a"), Spend(usd=12.5, usd_per_hour=24.0), num_open=1)
    assert gauges == {
        "llmsched.rented_usd.ls-a": 12.5,
        "llmsched.rented_usd_per_hour.ls-a": 24.0,
        "llmsched.open_leases.ls-a": 1,
    }


def test_a_run_that_rents_is_gauged_by_whoever_keeps_its_leases_and_at_its_end(pipeline, sim_cloud, gauges):
    from airflow_llmsched.provider.lease_watch import LeasePasses, Watched

    pipeline.run("provision")
    LeasePasses().make([Watched(scope=pipeline.scope)])
    key = pipeline.scope.run_key
    assert gauges[f"llmsched.open_leases.{key}"] == 1
    assert gauges[f"llmsched.rented_usd_per_hour.{key}"] == 24.0
    held_usd = gauges[f"llmsched.rented_usd.{key}"]
    pipeline.run("release")
    assert gauges[f"llmsched.open_leases.{key}"] == 0
    assert gauges[f"llmsched.rented_usd_per_hour.{key}"] == 0.0
    assert gauges[f"llmsched.rented_usd.{key}"] >= held_usd > 0.0


def test_a_run_that_rents_nothing_has_no_gauge(pipeline, gauges):
    pipeline.run("release")
    assert gauges == {}


def test_a_back_end_that_fails_keeps_no_machine(pipeline, sim_cloud, gauges, monkeypatch, caplog):
    def fail(*_arguments, **_named):
        raise OSError("no route to statsd")

    pipeline.run("provision")
    monkeypatch.setattr(gauges, "gauge", fail, raising=False)
    pipeline.run("release")
    assert not sim_cloud.billed()
    assert "no route to statsd" in caplog.text


def test_a_run_that_asks_about_its_budget_is_a_gauge_until_it_is_answered(gauges):
    gauge_asks(RunKey("ls-a"), asks=True)
    assert gauges == {"llmsched.budget_asks.ls-a": 1}
    gauge_asks(RunKey("ls-a"), asks=False)
    assert gauges == {"llmsched.budget_asks.ls-a": 0}


def test_a_run_that_waits_is_gauged_by_how_long_and_until_when_if_anybody_knows(gauges):
    gauge_queue(RunKey("ls-a"), waits_s=60.0, starts_in_s=None)
    assert gauges == {"llmsched.queue_waits_s.ls-a": 60.0}
    gauge_queue(RunKey("ls-a"), waits_s=90.0, starts_in_s=30.0)
    assert gauges == {"llmsched.queue_waits_s.ls-a": 90.0, "llmsched.queue_starts_in_s.ls-a": 30.0}
