from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest

from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.prices.snapshots import SnapshotPrices
from airflow_llmsched.provider import market_run
from airflow_llmsched.provider.market_run import take_snapshot
from tests.support.sim_cloud import sim_pool


@pytest.fixture
def store(state_root):
    return open_store(str(state_root))


def _take(**changes):
    return take_snapshot(**{"clouds": {"sim": {}}, "shapes": ["sim.8x"], "keep": 200, **changes})


def test_what_clouds_offer_is_kept_and_read_back_as_prices(store, sim_cloud):
    taken = _take()
    assert taken["num_offers"] == 2
    assert taken["uri"].startswith(f"{store.uri}/market/snapshot-")
    priced = SnapshotPrices(store).offers(now_s=time.time())
    assert sorted(offer.usd_per_hour for offer in priced.offers) == [12.0, 40.0]


def test_an_offer_without_a_price_is_left_out_and_counted(store, sim_cloud):
    sim_cloud.pools[0].offer = replace(sim_cloud.pools[0].offer, usd_per_hour=float("nan"))
    taken = _take()
    assert taken["num_offers"] == 1
    assert taken["rejections"] == {"without a price": 1}


def test_own_machines_that_cost_nothing_keep_no_price_of_another_from_the_snapshot(store, sim_cloud):
    sim_cloud.pools[0].offer = replace(sim_cloud.pools[0].offer, usd_per_hour=0.0)
    taken = _take()
    assert taken["num_offers"] == 1
    assert taken["rejections"] == {"that cost nothing, which whoever has them says itself": 1}
    (offer,) = SnapshotPrices(store).offers(now_s=time.time()).offers
    assert offer.usd_per_hour == 12.0


def test_a_cloud_that_does_not_answer_hides_no_other(store, sim_cloud, monkeypatch):
    open_cloud = market_run.open_cloud

    def open_or_fail(name, options):
        if name == "down":
            raise CouldNotLookError("no answer")
        return open_cloud(name, options)

    monkeypatch.setattr(market_run, "open_cloud", open_or_fail)
    taken = _take(clouds={"down": {}, "sim": {}})
    assert taken["num_offers"] == 2
    assert taken["rejections"] == {"of a whole cloud (down: no answer)": 1}


def test_a_region_that_does_not_answer_hides_no_other(store, sim_cloud):
    sim_cloud.cloud.faults.dark_regions = {"sim-west"}
    sim_cloud.cloud._pools |= {(far := sim_pool("a", region="sim-west")).offer.pool: far}
    taken = _take()
    assert taken["num_offers"] == 2
    assert taken["rejections"] == {"of a part of sim (sim-west of the simulated cloud does not answer)": 1}


def test_no_cloud_that_answers_writes_no_snapshot(store, sim_cloud):
    sim_cloud.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError, match="no cloud could be asked: sim: "):
        _take()
    assert not list(store.list("market/"))


def test_the_oldest_snapshots_are_deleted_and_nothing_else(store, sim_cloud, monkeypatch):
    seconds = itertools.count(1_790_000_000)

    class Ticking:
        def now_s(self):
            return float(next(seconds))

    monkeypatch.setattr(market_run, "SystemClock", Ticking)
    store.put("market/notes.json", b"{}")
    uris = [_take(keep=2)["uri"] for _ in range(4)]
    kept = [info.key for info in store.list("market/")]
    assert kept == ["market/notes.json", *(uri.removeprefix(f"{store.uri}/") for uri in uris[2:])]


def test_at_least_the_newest_is_kept(store, sim_cloud):
    _take(keep=0)
    assert len(list(store.list("market/"))) == 1
