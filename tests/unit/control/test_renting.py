"""Renting for a run: what is tried in which order, what is taken up, and that dying anywhere leaves nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.control.lease_book import RentalEnding, RentalIntent
from airflow_llmsched.control.renting import Renter
from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.identity import LeaseKey, RunKey
from airflow_llmsched.domain.lease import Lease, LeaseId, LeaseState
from airflow_llmsched.domain.topology import NodeTerms
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    CouldNotLookError,
    InternalError,
    LeftoverError,
    QuotaError,
    SpecError,
    StoreError,
)
from airflow_llmsched.ports import Cloud
from airflow_llmsched.testing.cloud_contract import LEASE_S
from tests.support.lease_house import LeaseHouse, Ordeal, every_death, intent_of, reap_after_expiry, undergo
from tests.support.memory_store import MemoryStore
from tests.support.sim_cloud import SimCloudHarness, sim_pool


def house_of(*zones: str) -> LeaseHouse:
    pools = [sim_pool(zone, region=f"sim-{zone[0]}") for zone in zones]
    return LeaseHouse(SimCloudHarness(*pools))


def offers(house: LeaseHouse) -> list[Offer]:
    harness = house.harness
    assert isinstance(harness, SimCloudHarness)
    return [pool.offer for pool in harness.pools]


def ends(house: LeaseHouse) -> list[str]:
    return [f"{rental.end.ending}" if rental.end else "open" for rental in house.book().rentals()]


@pytest.fixture
def house() -> LeaseHouse:
    return house_of("a1", "a2", "b1")


def rent(house: LeaseHouse, *, num_nodes: int = 2, generation: int = 0, since_s: float | None = None) -> Lease:
    return house.renter().rent(house.wanted(offers(house), num_nodes=num_nodes, generation=generation, since_s=since_s))


def test_the_first_quote_that_can_be_had_is_rented(house: LeaseHouse) -> None:
    first, second, _ = offers(house)
    house.harness.run_short(first, num_nodes=1)
    assert rent(house).pool == second.pool
    assert ends(house) == ["refused", "open"]
    assert len(house.harness.billed()) == 2


def test_a_region_whose_quota_is_used_up_is_not_tried_again(house: LeaseHouse) -> None:
    """Field case E8."""
    house.harness.limit_quota(offers(house)[0], num_nodes=1)
    assert rent(house).pool.region == "sim-b"
    assert ends(house) == ["refused", "open"]


def test_a_quote_that_expires_while_others_are_tried_is_not_taken(
    house: LeaseHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def slowly(offer: Offer, **_others: Any) -> Lease:
        asked.append(offer.pool.zone)
        house.harness.advance(2000.0)
        raise CapacityError("no room")

    monkeypatch.setattr(house.harness.cloud, "acquire", slowly)
    listed, *live = house.wanted(offers(house)).quotes
    quotes = (*live, replace(listed, valid_until_s=7.0), *live[:1])
    with pytest.raises(CapacityError, match=r"none of 4 offers .*no room \(x3\); its quote expired"):
        house.renter().rent(replace(house.wanted(), quotes=quotes))
    assert asked == ["sim-a-a2", "sim-b-b1", "sim-a-a1"]


def test_nothing_to_be_had_says_why_by_count(house: LeaseHouse) -> None:
    for offer in offers(house):
        house.harness.run_short(offer, num_nodes=0)
    with pytest.raises(CapacityError, match=r"none of 3 offers could be had: 0 of 2 nodes"):
        rent(house)
    with pytest.raises(CapacityError, match="nothing was offered"):
        house.renter().rent(house.wanted([]))


def test_want_of_quota_everywhere_is_told_from_want_of_capacity(house: LeaseHouse) -> None:
    for offer in offers(house):
        house.harness.limit_quota(offer, num_nodes=0)
    with pytest.raises(QuotaError, match="sim-a, sim-b"):
        rent(house)


def test_a_second_try_takes_up_the_lease_of_the_first(house: LeaseHouse) -> None:
    assert rent(house).id == rent(house).id
    assert ends(house) == ["open"]


def test_a_renewed_lease_is_taken_up_long_after_it_was_to_end_at_first(house: LeaseHouse) -> None:
    first = rent(house)
    for _ in range(5):
        house.harness.advance(0.75 * LEASE_S)
        house.keep()
    assert rent(house).id == first.id


def test_another_generation_gives_the_old_lease_back_first(house: LeaseHouse) -> None:
    old, new = rent(house), rent(house, generation=1)
    assert old.id != new.id
    assert house.harness.billed() == {node.id for node in new.nodes}


def test_what_is_broken_is_given_back_and_rented_anew(house: LeaseHouse) -> None:
    old = rent(house)
    harness = house.harness
    harness.preempt(old.nodes[0].id)
    new = rent(house)
    assert (new.id != old.id, new.state) == (True, LeaseState.PENDING)
    assert harness.billed() == {node.id for node in new.nodes}
    assert ends(house) == ["released", "open"]


def test_what_can_not_be_removed_stops_the_search(house: LeaseHouse) -> None:
    """Field case E7, its second half."""
    house.harness.run_short(offers(house)[0], num_nodes=1)
    house.harness.refuse_removal(num_calls=1000)
    with pytest.raises(LeftoverError) as caught:
        rent(house)
    assert set(caught.value.ids) == house.harness.billed()
    assert len(house.harness.billed()) == 1
    house.harness.refuse_removal(num_calls=0)
    assert house.renter().release()
    assert house.harness.billed() == frozenset()


def test_a_worker_that_stood_still_through_the_teardown_rents_nothing(house: LeaseHouse) -> None:
    since_s = house.harness.now_s()
    house.harness.advance(10.0)
    house.renter().release()
    with pytest.raises(AbandonedError):
        rent(house, since_s=since_s)
    assert house.harness.billed() == frozenset()


def test_a_teardown_that_stood_still_takes_nothing_from_those_who_set_out_after_it(house: LeaseHouse) -> None:
    old = rent(house)
    since_s = house.harness.now_s()
    house.harness.advance(600.0)
    new = rent(house, generation=1)
    assert house.renter().release(since_s=since_s) == ()
    assert house.harness.billed() == {node.id for node in new.nodes}
    assert rent(house, generation=1).id == new.id != old.id
    assert house.renter().release() == (new.id,)


def test_a_teardown_while_the_cloud_is_asked_gets_everything_back(house: LeaseHouse) -> None:
    """The worker is between its note and the cloud's answer when another process tears the run down."""
    cloud = house.harness.cloud
    acquire = cloud.acquire

    def slow(*args: object, **kwargs: object) -> Lease:
        house.renter().release()
        return acquire(*args, **kwargs)  # type: ignore[arg-type]

    cloud.acquire = slow  # type: ignore[method-assign]
    with pytest.raises(AbandonedError):
        rent(house)
    assert house.harness.billed() == frozenset()


def test_a_release_waits_for_a_lease_that_is_too_new_to_be_listed(house: LeaseHouse) -> None:
    house.harness.hide_new()
    rent(house)
    house.renter().release()
    assert house.harness.billed() == frozenset()


def test_a_release_gives_back_what_is_in_no_book(house: LeaseHouse) -> None:
    lease = rent(house)
    house.book().end(lease.key, RentalEnding.RELEASED, reason="somebody was wrong", at_s=house.harness.now_s())
    assert house.renter().release() == (lease.id,)
    assert house.harness.billed() == frozenset()


def test_a_release_that_could_not_look_says_so_and_can_be_repeated(house: LeaseHouse) -> None:
    rent(house)
    house.harness.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError):
        house.renter().release()
    house.harness.go_dark(is_dark=False)
    assert len(house.renter().release()) == 1
    assert house.renter().release() == ()


def test_a_release_with_a_full_disk_gives_back_all_the_same_and_is_to_be_repeated() -> None:
    store = MemoryStore()
    house = LeaseHouse(SimCloudHarness(sim_pool()), store=store)
    lease, free = rent(house), store.before_create
    store.before_create = full
    with pytest.raises(CouldNotLookError, match="the disk is full"):
        house.renter().release()
    assert house.harness.billed() == frozenset()
    store.before_create = free
    assert house.renter().release() == (lease.id,)
    assert ends(house) == ["released"]
    with pytest.raises(AbandonedError):  # the book is closed by now
        rent(house, since_s=0.0)


def full(_key: str) -> None:
    raise StoreError("the disk is full")


def test_a_release_gives_back_what_a_cloud_says_in_words_that_its_adapter_does_not_know(
    house: LeaseHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = rent(house)

    def unknown(_ids: object) -> Mapping[LeaseId, Lease]:
        raise InternalError("the cloud calls a machine 'DOZING'")

    monkeypatch.setattr(house.harness.cloud, "leases", unknown)
    assert house.renter().release() == (lease.id,)
    assert house.harness.billed() == frozenset()
    assert ends(house) == ["released"]


def test_a_cloud_that_cannot_be_opened_any_more_keeps_no_other_from_being_given_back(house: LeaseHouse) -> None:
    def from_another_cloud(key: LeaseKey) -> RentalIntent:
        return replace(intent_of(key), cloud="gone")

    def open_cloud(name: str, options: Mapping[str, Any]) -> Cloud:
        if name == "gone":
            raise SpecError(path="cloud", value=name, hint="unknown")
        return house.open_cloud(name, options)

    house.book().intend(from_another_cloud, generation=0, since_s=house.harness.now_s())
    rent(house, generation=1)
    with pytest.raises(CouldNotLookError, match="gone"):
        Renter(house.book(), open_cloud=open_cloud, clock=house.clock).release()
    assert house.harness.billed() == frozenset()


@pytest.mark.parametrize("error", [InternalError("a code that nobody knows"), KeyError("zone")])
def test_a_lease_that_an_sdk_stumbles_over_keeps_no_other_from_being_given_back(
    house: LeaseHouse, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = house.renter().rent(house.wanted(offers(house)))
    other = house.renter().rent(replace(house.wanted(offers(house)), purpose="another"))
    release = house.harness.cloud.release

    def stumbling(lease_id: LeaseId) -> None:
        if lease_id == odd.id:
            raise error
        release(lease_id)

    monkeypatch.setattr(house.harness.cloud, "release", stumbling)
    with pytest.raises(CouldNotLookError, match=str(error)):
        house.renter().release()
    assert {rental.intent.lease_id for rental in house.book().open()} == {odd.id}
    assert other.id != odd.id
    assert len(house.harness.billed()) == len(odd.nodes)


def test_what_is_given_up_is_of_one_purpose_and_looked_for_in_vain(house: LeaseHouse) -> None:
    rent(house)
    house.renter().give_up("evaluate", reason="x")
    assert house.renter().look("train") is not None
    for _ in range(2):
        house.renter().give_up("train", reason="not whole in time")
    assert house.renter().look("train") is None
    assert not house.harness.billed()
    (rental,) = house.book().rentals()
    assert rental.end is not None
    assert rental.end.reason == "not whole in time"


def test_what_was_spent_is_counted_over_all_rentals(house: LeaseHouse) -> None:
    rent(house)
    house.harness.advance(3600.0)
    house.renter().release()
    house.harness.advance(3600.0)
    assert house.renter().spent_usd() == pytest.approx(2 * 40.0, rel=0.02)
    assert house.renter().spend().usd_per_hour == 0.0


def test_what_is_rented_goes_on_costing_its_offers_price(house: LeaseHouse) -> None:
    rent(house)
    house.harness.advance(1800.0)
    assert house.renter().spend().usd == pytest.approx(40.0)
    assert house.renter().spend().usd_per_hour == 80.0


def crash_house() -> LeaseHouse:
    return LeaseHouse(
        SimCloudHarness(sim_pool("a", num_free=2), sim_pool("b", capacity_type=CapacityType.SPOT, usd_per_hour=12.0))
    )


NUM_PASSAGES = len(undergo(crash_house(), Ordeal(fatal=(), is_taken_up=False, num_nodes=3)))


def test_each_node_of_a_lease_has_its_offers_price_and_interruptions(house: LeaseHouse) -> None:
    told = replace(offers(house)[0], usd_per_hour=3.0, loss_per_hour=0.5)
    lease = house.renter().rent(house.wanted([told], num_nodes=2))
    assert house.renter().terms_of(lease) == NodeTerms(usd_per_hour=3.0, failures_per_hour=0.5)
    house.renter().release()
    assert house.renter().terms_of(lease) == NodeTerms()


@pytest.mark.parametrize("ordeal", list(every_death(NUM_PASSAGES)), ids=str)
def test_whatever_passage_a_run_dies_at_the_reaper_leaves_nothing(ordeal: Ordeal) -> None:
    house = crash_house()
    undergo(house, ordeal)
    assert reap_after_expiry(house) == frozenset()


def test_runs_that_die_again_and_again_under_faults_leave_nothing() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        house = crash_house()
        faults = house.harness
        for fault in (faults.hide_new, faults.lose_reply):
            if chance.random() < 0.3:
                fault()
        faults.throttle(num_calls=chance.choice([0, 0, 1, 3]))
        faults.refuse_removal(num_calls=chance.choice([0, 0, 1, 3]))
        faults.run_short(faults.offer(), num_nodes=chance.choice([0, 1, 2, 8]))
        ordeal = Ordeal.drawn(chance, num_passages=NUM_PASSAGES)
        undergo(house, ordeal)
        faults.throttle(num_calls=0)
        assert reap_after_expiry(house) == frozenset(), (seed, ordeal)


def test_only_leases_that_run_whole_are_active_and_their_cloud_says_where(house: LeaseHouse) -> None:
    lease = rent(house)
    assert lease.state is LeaseState.PENDING
    assert house.renter().active() == ()
    house.until_there(lease)
    (active,) = house.renter().active()
    assert active.id == lease.id
    assert {node.id for node in house.renter().topology(active).nodes} == {node.id for node in active.nodes}
    house.harness.preempt(active.nodes[0].id)
    assert house.renter().active() == ()


def rent_thrice(house: LeaseHouse) -> list[Lease]:
    purposes = ("train", "another", "third")
    return [house.renter().rent(replace(house.wanted(offers(house)[:1]), purpose=each)) for each in purposes]


def test_a_damaged_end_of_a_rental_keeps_no_lease_and_is_no_trouble(house: LeaseHouse) -> None:
    gone, *others = rent_thrice(house)
    house.renter().give_up("train", reason="x")
    house.damage(gone, "ended")
    assert set(house.renter().release()) == {lease.id for lease in others}
    assert house.harness.billed() == frozenset()


def test_a_release_that_leaves_something_behind_says_as_well_what_it_could_not_read(house: LeaseHouse) -> None:
    damaged, *_ = rent_thrice(house)
    name = house.damage(damaged)
    house.harness.refuse_removal(num_calls=100)
    with pytest.raises(
        LeftoverError, match=f"(?s){name} is damaged.*left behind what its clouds do not remove: sim-"
    ) as failed:
        house.renter().release()
    assert sorted(failed.value.ids) == sorted(house.harness.billed())


def test_a_lease_in_no_book_that_cannot_be_removed_keeps_no_other_of_them(
    house: LeaseHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = rent_thrice(house)
    for lease in leases[:2]:
        house.store.delete(house.damage(lease))  # and so nobody looks at its copy
    release = house.harness.cloud.release

    def stumbling(lease_id: LeaseId) -> None:
        if lease_id == leases[0].id:
            raise KeyError("zone")
        release(lease_id)

    monkeypatch.setattr(house.harness.cloud, "release", stumbling)
    with pytest.raises(CouldNotLookError, match="zone"):
        house.renter().release()
    assert house.harness.billed() == frozenset(str(node.id) for node in leases[0].nodes)


def test_what_is_rented_while_a_late_teardown_looks_is_left_alone(
    house: LeaseHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    rent(house)
    since_s = house.harness.now_s()
    house.harness.advance(100.0)
    find, rented = house.harness.cloud.find, []

    def find_late(run: RunKey) -> Sequence[Lease]:
        if not rented:
            rented.append(rent(house, generation=1))
        return find(run)

    monkeypatch.setattr(house.harness.cloud, "find", find_late)
    house.renter().release(since_s=since_s)
    assert house.harness.billed() == frozenset(str(node.id) for node in rented[0].nodes)


def test_what_is_given_up_beside_a_damaged_record_is_given_back_before_that_is_said(house: LeaseHouse) -> None:
    first, second, _ = rent_thrice(house)
    name = house.damage(first)
    with pytest.raises(StoreError, match=f"{name} is damaged"):
        house.renter().give_up("another", reason="x")
    assert not house.book().is_open(second.key)
    assert len(house.harness.billed()) == 4


def test_a_record_that_is_damaged_while_a_cloud_is_asked_costs_no_lease_that_came(
    house: LeaseHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rent(house)
    acquire = house.harness.cloud.acquire

    def acquire_late(*arguments: Any, **named: Any) -> Lease:
        house.damage(first)
        return acquire(*arguments, **named)

    monkeypatch.setattr(house.harness.cloud, "acquire", acquire_late)
    lease = house.renter().rent(replace(house.wanted(offers(house)), purpose="another"))
    assert house.book().is_open(lease.key)
    assert len(house.harness.billed()) == 4
