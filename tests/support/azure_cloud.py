"""Azure as the contract's harness sees it: the adapter over HTTP, before a server that keeps state."""

from __future__ import annotations

import time
from typing import Any

from azure.core.credentials import AccessToken

from airflow_llmsched.clouds.azure.cloud import AzureCloud
from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.azure_server import FAR_REGION, GROUP, REGION, RESERVATIONS, SHAPE, SUBSCRIPTION, AzureServer, price
from tests.support.planned_cloud import PlannedCloudHarness

SUBNET = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/ranks"


class AnyToken:
    """A token credential. It is good for an hour, and counts how often it was asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        self.num_asked += 1
        return AccessToken("t0ken", int(time.time()) + 3600)


class AzureCloudHarness(PlannedCloudHarness):
    """Close it when done: it runs a server."""

    def __init__(self, **options: Any) -> None:
        self.clock = VirtualClock()
        self.server = AzureServer(self.clock)
        self.plan = self.server.plan
        self.server.prices = [price(98.32), price(39.33, spot=True)]
        self.server.__enter__()
        self._options = options
        self._opened: list[AzureCloud] = []
        self.cloud: AzureCloud = self.reopen()

    def leave_parts(self) -> None:
        self.server.leaves_behind = True

    def close(self) -> None:
        self.server.__exit__()

    def reopen(self) -> AzureCloud:
        settings: dict[str, Any] = {
            "subscription_id": SUBSCRIPTION,
            "resource_group": GROUP,
            "subnets": {REGION: SUBNET},
            "image": {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2204", "version": "latest"},
            "ssh_public_key": "ssh-ed25519 AAAA someone",
            "reservation_groups": {REGION: RESERVATIONS},
            "endpoint_url": self.server.address,
            "prices_url": self.server.address,
            "credentials": AnyToken(),
            "clock": self.clock,
        }
        return AzureCloud(**settings | self._options)

    def pool(self, capacity_type: CapacityType, zone: str, region: str = REGION) -> Pool:
        return Pool(cloud="azure", region=region, zone=f"{region}-{zone}", shape=SHAPE, capacity_type=capacity_type)

    def offer(self) -> Offer:
        pool = self.pool(CapacityType.ON_DEMAND, "1")
        return Offer(pool=pool, usd_per_hour=98.32, priced_at_s=self.now_s(), source="test")

    def spot_offer(self) -> Offer:
        pool = self.pool(CapacityType.SPOT, "2")
        return Offer(pool=pool, usd_per_hour=39.33, priced_at_s=self.now_s(), source="test")

    def far_offer(self) -> Offer:
        pool = self.pool(CapacityType.ON_DEMAND, "1", FAR_REGION)
        return Offer(pool=pool, usd_per_hour=98.32, priced_at_s=self.now_s(), source="test")

    def silence(self, *, is_silent: bool) -> None:
        self.server.dark_region = FAR_REGION if is_silent else ""

    def billed(self) -> frozenset[str]:
        return self.server.billed()

    def run_short(self, offer: Offer, *, num_nodes: int) -> None:
        zone = offer.pool.zone.removeprefix(f"{REGION}-")
        self.server.num_free[zone, offer.pool.capacity_type is CapacityType.SPOT] = num_nodes

    def limit_quota(self, offer: Offer, *, num_nodes: int) -> None:
        self.server.quota_nodes = num_nodes

    def hide_new(self) -> None:
        self.server.hides_new = True

    def preempt(self, node: NodeId) -> None:
        self.server.evict(node)

    def speak(self, node: NodeId, word: str) -> None:
        self.server.set_state(node, word)


class LitteredAzureHarness(AzureCloudHarness):
    """Machines leave a disk, an interface and an address behind when their scale set goes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.server.leaves_behind = True
