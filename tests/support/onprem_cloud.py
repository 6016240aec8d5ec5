"""Machines of one's own as the contract's harness sees them: an inventory file, and a store whose calls go wrong."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from airflow_llmsched.clouds.onprem.cloud import OnPremCloud
from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import StoreError
from airflow_llmsched.ports import ObjectInfo, ObjectStore
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.cloud_faults import CallKind, CloudFault, FaultPlan
from tests.support.memory_store import MemoryStore
from tests.support.planned_cloud import PlannedCloudHarness

T = TypeVar("T")


class FaultyStore:
    """``ports.ObjectStore`` before another, with a plan of what goes wrong. What a record says is its call's kind."""

    def __init__(self, inner: ObjectStore, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    @property
    def uri(self) -> str:
        return self._inner.uri

    def get(self, key: str) -> bytes:
        return self._call(CallKind.LOOK, lambda: self._inner.get(key))

    def put(self, key: str, data: bytes) -> None:
        self._call(CallKind.CHANGE, lambda: self._inner.put(key, data))

    def create(self, key: str, data: bytes) -> None:
        kind = json.loads(data).get("change", {}).get("kind")
        kinds = {"reserved": CallKind.CREATE, "freed": CallKind.REMOVE}
        self._call(kinds.get(kind, CallKind.CHANGE), lambda: self._inner.create(key, data))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from self._call(CallKind.LOOK, lambda: [*self._inner.list(prefix)])

    def folders(self, prefix: str) -> Iterator[str]:
        yield from self._call(CallKind.LOOK, lambda: [*self._inner.folders(prefix)])

    def delete(self, key: str) -> None:
        self._call(CallKind.CHANGE, lambda: self._inner.delete(key))

    def _call(self, kind: CallKind, act: Callable[[], T]) -> T:
        fault = self._plan.next(kind)
        if fault is None:
            return act()
        if fault is CloudFault.UNANSWERED:
            act()
        raise StoreError(f"the store does not answer: {fault.name.lower()}")


class OnPremCloudHarness(PlannedCloudHarness):
    """Eight nodes in each of two halls; the house lends those of the second one as spot, and takes them back."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.clock = VirtualClock()
        self.plan = FaultPlan()
        self._raw = store or MemoryStore()
        self._folder = Path(tempfile.mkdtemp(prefix="onprem-"))
        self._path = self._folder / "inventory.json"
        self.inventory: dict[str, Any] = {
            "region": "berlin",
            "jurisdiction": "EU",
            "levels": ["block"],
            "pools": [_pool(1, "on_demand", 12.5), _pool(2, "spot", 4.0)],
        }
        self.write()
        self.cloud: OnPremCloud = self.reopen()

    def close(self) -> None:
        shutil.rmtree(self._folder)

    def write(self) -> None:
        self._path.write_text(json.dumps(self.inventory))

    def reopen(self) -> OnPremCloud:
        store = FaultyStore(self._raw, self.plan)
        return OnPremCloud(inventory=str(self._path), store=store, clock=self.clock)

    def offer(self) -> Offer:
        return self._offer("hall-1", CapacityType.ON_DEMAND)

    def spot_offer(self) -> Offer:
        return self._offer("hall-2", CapacityType.SPOT)

    def billed(self) -> frozenset[str]:
        """Return the nodes that records keep from others, read without the adapter."""
        held: dict[str, list[str]] = {}
        snapshots = [json.loads(self._raw.get(info.key)) for info in self._raw.list("fleets/default/snapshots/")]
        newest = max(snapshots, key=lambda each: each["number"], default={"number": 0, "fleet": {"reserved": {}}})
        held |= {name: each["nodes"] for name, each in newest["fleet"]["reserved"].items()}
        for info in self._raw.list("fleets/default/records/"):
            record = json.loads(self._raw.get(info.key))
            change = record["change"]
            if record["number"] <= newest["number"]:
                continue
            if change["kind"] == "reserved":
                key = change["reservation"]["key"]
                held[f"{key['run']}-g{key['generation']}-r{key['rental']}"] = change["reservation"]["nodes"]
            elif change["kind"] == "freed":
                held.pop(change["name"], None)
        return frozenset(node for nodes in held.values() for node in nodes)

    def run_short(self, offer: Offer, *, num_nodes: int) -> None:
        rows = self._rows(offer.pool.zone)
        free = [row for row in rows if row["name"] not in self.billed()]
        for number, row in enumerate(free):
            row["unusable"] = "" if number < num_nodes else "switched off"
        self.write()

    def limit_quota(self, offer: Offer, *, num_nodes: int) -> None:
        self.inventory["max_nodes"] = len(self.billed()) + num_nodes
        self.write()

    def hide_new(self) -> None:
        """Nothing to do: a store lists at once what it holds."""

    def preempt(self, node: NodeId) -> None:
        for pool in self.inventory["pools"]:
            for row in pool["nodes"]:
                if row["name"] == node:
                    row["unusable"] = "the physicists are back"
        self.write()

    def _rows(self, zone: str) -> list[dict[str, Any]]:
        return next(pool["nodes"] for pool in self.inventory["pools"] if pool["zone"] == zone)

    def _offer(self, zone: str, capacity_type: CapacityType) -> Offer:
        pool = Pool(cloud="onprem", region="berlin", zone=zone, shape="dgx-h100", capacity_type=capacity_type)
        return Offer(pool=pool, usd_per_hour=12.5, priced_at_s=self.now_s(), source="test")


def _pool(hall: int, capacity: str, usd_per_hour: float) -> dict[str, Any]:
    return {
        "zone": f"hall-{hall}",
        "shape": "dgx-h100",
        "capacity": capacity,
        "num_slots": 8,
        "usd_per_hour": usd_per_hour,
        "vendor": "nvidia",
        "nodes": [
            {"name": f"h{hall}n{number}", "address": f"10.{hall}.0.{number}", "path": [f"b{number // 4}"]}
            for number in range(8)
        ],
    }
