from __future__ import annotations

import time
from dataclasses import replace

import pytest

from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.prices.snapshots import MarketSnapshot, encode_snapshot, snapshot_key
from airflow_llmsched.provider import prices_seen as module
from airflow_llmsched.provider.prices_seen import prices_seen
from airflow_llmsched.provider.rentals import CapacityRequest, ask
from tests.support.market import ON_DEMAND, SPOT, offer_of

NEED = Requirement(by_shape={"p5": ShapeNeed(num_nodes=1, work_s=3600.0)})
NOW_S = 1_800_000_000.0
HOUR_S = 3600.0


@pytest.fixture
def store(state_root):
    return open_store(str(state_root))


def _kept(store, *offers, at_s):
    store.put(snapshot_key(at_s), encode_snapshot(MarketSnapshot(taken_at_s=at_s, offers=offers)))


def test_spot_prices_of_the_needed_shapes_are_told_by_pool(store):
    spot = offer_of(2.0, SPOT)
    _kept(store, spot, replace(spot, usd_per_hour=1.5), offer_of(9.0, ON_DEMAND), at_s=NOW_S - 2 * HOUR_S)
    _kept(store, replace(spot, usd_per_hour=3.0), offer_of(1.0, SPOT, shape="p4"), at_s=NOW_S - HOUR_S)
    assert prices_seen(NEED, now_s=NOW_S) == {spot.pool.name: [(NOW_S - 2 * HOUR_S, 1.5), (NOW_S - HOUR_S, 3.0)]}


def test_no_more_than_the_newest_are_read(store, monkeypatch):
    monkeypatch.setattr(module, "MAX_SNAPSHOTS", 2)
    for hour in range(1, 6):
        _kept(store, offer_of(float(hour), SPOT), at_s=NOW_S - hour * HOUR_S)
    ((_, prices),) = prices_seen(NEED, now_s=NOW_S).items()
    assert [usd for _, usd in prices] == [2.0, 1.0]


def test_what_cannot_be_read_is_counted_in_a_warning_and_nothing_fails(store, caplog):
    for hour in (1, 2, 3):
        _kept(store, offer_of(2.0, SPOT), at_s=NOW_S - hour * HOUR_S)
    for hour in (1, 3):
        store.put(snapshot_key(NOW_S - hour * HOUR_S), b"torn")
    ((_, prices),) = prices_seen(NEED, now_s=NOW_S).items()
    assert len(prices) == 1
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "do not go by 2 of the newest 3 market snapshots" in warning


def test_the_cheapest_to_the_end_is_that_whose_spike_will_pass(store, sim_cloud):
    """By the prices of the moment the other zone would be cheaper."""
    spiky, steady = sim_cloud.pools
    spiky.offer = replace(spiky.offer, pool=replace(spiky.offer.pool, capacity_type=SPOT), usd_per_hour=15.0)
    request = CapacityRequest(clouds={"sim": {}}, need=Requirement(by_shape={"sim.8x": replace(_HOURS, num_nodes=2)}))
    assert ask(request).quotes[0].offer.pool == steady.offer.pool
    now_s = time.time()
    for hour in range(1, 60):
        seen = replace(spiky.offer, usd_per_hour=15.0 if hour % 8 == 0 else 5.0)
        _kept(store, seen, at_s=now_s - hour * HOUR_S)
    market = ask(request)
    assert [quote.offer.pool for quote in market.quotes] == [spiky.offer.pool, steady.offer.pool]
    assert "costs $15.00 an hour now, and $5." in market.explain()


_HOURS = ShapeNeed(num_nodes=1, work_s=48 * HOUR_S)
