"""Leases of many runs are kept by one call of each cloud, and what is wrong with one is no other's trouble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.control.lease_keeping import FIRST_PAUSE_S, MAX_PAUSE_S, Kept, LeaseKeeper
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.lease import Lease, LeaseId, NodeNotice, NoticeKind
from airflow_llmsched.errors import CouldNotLookError, InternalError
from airflow_llmsched.testing.cloud_contract import LEASE_S, OTHER_RUN, RUN
from tests.support.lease_house import LeaseHouse
from tests.support.sim_cloud import SimCloudHarness, sim_pool, spread_pools


@pytest.fixture
def house() -> LeaseHouse:
    return LeaseHouse(SimCloudHarness())


@pytest.fixture
def other(house: LeaseHouse) -> LeaseHouse:
    return LeaseHouse(house.harness, run=OTHER_RUN, store=house.store)


def rent(house: LeaseHouse) -> Lease:
    return house.renter().rent(house.wanted())


def keep_both(one: LeaseHouse, two: LeaseHouse) -> Mapping[RunKey, Kept]:
    keeper = LeaseKeeper(open_cloud=one.open_cloud, clock=one.clock)
    return keeper.keep([one.book(), two.book()])


def test_a_lease_is_renewed_once_half_of_its_hold_is_over(house: LeaseHouse) -> None:
    lease = rent(house)
    house.harness.advance(LEASE_S / 2 - 10)
    (kept,) = house.keep().leases
    assert kept.expires_at_s == lease.expires_at_s
    house.harness.advance(20)
    (kept,) = house.keep().leases
    assert kept.expires_at_s == house.harness.now_s() + LEASE_S


def test_all_runs_are_seen_by_one_call(house: LeaseHouse, other: LeaseHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = rent(house), rent(other)
    asked: list[Sequence[LeaseId]] = []
    cloud = house.harness.cloud
    leases = cloud.leases

    def counted(ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        asked.append(ids)
        return leases(ids)

    monkeypatch.setattr(cloud, "leases", counted)
    kept = keep_both(house, other)
    assert {run: [lease.id for lease in each.leases] for run, each in kept.items()} == {
        RUN: [mine.id],
        OTHER_RUN: [theirs.id],
    }
    assert len(asked) == 1


def test_what_is_gone_is_named_and_the_others_are_kept(house: LeaseHouse, other: LeaseHouse) -> None:
    mine, theirs = rent(house), rent(other)
    house.harness.cloud.release(mine.id)
    kept = keep_both(house, other)
    assert kept[RUN].gone == (mine.key,)
    assert [lease.id for lease in kept[OTHER_RUN].leases] == [theirs.id]
    assert kept[OTHER_RUN].gone == ()


def test_what_is_too_new_to_be_listed_is_not_called_gone(house: LeaseHouse) -> None:
    house.harness.hide_new()
    lease = rent(house)
    assert house.keep().gone == ()
    house.harness.advance(house.harness.cloud.consistency_s)
    assert [each.id for each in house.keep().leases] == [lease.id]


def test_announced_interruptions_and_broken_leases_are_told(house: LeaseHouse) -> None:
    lease = rent(house)
    taken_at_s = house.harness.now_s() + 120.0
    house.harness.notify(lease.nodes[0].id, NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=taken_at_s))
    kept = house.keep()
    assert (kept.interrupted_at_s, kept.broken) == (taken_at_s, ())
    house.harness.preempt(lease.nodes[0].id)
    (broken,) = house.keep().broken
    assert [node.id for node in broken.gone] == [lease.nodes[0].id]


def test_a_cloud_that_does_not_answer_is_a_trouble_and_nothing_is_called_gone(house: LeaseHouse) -> None:
    rent(house)
    house.harness.go_dark(is_dark=True)
    kept = house.keep()
    assert (kept.leases, kept.gone) == ((), ())
    assert "does not answer" in kept.troubles[0]


def test_a_damaged_book_is_a_trouble_of_its_run_alone(house: LeaseHouse, other: LeaseHouse) -> None:
    rent(house)
    theirs = rent(other)
    for key in house.store.objects:  # type: ignore[attr-defined]
        if RUN in key:
            house.store.put(key, b"{")
    kept = keep_both(house, other)
    assert "is damaged" in kept[RUN].troubles[0]
    assert [lease.id for lease in kept[OTHER_RUN].leases] == [theirs.id]


def test_a_damaged_record_is_a_trouble_and_the_runs_other_leases_are_renewed(house: LeaseHouse) -> None:
    damaged, other = rent(house), house.renter().rent(replace(house.wanted(), purpose="another"))
    name = house.damage(damaged)
    house.harness.advance(LEASE_S * 0.6)
    kept = house.keep()
    assert [(lease.id, lease.expires_at_s) for lease in kept.leases] == [(other.id, house.harness.now_s() + LEASE_S)]
    assert (kept.gone, [name in words for words in kept.troubles]) == ((), [True])


@pytest.mark.parametrize("region", ["sim-east", "sim-west"])
def test_a_region_or_zone_that_does_not_answer_keeps_no_lease_in_another_from_being_renewed(
    region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = LeaseHouse(SimCloudHarness(sim_pool("a", region="sim-east"), sim_pool("b", region=region)))
    east, west = (
        house.renter().rent(replace(house.wanted([offer]), purpose=offer.pool.zone))
        for offer in (house.harness.offer(), house.harness.spot_offer())
    )
    house.harness.advance(LEASE_S * 0.6)
    leases = house.harness.cloud.leases

    def down(ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        if east.id in ids:
            raise CouldNotLookError("sim-east does not answer")
        return leases(ids)

    monkeypatch.setattr(house.harness.cloud, "leases", down)
    kept = house.keep()
    assert [(lease.id, lease.expires_at_s) for lease in kept.leases] == [(west.id, house.harness.now_s() + LEASE_S)]
    assert (kept.gone, kept.troubles) == ((), ("sim-east does not answer",))


@pytest.mark.parametrize("call", ["leases", "renew"])
@pytest.mark.parametrize("error", [InternalError("a word that nobody knows"), KeyError("zone")])
def test_what_cannot_be_understood_of_one_lease_keeps_no_other_from_being_renewed(
    house: LeaseHouse, other: LeaseHouse, call: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clouds get new words for their machines' states: one run's machine must not cost all runs theirs."""
    mine, theirs = rent(house), rent(other)
    house.harness.advance(LEASE_S / 2 + 10)
    cloud = house.harness.cloud
    whole = getattr(cloud, call)

    def refusing(about: Any, **others: Any) -> Any:
        if mine.id in (about if call == "leases" else [about.id]):
            raise error
        return whole(about, **others)

    monkeypatch.setattr(cloud, call, refusing)
    kept = keep_both(house, other)
    assert [each.expires_at_s for each in kept[OTHER_RUN].leases] == [house.harness.now_s() + LEASE_S]
    assert kept[OTHER_RUN].leases[0].id == theirs.id
    assert len(kept[RUN].troubles) == 1
    assert kept[RUN].gone == kept[OTHER_RUN].troubles == ()


def test_a_silent_region_is_asked_apart_and_ever_less_often_so_that_others_are_heard_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try at it may take minutes until it times out, and an interruption is announced two minutes before."""
    house = LeaseHouse(SimCloudHarness(*spread_pools()))
    near, far = (
        house.renter().rent(replace(house.wanted([offer]), purpose=offer.pool.region))
        for offer in (house.harness.offer(), house.harness.far_offer())
    )
    keeper = LeaseKeeper(open_cloud=house.open_cloud, clock=house.clock)
    asked: list[list[str]] = []
    leases = house.harness.cloud.leases

    def counted(ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        asked.append([each.partition("/")[0] for each in ids])
        return leases(ids)

    monkeypatch.setattr(house.harness.cloud, "leases", counted)

    def keep() -> tuple[list[list[str]], set[LeaseId], tuple[str, ...]]:
        asked.clear()
        kept = keeper.keep([house.book()])[house.run]
        assert kept.gone == ()
        return list(asked), {lease.id for lease in kept.leases}, kept.troubles

    here, there = ["sim-east-a"], ["sim-west-a"]
    house.harness.silence(is_silent=True)
    calls, seen, troubles = keep()
    assert (calls, seen, len(troubles)) == ([[*here, *there], here, there], {near.id}, 1)
    assert keep() == ([here], {near.id}, ("sim did not answer in sim-west-a: asked again in 30 s",))
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S):
        house.harness.advance(pause_s - 1.0)
        assert keep()[0] == [here]
        house.harness.advance(1.0)
        assert keep()[:2] == ([here, there], {near.id})
    house.harness.silence(is_silent=False)
    house.harness.advance(MAX_PAUSE_S)
    assert keep() == ([here, there], {near.id, far.id}, ())
    assert keep() == ([[*here, *there]], {near.id, far.id}, ())
    house.harness.advance(LEASE_S / 2)
    keep()
    assert all(lease.expires_at_s == house.harness.now_s() + LEASE_S for lease in house.harness.cloud.find_all())


def test_a_place_with_a_short_hold_is_asked_again_in_time_to_be_renewed() -> None:
    house = LeaseHouse(SimCloudHarness())
    lease = house.renter().rent(replace(house.wanted(), hold_s=240.0))
    keeper = LeaseKeeper(open_cloud=house.open_cloud, clock=house.clock)
    house.harness.go_dark(is_dark=True)
    for _ in range(4):
        assert keeper.keep([house.book()])[house.run].troubles
        house.harness.advance(30.0)
    house.harness.go_dark(is_dark=False)
    (kept,) = keeper.keep([house.book()])[house.run].leases
    assert (kept.id, kept.expires_at_s) == (lease.id, house.harness.now_s() + 240.0)
