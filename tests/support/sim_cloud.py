"""The simulated cloud as the contract's harness sees it."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import LeaseId, NodeNotice
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.stock import ALWAYS, StockModel
from airflow_llmsched.ports import Clock
from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.sim.cloud import SimCloud, SimPool
from airflow_llmsched.sim.world import SimWorld
from airflow_llmsched.testing.cloud_contract import CloudHarness


def sim_pool(
    zone: str = "a",
    *,
    capacity_type: CapacityType = CapacityType.ON_DEMAND,
    usd_per_hour: float = 40.0,
    num_free: int = 8,
    loss_per_hour: float = 0.0,
    start_up_s: float = 60.0,
    region: str = "sim-east",
    stock: StockModel = ALWAYS,
    shape: str = "sim.8x",
) -> SimPool:
    pool = Pool(cloud="sim", region=region, zone=f"{region}-{zone}", shape=shape, capacity_type=capacity_type)
    offer = Offer(pool=pool, usd_per_hour=usd_per_hour, priced_at_s=1_750_000_000.0, source="sim")
    return SimPool(offer=offer, num_free=num_free, loss_per_hour=loss_per_hour, start_up_s=start_up_s, stock=stock)


def spread_pools() -> tuple[SimPool, ...]:
    """Return pools on demand and on spot, and a third in another region."""
    spot = sim_pool("b", capacity_type=CapacityType.SPOT, usd_per_hour=12.0)
    return sim_pool("a"), spot, sim_pool("a", region="sim-west")


class SimCloudHarness(CloudHarness):
    def __init__(self, *pools: SimPool, seed: int = 0, clock: Clock | None = None, consistency_s: float = 30.0) -> None:
        self.clock = clock or VirtualClock()
        self.world = SimWorld(self.clock)
        self.pools = pools or (sim_pool("a"), sim_pool("b", capacity_type=CapacityType.SPOT, usd_per_hour=12.0))
        self.cloud: SimCloud = SimCloud(self.world, self.pools, seed=seed, consistency_s=consistency_s)

    def reopen(self) -> SimCloud:
        return self.cloud  # it is cloud and adapter in one, and the adapter keeps nothing

    def offer(self) -> Offer:
        return self.pools[0].offer

    def spot_offer(self) -> Offer:
        return self.pools[1].offer

    def far_offer(self) -> Offer:
        return self.pools[2].offer

    def silence(self, *, is_silent: bool) -> None:
        self.cloud.faults.dark_regions = {self.far_offer().pool.region} if is_silent else set()

    def now_s(self) -> float:
        return self.clock.now_s()

    def advance(self, duration_s: float) -> None:
        self.clock.sleep(duration_s)
        self.world.advance()

    def billed(self) -> frozenset[str]:
        return self.cloud.billed()

    def run_short(self, offer: Offer, *, num_nodes: int) -> None:
        self.cloud.pool(offer.pool).num_free = num_nodes

    def limit_quota(self, offer: Offer, *, num_nodes: int) -> None:
        self.cloud.faults.quota_nodes[offer.pool.region] = num_nodes

    def shorten(self, lease_id: LeaseId, *, until_s: float) -> None:
        """Have a lease expire sooner, as if its hold had been running for longer."""
        request = self.cloud._requests[lease_id]
        request.lease = replace(request.lease, expires_at_s=until_s)

    def lose_reply(self) -> None:
        self.cloud.faults.num_lost_replies = 1

    def throttle(self, *, num_calls: int) -> None:
        self.cloud.faults.num_throttled = num_calls

    def refuse_removal(self, *, num_calls: int) -> None:
        self.cloud.faults.num_refused_removals = num_calls

    def hide_new(self) -> None:
        self.cloud.faults.hides_new = True

    def go_dark(self, *, is_dark: bool) -> None:
        self.cloud.faults.is_dark = is_dark

    def preempt(self, node: NodeId) -> None:
        self.cloud.preempt(node)

    def notify(self, node: NodeId, notice: NodeNotice) -> None:
        self.cloud.notify(node, notice)
