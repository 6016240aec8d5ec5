"""What the simulated cloud does of its own accord; that it keeps the contract is shown in tests/contract."""

from __future__ import annotations

import itertools

import pytest

from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import LeaseState
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CapacityError, InternalError
from airflow_llmsched.planner.market.stock import StockModel
from airflow_llmsched.testing.cloud_contract import lease_key, origin
from tests.support.sim_cloud import SimCloudHarness, sim_pool


def rent(harness: SimCloudHarness, rental: int = 1, *, num_nodes: int = 2) -> None:
    harness.cloud.acquire(
        harness.offer(),
        key=lease_key(rental),
        origin=origin(),
        num_nodes=num_nodes,
        until_s=harness.now_s() + 1e6,
    )


def losses_of(seed: int, *, num_hours: int = 2000, loss_per_hour: float = 0.05) -> list[int]:
    """Return the hours in which two nodes, rented anew at once, were taken."""
    pool = sim_pool(capacity_type=CapacityType.SPOT, loss_per_hour=loss_per_hour, num_free=10**6)
    harness = SimCloudHarness(pool, seed=seed)
    found = []
    for hour in range(num_hours):
        lease_id = harness.cloud.lease_id(harness.offer().pool, lease_key(len(found) + 1))
        if lease_id not in harness.cloud.leases([lease_id]):
            rent(harness, len(found) + 1)
        harness.advance(3600.0)
        if harness.cloud.leases([lease_id])[lease_id].state is LeaseState.BROKEN:
            harness.cloud.release(lease_id)
            found.append(hour)
    return found


def test_a_node_is_billed_from_its_start_until_it_is_given_back() -> None:
    harness = SimCloudHarness()
    rent(harness)
    harness.advance(3600.0)
    assert harness.cloud.spent_usd() == pytest.approx(2 * 40.0)
    harness.cloud.release(harness.cloud.lease_id(harness.offer().pool, lease_key()))
    harness.advance(3600.0)
    assert harness.cloud.spent_usd() == pytest.approx(2 * 40.0)


def test_a_node_that_was_taken_is_billed_no_further() -> None:
    harness = SimCloudHarness()
    rent(harness)
    harness.advance(1800.0)
    harness.preempt(NodeId(min(harness.billed())))
    harness.advance(1800.0)
    assert harness.cloud.spent_usd() == pytest.approx(1.5 * 40.0)


def test_room_comes_back_from_what_is_given_back_but_not_from_what_was_taken() -> None:
    harness = SimCloudHarness(sim_pool(num_free=4), sim_pool("b"))
    rent(harness, num_nodes=3)
    harness.preempt(NodeId(min(harness.billed())))
    harness.cloud.release(harness.cloud.lease_id(harness.offer().pool, lease_key()))
    assert harness.cloud.pool(harness.offer().pool).num_free == 3


def test_spot_nodes_are_taken_together_about_as_often_as_said() -> None:
    assert len(losses_of(1)) == pytest.approx(100, abs=30)  # of 2,000 hours at 0.05 an hour


SCARCE = StockModel(out_per_hour=0.1, back_per_hour=0.4)
NEED = Requirement(by_shape={"sim.8x": ShapeNeed(num_nodes=2, work_s=3600.0)})


def test_capacity_is_out_of_stock_as_often_and_for_as_long_as_its_model_says() -> None:
    harness = SimCloudHarness(sim_pool(stock=SCARCE), seed=3)
    seen = []
    for _ in range(6000):
        harness.advance(1800.0)
        seen.append(harness.cloud.offers(NEED)[0].num_nodes)
    assert set(seen) == {0, 8}
    assert seen.count(0) / len(seen) == pytest.approx(SCARCE.out_ratio, abs=0.04)
    num_outages = sum(before == 8 and after == 0 for before, after in itertools.pairwise(seen))
    assert seen.count(0) * 0.5 / num_outages == pytest.approx(1 / 0.4, rel=0.25)


def test_capacity_that_is_out_of_stock_is_refused_and_what_is_held_stays() -> None:
    harness = SimCloudHarness(sim_pool(stock=SCARCE), seed=3)
    rent(harness)
    pool = harness.cloud.pool(harness.offer().pool)
    while not pool.is_out:
        harness.advance(600.0)
    with pytest.raises(CapacityError):
        rent(harness, 2)
    assert len(harness.billed()) == 2
    while pool.is_out:
        harness.advance(600.0)
    rent(harness, 3)
    assert len(harness.billed()) == 4


def test_a_seed_decides_the_interruptions() -> None:
    assert losses_of(1, num_hours=300) == losses_of(1, num_hours=300) != losses_of(2, num_hours=300)


def test_an_interruption_is_announced_before_it_comes() -> None:
    pool = sim_pool(capacity_type=CapacityType.SPOT, loss_per_hour=0.5)
    harness = SimCloudHarness(pool)
    rent(harness)
    lease_id = harness.cloud.lease_id(harness.offer().pool, lease_key())
    harness.wait(lambda: harness.cloud.leases([lease_id])[lease_id].interrupted_at_s is not None, limit_s=1e6)
    seen_at_s = harness.now_s()
    lease = harness.cloud.leases([lease_id])[lease_id]
    assert lease.state is LeaseState.ACTIVE
    harness.wait(lambda: harness.cloud.leases([lease_id])[lease_id].state is LeaseState.BROKEN, limit_s=1e6)
    assert harness.now_s() - seen_at_s == pytest.approx(120.0, abs=10.0)


def test_a_pool_that_it_never_offered_is_a_fault_of_ours() -> None:
    harness = SimCloudHarness()
    with pytest.raises(InternalError, match="has no pool"):
        harness.cloud.acquire(
            sim_pool("z").offer, key=lease_key(), origin=origin(), num_nodes=1, until_s=harness.now_s() + 1.0
        )
