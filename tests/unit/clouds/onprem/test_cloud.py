from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.clouds.onprem.cloud import OnPremCloud
from airflow_llmsched.domain.capacity import Offer, Pool, Requirement, ShapeNeed
from airflow_llmsched.domain.lease import Lease, LeasedNodeState, LeaseState
from airflow_llmsched.domain.workload import CapacityType, CapacityWish
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    CouldNotLookError,
    LeftoverError,
    QuotaError,
    SpecError,
)
from airflow_llmsched.testing.cloud_contract import LEASE_S, RUN, lease_key, origin
from tests.support.memory_store import MemoryStore
from tests.support.onprem_cloud import OnPremCloudHarness

NEED = Requirement(by_shape={"dgx-h100": ShapeNeed(num_nodes=2, work_s=3600.0)})


@pytest.fixture
def house() -> Iterator[OnPremCloudHarness]:
    house = OnPremCloudHarness()
    yield house
    house.close()


def acquire(house: OnPremCloudHarness, rental: int = 1, *, num_nodes: int = 2, offer: Offer | None = None) -> Lease:
    return house.reopen().acquire(
        offer or house.offer(),
        key=lease_key(rental),
        origin=origin(),
        num_nodes=num_nodes,
        until_s=house.now_s() + LEASE_S,
    )


def offered(house: OnPremCloudHarness, wish: CapacityWish | None = None) -> dict[str, tuple[float, int | None]]:
    found = house.cloud.offers(dataclasses.replace(NEED, wish=wish or CapacityWish()))
    return {offer.pool.zone: (offer.usd_per_hour, offer.num_nodes) for offer in found}


def test_offers_are_what_is_free_at_the_price_that_was_set(house: OnPremCloudHarness) -> None:
    acquire(house, num_nodes=3)
    house.preempt(house.cloud.find(RUN)[0].nodes[0].id)
    assert offered(house) == {"hall-1": (12.5, 5), "hall-2": (4.0, 8)}
    house.limit_quota(house.offer(), num_nodes=4)
    assert offered(house) == {"hall-1": (12.5, 4), "hall-2": (4.0, 4)}


def test_wishes_are_filters(house: OnPremCloudHarness) -> None:
    assert offered(house, CapacityWish(capacity_types=(CapacityType.SPOT,))) == {"hall-2": (4.0, 8)}
    assert offered(house, CapacityWish(clouds=("aws",))) == offered(house, CapacityWish(regions=("x",))) == {}
    assert house.cloud.offers(Requirement(by_shape={"other": NEED.by_shape["dgx-h100"]})) == []


def test_nodes_of_one_block_go_together(house: OnPremCloudHarness) -> None:
    acquire(house, num_nodes=1)
    assert [node.id for node in acquire(house, 2, num_nodes=4).nodes] == ["h1n4", "h1n5", "h1n6", "h1n7"]
    tree = house.cloud.topology(acquire(house, 2))
    assert tree.levels == ("region", "zone", "block")
    assert {node.path for node in tree.nodes} == {("berlin", "hall-1", "b1")}
    assert {node.num_slots for node in tree.nodes} == {8}


def test_an_expired_lease_keeps_its_nodes_until_it_is_released(house: OnPremCloudHarness) -> None:
    acquire(house, num_nodes=8)
    house.advance(10 * LEASE_S)
    with pytest.raises(CapacityError, match="0 of 1 nodes"):
        acquire(house, 2, num_nodes=1)
    (found,) = house.cloud.find_all()
    assert (found.state, found.expires_at_s < house.now_s()) == (LeaseState.ACTIVE, True)
    house.cloud.release(found.id)
    assert len(acquire(house, 2, num_nodes=8).nodes) == 8


def test_a_key_that_was_released_is_used_up_even_if_it_never_rented(house: OnPremCloudHarness) -> None:
    """A worker that stood still before it acquired finds out when it goes on."""
    house.cloud.release(house.cloud.lease_id(house.offer().pool, lease_key()))
    with pytest.raises(AbandonedError):
        acquire(house)
    assert house.billed() == frozenset()


@pytest.mark.parametrize(
    ("offer", "state"), [("offer", LeasedNodeState.LOST), ("spot_offer", LeasedNodeState.PREEMPTED)]
)
def test_what_the_house_takes_back_was_preempted_and_anything_else_is_lost(
    house: OnPremCloudHarness, offer: str, state: LeasedNodeState
) -> None:
    lease = acquire(house, offer=getattr(house, offer)())
    house.preempt(lease.nodes[0].id)
    (seen,) = house.cloud.leases([lease.id]).values()
    assert [node.state for node in seen.nodes] == [state, LeasedNodeState.RUNNING]
    assert (seen.state, seen.reason) == (LeaseState.BROKEN, f"{lease.nodes[0].id}: the physicists are back")


def test_a_node_that_the_inventory_no_longer_lists_is_gone(house: OnPremCloudHarness) -> None:
    lease = acquire(house)
    house.inventory["pools"][0]["nodes"].pop(0)
    house.write()
    (seen,) = house.cloud.leases([lease.id]).values()
    assert (seen.nodes[0].state, seen.nodes[0].address, seen.reason) == (LeasedNodeState.LOST, "", "h1n0: not listed")
    assert [node.id for node in house.cloud.topology(seen).nodes] == ["h1n1"]


def test_a_quota_names_its_region_and_what_to_raise(house: OnPremCloudHarness) -> None:
    house.limit_quota(house.offer(), num_nodes=1)
    with pytest.raises(QuotaError, match="raise max_nodes") as caught:
        acquire(house)
    assert caught.value.region == "berlin"


def test_an_inventory_that_is_spoiled_while_leases_run_is_no_empty_one(house: OnPremCloudHarness) -> None:
    lease = acquire(house)
    house.inventory["regoin"] = "x"
    house.write()
    for look in (lambda: house.cloud.leases([lease.id]), house.cloud.find_all, lambda: house.cloud.topology(lease)):
        with pytest.raises(CouldNotLookError, match="regoin"):
            look()
    with pytest.raises(SpecError, match="regoin"):
        acquire(house, 2)
    house.cloud.release(lease.id)  # what is to be given back needs no inventory
    assert house.billed() == frozenset()


def test_an_inventory_that_cannot_be_read_is_no_empty_one(house: OnPremCloudHarness) -> None:
    lease = acquire(house)
    house._path.unlink()
    with pytest.raises(CouldNotLookError, match="could not be read"):
        house.cloud.leases([lease.id])


def test_a_pool_that_the_inventory_has_not_got_is_the_callers_fault(house: OnPremCloudHarness) -> None:
    offer = house.offer()
    wrong = dataclasses.replace(offer, pool=dataclasses.replace(offer.pool, zone="attic"))
    with pytest.raises(SpecError, match="no pool"):
        acquire(house, offer=wrong)
    with pytest.raises(SpecError, match="1 or more"):
        acquire(house, num_nodes=0)


def test_damaged_records_are_not_an_empty_fleet(house: OnPremCloudHarness) -> None:
    lease = acquire(house)
    assert isinstance(house._raw, MemoryStore)
    house._raw.objects["fleets/default/records/00000001.json"] = b"{"
    for act in (
        lambda: house.cloud.find(RUN),
        lambda: house.cloud.renew(lease, until_s=house.now_s() + 9 * LEASE_S),
        lambda: house.cloud.release(lease.id),
        lambda: acquire(house, 2),
    ):
        with pytest.raises(CouldNotLookError, match="damaged"):
            act()


def test_a_reservation_that_cannot_be_freed_names_its_nodes(house: OnPremCloudHarness) -> None:
    lease = acquire(house)
    house.refuse_removal(num_calls=1000)
    with pytest.raises(LeftoverError) as caught:
        house.cloud.release(lease.id)
    assert set(caught.value.ids) == {node.id for node in lease.nodes}
    unknown = house.cloud.lease_id(house.offer().pool, lease_key(9))
    with pytest.raises(CouldNotLookError):
        house.cloud.release(unknown)


def test_it_needs_a_store_and_either_an_inventory_or_an_engine(tmp_path: Path) -> None:
    engine = LocalEngine(root=str(tmp_path / "engine"))
    for wrong in (
        {"inventory": "x"},
        {"store": MemoryStore()},
        {"inventory": "x", "engine": engine, "store": MemoryStore()},
    ):
        with pytest.raises(SpecError):
            OnPremCloud(**wrong)


def test_an_engines_own_free_nodes_can_be_rented(tmp_path: Path) -> None:
    engine = LocalEngine(root=str(tmp_path / "engine"), num_nodes=3, slots_per_node=2)
    cloud = OnPremCloud(engine=engine, store=MemoryStore(), region="desk", usd_per_hour={"local-cpu": 0.1})
    (offer,) = cloud.offers(Requirement(by_shape={"local-cpu": ShapeNeed(num_nodes=2, work_s=60.0)}))
    pool = Pool(cloud="onprem", region="desk", zone="", shape="local-cpu", capacity_type=CapacityType.ON_DEMAND)
    assert (offer.pool, offer.usd_per_hour, offer.num_nodes) == (pool, 0.1, 3)
    lease = cloud.acquire(offer, key=lease_key(), origin=origin(), num_nodes=2, until_s=4e9)
    assert (lease.state, [node.id for node in lease.nodes]) == (LeaseState.ACTIVE, ["n0", "n1"])
    assert {node.path for node in cloud.topology(lease).nodes} == {("desk", "desk", "n0"), ("desk", "desk", "n1")}
    with pytest.raises(CapacityError):
        cloud.acquire(offer, key=lease_key(2), origin=origin(), num_nodes=2, until_s=4e9)
