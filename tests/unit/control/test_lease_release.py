"""What a teardown gives back though its book has lost it, or a part of a cloud is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control.renting import CloudChoice, each_of
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.testing.cloud_contract import LEASE_S, origin
from tests.support.lease_house import LeaseHouse
from tests.support.sim_cloud import SimCloudHarness, spread_pools


@pytest.fixture
def house() -> LeaseHouse:
    return LeaseHouse(SimCloudHarness(*spread_pools()))


def rent(house: LeaseHouse, purpose: str = "train") -> Lease:
    return house.renter().rent(replace(house.wanted([house.harness.offer()]), purpose=purpose))


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_rental_of_which_no_record_can_be_read_is_found_by_the_runs_key_and_given_back(
    house: LeaseHouse, nth: int, caplog: pytest.LogCaptureFixture
) -> None:
    leases = [rent(house, purpose) for purpose in ("train", "another", "third")]
    house.damage(leases[nth])
    assert set(house.renter().release()) == {lease.id for lease in leases}
    assert house.harness.billed() == frozenset()
    assert f"lease {leases[nth].id} was found in sim by the run's key" in caplog.text
    assert not house.book().is_open(leases[nth].key)
    assert house.renter().release() == ()


def test_a_damaged_record_with_a_copy_is_no_trouble_for_anyone(house: LeaseHouse) -> None:
    lease = rent(house)
    house.store.put(f"runs/{house.run}/leases/g0000-r00001/intended.json", b"{")
    assert rent(house) == lease
    house.harness.advance(LEASE_S * 0.6)
    kept = house.keep()
    assert (kept.troubles, kept.leases[0].expires_at_s) == ((), house.harness.now_s() + LEASE_S)
    assert house.renter().release() == (lease.id,)
    assert house.harness.billed() == frozenset()


def test_a_book_that_names_no_cloud_any_more_is_cleared_in_those_that_the_deployment_has(house: LeaseHouse) -> None:
    lease = rent(house)
    name, billed = house.damage(lease), house.harness.billed()
    with pytest.raises(CouldNotLookError, match=f"{name} is damaged"):
        house.renter().release()
    assert house.harness.billed() == billed  # nobody knows where to look
    here = [CloudChoice(name="sim", options={})]
    house.harness.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError, match="does not answer"):
        house.renter().release(others=here)
    house.harness.go_dark(is_dark=False)
    with pytest.raises(CouldNotLookError, match=r"belongs to deployment d+.*by hand"):
        house.renter().release(others=here, deployment_id="another")
    assert house.harness.billed() == billed
    assert house.renter().release(others=here, deployment_id=origin().deployment_id) == (lease.id,)
    assert house.harness.billed() == frozenset()
    assert house.renter().release() == ()


def test_a_lost_rental_that_is_found_nowhere_stays_to_be_seen(house: LeaseHouse) -> None:
    lease = rent(house)
    name = house.damage(lease)
    house.harness.cloud.release(lease.id)
    for _ in range(2):
        with pytest.raises(CouldNotLookError, match=f"{name} is damaged"):
            house.renter().release(others=[CloudChoice(name="sim", options={})])
    assert house.book().is_open(lease.key)


def test_a_region_that_does_not_answer_keeps_no_other_from_being_given_back_and_fails_the_release(
    house: LeaseHouse,
) -> None:
    near, far = (
        house.renter().rent(replace(house.wanted([offer]), purpose=offer.pool.region))
        for offer in (house.harness.offer(), house.harness.far_offer())
    )
    house.store.delete(f"runs/{house.run}/leases/g0000-r00001/intended.json")  # so that only its key says whose it is
    house.harness.silence(is_silent=True)
    with pytest.raises(CouldNotLookError, match=r"sim-west .*does not answer"):
        house.renter().release()
    assert house.harness.billed() == frozenset(str(node.id) for node in far.nodes)
    assert house.book().is_open(far.key)
    house.harness.silence(is_silent=False)
    assert house.renter().release() == (far.id,)
    assert house.harness.billed() == frozenset()
    assert near.id != far.id


def test_what_is_given_up_elsewhere_is_given_back_though_a_region_does_not_answer(house: LeaseHouse) -> None:
    """A mix, or what was moved from, in two regions of which one is away: the other one's machines cost money, too."""
    far = house.renter().rent(replace(house.wanted([house.harness.far_offer()]), purpose="train-1"))
    near = [rent(house, purpose) for purpose in ("train-2", "train-more-1")]
    house.harness.silence(is_silent=True)
    with pytest.raises(CouldNotLookError, match=r"sim-west .*does not answer"):
        each_of(("train-1", "train-2", "train-more-1"), lambda each: house.renter().give_up(each, reason="moved"))
    assert house.harness.billed() == frozenset(str(node.id) for node in far.nodes)
    assert [house.book().is_open(lease.key) for lease in (far, *near)] == [True, False, False]
