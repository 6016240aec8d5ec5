"""Google Cloud as the contract's harness sees it: our adapter, over HTTP, before a world with a clock of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from google.auth.credentials import AnonymousCredentials

from airflow_llmsched.clouds.gcp.cloud import GcpCloud
from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import NodeNotice
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.gcp_server import GcpServer
from tests.support.gcp_world import API, PROJECT, Json, World
from tests.support.planned_cloud import PlannedCloudHarness

SHAPE = "a3-highgpu-8g"
ZONE, SPOT_ZONE = "us-central1-a", "us-central1-b"
IMAGE = "projects/llm-images/global/images/family/trainer"


def gcp_pool(zone: str = ZONE, capacity_type: CapacityType = CapacityType.ON_DEMAND, shape: str = SHAPE) -> Pool:
    region = zone.rpartition("-")[0]
    return Pool(cloud="gcp", region=region, zone=zone, shape=shape, capacity_type=capacity_type)


def gcp_offer(zone: str = ZONE, capacity_type: CapacityType = CapacityType.ON_DEMAND) -> Offer:
    pool = gcp_pool(zone, capacity_type)
    return Offer(pool=pool, usd_per_hour=88.0, priced_at_s=1_750_000_000.0, source="test")


def machine_type(zone: str, name: str = SHAPE) -> Json:
    return {
        "name": name,
        "zone": zone,
        "guestCpus": 208,
        "memoryMb": 1872 * 1024,
        "accelerators": [{"guestAcceleratorType": "nvidia-h100-80gb", "guestAcceleratorCount": 8}],
    }


TPU = "v5litepod-16"
"""A slice of 16 chips."""


class GcpCloudHarness(PlannedCloudHarness):
    """Close it: it listens on a port."""

    def __init__(self, **options: Any) -> None:
        self.clock = VirtualClock()
        self.world = World(self.clock)
        self.world.rooms = {(zone, SHAPE): 8 for zone in (ZONE, SPOT_ZONE)}
        self.world.shelf.machine_types = [machine_type(zone) for zone in (ZONE, SPOT_ZONE)]
        self.server = GcpServer(self.world).__enter__()
        self.plan = self.server.plan
        self._options = options
        self.cloud: GcpCloud = self.reopen()

    def leave_parts(self) -> None:
        self.world.keeps_disks = True

    def close(self) -> None:
        self.server.__exit__()

    def reopen(self, **options: Any) -> GcpCloud:
        return GcpCloud(
            project=PROJECT,
            regions=["us-central1"],
            image=IMAGE,
            endpoint_url=self.server.address,
            credentials=AnonymousCredentials(),
            clock=self.clock,
            **{**self._options, **options},
        )

    def offer(self) -> Offer:
        return gcp_offer()

    def spot_offer(self) -> Offer:
        return gcp_offer(SPOT_ZONE, CapacityType.SPOT)

    def far_offer(self) -> Offer:
        return replace(self.offer(), pool=replace(self.offer().pool, zone=SPOT_ZONE))

    def silence(self, *, is_silent: bool) -> None:
        self.server.unreachable = SPOT_ZONE if is_silent else ""

    def advance(self, duration_s: float) -> None:
        self.clock.sleep(duration_s)
        self.world.settle()

    def billed(self) -> frozenset[str]:
        return self.world.billed()

    def run_short(self, offer: Offer, *, num_nodes: int) -> None:
        self.world.rooms[offer.pool.zone, offer.pool.shape] = num_nodes

    def limit_quota(self, offer: Offer, *, num_nodes: int) -> None:
        self.world.quota[offer.pool.region] = num_nodes

    def hide_new(self) -> None:
        self.world.hides_new = True

    def preempt(self, node: NodeId) -> None:
        if any(name.endswith(f"/{node}") for name in self.world.tpus.nodes):
            self.world.tpus.preempt(node)
            return
        zone = next(key.split("/")[1] for key in self.world.things["instances"] if key.endswith(f"/{node}"))
        self.world.preempt(zone, node)

    def speak(self, node: NodeId, word: str) -> None:
        self.server.new_words.add(word.upper())
        for full, row in self.world.tpus.nodes.items():
            if full.endswith(f"/{node}"):
                row["state"] = word.upper()
        for full, each in self.world.things["instances"].items():
            if full.endswith(f"/{node}"):
                each.row["status"] = word.upper()

    def notify(self, node: NodeId, notice: NodeNotice) -> None:
        raise NotImplementedError("Google announces nothing to those outside of the machine")


class TpuHarness(GcpCloudHarness):
    """Slices of TPUs, of one kind. A shortage is over after ``shortage_s``; None: never."""

    def __init__(self, *, shortage_s: float | None = None, **tpu: Any) -> None:
        made_of = {"runtime_version": "v2-alpha-tpuv5-lite", "queue_s": 0.0, **tpu}
        super().__init__(tpu=made_of, tpu_zones=[ZONE, SPOT_ZONE])
        self._shortage_s = shortage_s
        self._rooms = self.world.tpus.rooms
        self._rooms.update({(zone, TPU): 8 for zone in (ZONE, SPOT_ZONE)})
        self.world.tpus.types = {zone: [TPU, "v5litepod-4"] for zone in (ZONE, SPOT_ZONE)}

    def offer(self) -> Offer:
        return replace(super().offer(), pool=gcp_pool(shape=TPU))

    def spot_offer(self) -> Offer:
        return replace(super().spot_offer(), pool=gcp_pool(SPOT_ZONE, CapacityType.SPOT, TPU))

    def run_short(self, offer: Offer, *, num_nodes: int) -> None:
        place = offer.pool.zone, offer.pool.shape
        self._rooms[place] = num_nodes
        if self._shortage_s is not None:
            self.world.after(self._shortage_s, lambda: self._rooms.update({place: 8}))

    def leave_parts(self) -> None:
        """Have requests vanish from under their slices."""
        for name, row in list(self.world.tpus.queued.items()):
            if row["state"]["state"] in ("ACTIVE", "SUSPENDED"):
                self.world.tpus.queued.pop(name)


def server_url(path: str) -> str:
    """Return a URL as Google writes them."""
    return f"{API}/projects/{PROJECT}/{path}"
