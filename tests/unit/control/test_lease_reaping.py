"""Which leases are taken back, and that taking them is safe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control.lease_book import RentalEnding
from airflow_llmsched.control.lease_reaping import SKEW_S, LeaseReaper, judge_lease
from airflow_llmsched.control.reaper import Reap, Spare
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.errors import InternalError, PartlySeenError
from airflow_llmsched.testing.cloud_contract import LEASE_S, lease_key, origin
from tests.support.lease_house import LeaseHouse
from tests.support.sim_cloud import SimCloudHarness, spread_pools

OURS = origin().deployment_id


@pytest.fixture
def house() -> LeaseHouse:
    return LeaseHouse(SimCloudHarness())


@pytest.fixture
def lease(house: LeaseHouse) -> Lease:
    return house.renter().rent(house.wanted())


def reaper_of(house: LeaseHouse, deployment_id: str = OURS) -> LeaseReaper:
    return LeaseReaper(store=house.store, deployment_id=deployment_id, cloud=house.harness.cloud, clock=house.clock)


def test_what_has_expired_is_reaped_and_nothing_else(lease: Lease) -> None:
    for after_s, kind in ((0.0, Spare), (SKEW_S - 1, Spare), (SKEW_S, Reap), (1e6, Reap), (-1e6, Spare)):
        verdict = judge_lease(lease, deployment_id=OURS, now_s=lease.expires_at_s + after_s)
        assert type(verdict) is kind, verdict


def test_what_is_not_known_to_be_ours_is_spared_however_old(lease: Lease) -> None:
    late_s = lease.expires_at_s + 1e9
    assert "deployment" in judge_lease(lease, deployment_id="other", now_s=late_s).reason
    assert "by hand" in judge_lease(replace(lease, origin=None), deployment_id=OURS, now_s=late_s).reason


def anonymous(lease: Lease, *, with_nodes: bool) -> Lease:
    """What a cloud tells of a lease whose tags are gone, or of the disks alone that it left behind."""
    nodes = lease.nodes if with_nodes else ()
    return replace(lease, origin=None, expires_at_s=0.0, nodes=nodes, leftovers=("disk-1",))


def test_disks_that_say_nothing_are_known_by_the_runs_book(
    house: LeaseHouse, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = anonymous(lease, with_nodes=False)
    monkeypatch.setattr(house.harness.cloud, "find_all", lambda: [left])
    monkeypatch.setattr(house.harness.cloud, "leases", lambda _ids: {left.id: left})
    assert house.reap_once() == []
    house.harness.advance(LEASE_S + SKEW_S)
    assert house.reap_once() == [lease.id]
    assert house.harness.billed() == frozenset()


def test_machines_that_say_nothing_and_disks_that_no_book_knows_are_spared(
    house: LeaseHouse, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.harness.advance(LEASE_S + SKEW_S)
    strange = replace(anonymous(lease, with_nodes=False), key=lease_key(7))
    for found in (anonymous(lease, with_nodes=True), strange):
        monkeypatch.setattr(house.harness.cloud, "find_all", lambda found=found: [found])
        (finding,) = reaper_of(house).look()
        assert "by hand" in finding.verdict.reason
    for key in house.store.objects:  # type: ignore[attr-defined]
        house.store.put(key, b"{")
    monkeypatch.setattr(house.harness.cloud, "find_all", lambda: [anonymous(lease, with_nodes=False)])
    (finding,) = reaper_of(house).look()
    assert "cannot be read" in finding.verdict.reason


def test_a_reaped_lease_is_gone_and_its_rental_over(house: LeaseHouse, lease: Lease) -> None:
    house.harness.advance(LEASE_S + SKEW_S)
    assert house.reap_once() == [lease.id]
    assert house.harness.billed() == frozenset()
    (rental,) = house.book().rentals()
    assert rental.end is not None
    assert rental.end.ending is RentalEnding.RELEASED
    assert "reaped: expired 60 s ago" in rental.end.reason


def test_a_damaged_record_of_another_lease_keeps_none_from_the_reaper(
    house: LeaseHouse, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = house.renter().rent(replace(house.wanted(), purpose="another"))
    house.damage(other)
    left = anonymous(lease, with_nodes=False)
    monkeypatch.setattr(house.harness.cloud, "find_all", lambda: [left, other])
    monkeypatch.setattr(house.harness.cloud, "leases", lambda ids: {each.id: each for each in (left, other)})
    house.harness.advance(LEASE_S + SKEW_S)
    assert house.reap_once() == [lease.id, other.id]
    assert house.harness.billed() == frozenset()
    assert not house.book().is_open(lease.key)
    assert not house.book().is_open(other.key)


def test_one_that_was_renewed_since_it_was_condemned_is_spared(house: LeaseHouse, lease: Lease) -> None:
    house.harness.advance(LEASE_S + SKEW_S)
    (finding,) = reaper_of(house).look()
    house.keep()
    reaped = reaper_of(house).reap(finding)
    assert not reaped.is_gone
    assert "spared after all" in reaped.trouble
    assert len(house.harness.billed()) == 2


def test_what_can_not_be_removed_is_said_and_keeps_no_other_from_its_turn(house: LeaseHouse, lease: Lease) -> None:
    house.harness.advance(LEASE_S + SKEW_S)
    (finding,) = reaper_of(house).look()
    house.harness.refuse_removal(num_calls=100)
    reaped = reaper_of(house).reap(finding)
    assert not reaped.is_gone
    assert all(machine in reaped.trouble for machine in house.harness.billed())
    house.harness.refuse_removal(num_calls=0)
    house.harness.go_dark(is_dark=True)
    assert "not known to be gone" in reaper_of(house).reap(finding).trouble


@pytest.mark.parametrize("error", [InternalError("a word that nobody knows"), KeyError("zone")])
@pytest.mark.parametrize("call", ["leases", "release"])
def test_what_cannot_be_understood_of_one_lease_is_said_and_keeps_no_other_from_its_turn(
    house: LeaseHouse, lease: Lease, call: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.harness.advance(LEASE_S + SKEW_S)
    reaper = reaper_of(house)
    (finding,) = reaper.look()

    def refusing(_about: object) -> None:
        raise error

    monkeypatch.setattr(house.harness.cloud, call, refusing)
    reaped = reaper.reap(finding)
    assert not reaped.is_gone
    assert str(error) in reaped.trouble


def test_a_silent_region_hides_no_expired_lease_elsewhere_and_is_named() -> None:
    house = LeaseHouse(SimCloudHarness(*spread_pools()))
    near, far = (
        house.renter().rent(replace(house.wanted([offer]), purpose=offer.pool.region))
        for offer in (house.harness.offer(), house.harness.far_offer())
    )
    house.harness.advance(LEASE_S + SKEW_S)
    house.harness.silence(is_silent=True)
    with pytest.raises(PartlySeenError, match="sim-west") as caught:
        reaper_of(house).look()
    (finding,) = caught.value.seen
    assert (finding.lease.id, type(finding.verdict)) == (near.id, Reap)
    assert reaper_of(house).reap(finding).is_gone
    assert house.harness.billed() == frozenset(str(node.id) for node in far.nodes)
    house.harness.silence(is_silent=False)
    assert house.reap_once() == [far.id]
