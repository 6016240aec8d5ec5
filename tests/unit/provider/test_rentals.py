from __future__ import annotations

import time
from dataclasses import replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.domain.lease import LeaseState
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.errors import CapacityError, CouldNotLookError, QuotaError, RelaxError, SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.prices.snapshots import MarketSnapshot, encode_snapshot, snapshot_key
from airflow_llmsched.provider.rentals import CapacityRequest, RentalSettings, ask, open_renter, try_to_rent
from tests.support.pipeline import through_json

NEED = Requirement(by_shape={"sim.8x": ShapeNeed(num_nodes=2, work_s=3600.0)})
REQUEST = CapacityRequest(clouds={"sim": {}}, need=NEED)


@pytest.fixture
def settings(pipeline, sim_cloud):
    return RentalSettings(scope=pipeline.scope, purpose="train", request=REQUEST, since_s=time.time())


def test_settings_survive_a_triggers_trip_through_the_database(settings):
    assert codec.from_plain(RentalSettings, through_json(codec.to_plain(settings))) == settings


def test_the_market_is_what_the_clouds_offer(settings, sim_cloud):
    market = ask(REQUEST)
    assert [quote.offer.usd_per_hour for quote in market.quotes] == [12.0, 40.0]


def test_a_price_that_a_cloud_does_not_tell_comes_from_a_fresh_snapshot(settings, sim_cloud):
    for pool in sim_cloud.pools:
        pool.offer = replace(pool.offer, usd_per_hour=float("nan"))
    assert ask(REQUEST).explain() == "no offer serves: 2 without a price"
    now_s = time.time()
    known = replace(sim_cloud.pools[0].offer, usd_per_hour=33.0, priced_at_s=now_s - 3600.0)
    stale = replace(sim_cloud.pools[1].offer, usd_per_hour=9.0, priced_at_s=now_s - 25 * 3600.0)
    snapshot = MarketSnapshot(taken_at_s=now_s, offers=(known, stale))
    open_store(settings.scope.state_root).put(snapshot_key(now_s), encode_snapshot(snapshot))
    (quote,) = ask(REQUEST).quotes
    assert quote.offer.usd_per_hour == 33.0


def test_a_cloud_that_the_wish_leaves_out_is_not_even_opened(settings, sim_cloud):
    wish = CapacityWish(clouds=("sim",))
    request = replace(REQUEST, clouds={"sim": {}, "no-such-cloud": {}}, need=replace(NEED, wish=wish))
    assert ask(request).num_offers == 2
    with pytest.raises(SpecError, match="no-such-cloud"):
        ask(replace(request, need=NEED))


def test_nobody_who_answers_is_not_a_market_without_offers(settings, sim_cloud):
    sim_cloud.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError, match="does not answer"):
        ask(REQUEST)


def test_what_is_rented_is_the_first_that_can_be_had(settings, sim_cloud):
    tried = try_to_rent(settings)
    assert (tried.lease.pool.zone, tried.lease.state) == ("sim-east-b", LeaseState.ACTIVE)
    assert tried.refusal is None
    assert tried.lease.origin == settings.scope.origin
    assert open_renter(settings.scope).look("train") == tried.lease


def test_a_lease_on_its_way_says_so(settings, sim_cloud):
    sim_cloud.pools[1].start_up_s = 60.0
    assert try_to_rent(settings).words.endswith("-r1 is pending")


@pytest.mark.parametrize("by_quota", [True, False])
def test_what_cannot_be_had_is_a_refusal_and_no_error(settings, sim_cloud, by_quota):
    if by_quota:
        sim_cloud.limit_quota(sim_cloud.offer(), num_nodes=1)
    else:
        for pool in sim_cloud.pools:
            pool.num_free = 1
    tried = try_to_rent(settings)
    assert tried.lease is None
    assert type(tried.refusal) is (QuotaError if by_quota else CapacityError)
    assert tried.words == str(tried.refusal)


@pytest.mark.parametrize(
    ("max_usd", "capacity_type"), [(None, "spot"), (200.0, "spot"), (24.0001, "spot"), (23.9, None)]
)
def test_a_budget_denies_what_would_pass_it_by_the_end_of_the_run(settings, sim_cloud, max_usd, capacity_type):
    settings = replace(settings, request=replace(REQUEST, max_usd=max_usd, num_tokens=7_200))
    if capacity_type is None:
        with pytest.raises(RelaxError, match=r"7\.2e\+03 tokens at 2 a second take 1 h, at \$24\.00 an hour"):
            try_to_rent(settings)
        assert not sim_cloud.billed()
    else:
        assert try_to_rent(settings).lease.pool.capacity_type == capacity_type


@pytest.mark.parametrize(
    ("usd_now", "usd_usual"),
    [
        (15.0, 5.0),  # $1,440 at the $15 of the moment, some $560 if it falls as it always did
        (5.0, 15.0),  # $480 at the $5 of the moment, some $1,300 if it rises as it always did
    ],
)
def test_a_budget_goes_by_the_dearer_of_the_price_of_the_moment_and_that_which_is_expected(
    settings, sim_cloud, usd_now, usd_usual
):
    """What is booked is what is paid: a run let in by an expected fall would be stopped at its first review."""
    for pool, usd_per_hour in zip(sim_cloud.pools, (40.0, usd_now), strict=True):
        pool.offer = replace(pool.offer, usd_per_hour=usd_per_hour)
    need = Requirement(by_shape={"sim.8x": ShapeNeed(num_nodes=2, work_s=48 * 3600.0)})
    request = replace(REQUEST, need=need, max_usd=900.0, num_tokens=7_200)
    now_s, store = time.time(), open_store(settings.scope.state_root)
    for hour in range(1, 60):
        seen = replace(sim_cloud.pools[1].offer, usd_per_hour=usd_now if hour % 8 == 0 else usd_usual)
        snapshot = MarketSnapshot(taken_at_s=now_s - hour * 3600.0, offers=(seen,))
        store.put(snapshot_key(snapshot.taken_at_s), encode_snapshot(snapshot))
    with pytest.raises(RelaxError, match=r"budget\.max_usd"):
        try_to_rent(replace(settings, request=request))
    assert try_to_rent(replace(settings, request=replace(request, max_usd=1500.0))).lease.pool.capacity_type == "spot"
    assert open_renter(settings.scope).spend().usd_per_hour == 2 * usd_now


def test_a_budget_for_the_cheapest_never_pays_for_a_dearer_one(settings, sim_cloud):
    settings = replace(settings, request=replace(REQUEST, max_usd=30.0, num_tokens=7_200))
    acquire = sim_cloud.cloud.acquire

    def none_left(offer, **named):
        if offer.pool.capacity_type == "spot":
            raise CapacityError("none left")
        return acquire(offer, **named)

    sim_cloud.cloud.acquire = none_left
    tried = try_to_rent(settings)
    assert "none left" in tried.words
    assert not sim_cloud.billed()


def test_capacity_that_costs_nothing_fits_any_budget(settings, sim_cloud):
    sim_cloud.pools[0].offer = replace(sim_cloud.pools[0].offer, usd_per_hour=0.0)
    settings = replace(settings, request=replace(REQUEST, max_usd=0.01, num_tokens=7_200))
    assert try_to_rent(settings).lease.pool.zone == "sim-east-a"


def test_a_lease_that_is_held_is_taken_up_whatever_the_budget_says_by_now(settings, sim_cloud):
    held = try_to_rent(settings).lease
    spent = replace(settings, request=replace(REQUEST, max_usd=0.01, num_tokens=7_200))
    assert try_to_rent(spent).lease.id == held.id
