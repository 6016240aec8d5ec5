"""A Google Cloud that keeps state: machines, disks, policies, groups, queues and operations, under a clock of its own.

Each verb is a method named as the discovery document names it. Whatever takes time is an operation; time passes only
when the clock does.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_llmsched.ports import Clock
from tests.support.gcp_errors import Refused
from tests.support.tpu_world import TpuWorld

Json = dict[str, Any]
PROJECT = "llm-project"
API = "https://www.googleapis.com/compute/v1"

CREATE_S = 15.0
BOOT_S = 25.0
DELETE_S = 12.0
SHORT_S = 2.0
LISTING_S = 50.0
"""How long what is new is not listed, where that is so."""


@dataclass
class Thing:
    """A resource, and when it is listed."""

    row: Json
    listed_at_s: float


@dataclass
class Shelf:
    """What the catalogue has: settable by tests."""

    machine_types: list[Json] = field(default_factory=list)
    reservations: list[Json] = field(default_factory=list)
    future_reservations: list[Json] = field(default_factory=list)
    regions: list[Json] = field(default_factory=list)
    skus: dict[str, list[Json]] = field(default_factory=dict)


class World:
    """The cloud itself. ``rooms`` are machines still to be had, by zone and machine type; ``quota`` by region."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.shelf = Shelf()
        self.tpus = TpuWorld(self)
        self.rooms: dict[tuple[str, str], int] = {}
        self.quota: dict[str, int] = {}
        self.hides_new = False
        self.keeps_disks = False
        self.queue_s = 60.0
        self.create_s, self.boot_s = CREATE_S, BOOT_S
        self.things: dict[str, dict[str, Thing]] = {
            kind: {}
            for kind in (
                "instances",
                "disks",
                "resourcePolicies",
                "instanceTemplates",
                "instanceGroupManagers",
                "resizeRequests",
                "operations",
            )
        }
        self.begun: dict[str, Json] = {}
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count(1)

    # Time

    def settle(self) -> None:
        """Let happen what was to happen by now."""
        while self.due and self.due[0][0] <= self.clock.now_s():
            heapq.heappop(self.due)[2]()
        self._meet_requests()
        self.tpus.settle()

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Have something happen later."""
        heapq.heappush(self.due, (self.clock.now_s() + delay_s, next(self._count), happen))

    def stamp(self) -> str:
        """Return now as Google writes it."""
        return datetime.fromtimestamp(self.clock.now_s(), tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%f+00:00")

    # The bill

    def billed(self) -> frozenset[str]:
        """Return what costs money, or may: machines that are not stopped, all disks, requests that wait."""
        self.settle()
        running = [key for key, each in self.things["instances"].items() if each.row["status"] != "TERMINATED"]
        waiting = [key for key, each in self.things["resizeRequests"].items() if each.row["state"] == "ACCEPTED"]
        return frozenset([*running, *self.things["disks"], *waiting]) | self.tpus.billed()

    # Of its own accord

    def preempt(self, zone: str, name: str) -> None:
        """Take a machine. It stays, stopped, or is deleted, as it was asked to be; its room is another's now."""
        key = f"zones/{zone}/instances/{name}"
        row = self.things["instances"][key].row
        self._operate("compute.instances.preempted", zone=zone, target=key, lasts_s=0.0)
        if row["scheduling"].get("instanceTerminationAction") == "DELETE":
            self.delete_instance(key, is_room_free=False)
        else:
            row["status"] = "TERMINATED"

    def break_host(self, zone: str, name: str) -> None:
        """Have a machine's host fail: the machine stops, and nobody took it."""
        key = f"zones/{zone}/instances/{name}"
        self._operate("compute.instances.hostError", zone=zone, target=key, lasts_s=0.0)
        self.things["instances"][key].row["status"] = "TERMINATED"

    # Machines

    def instances_bulkInsert(self, at: dict[str, str], body: Json, request_id: str) -> Json:
        zone, count = at["zone"], int(body["count"])
        names = list(body["perInstanceProperties"]) if "perInstanceProperties" in body else []
        assert len(names) == count, "a lease names its machines"
        properties = body["instanceProperties"]
        if any(f"zones/{zone}/instances/{name}" in self.things["instances"] for name in names):
            return self._bulk(zone, request_id, count, 0, errors=[("RESOURCE_ALREADY_EXISTS", "a name is taken")])
        region = zone.rpartition("-")[0]
        self._expect_policy(region, properties)
        allowed = min(count, self.quota.get(region, count))
        room = self.rooms.get((zone, properties["machineType"]), 0)
        num_come = min(count, allowed, room)
        self._take_room(zone, properties["machineType"], num_come)
        for name in names[:num_come]:
            self._boot(zone, name, properties)
        if num_come == count:
            return self._bulk(zone, request_id, count, count, errors=[])
        if allowed < count:
            # The whole says no more than that too few came; why is in its parts.
            group = self._bulk(zone, request_id, count, num_come, errors=[("VM_MIN_COUNT_NOT_REACHED", "too few")])
            self._operate(
                "insert",
                zone=zone,
                target=f"zones/{zone}/instances/{names[num_come]}",
                lasts_s=1.0,
                errors=[("QUOTA_EXCEEDED", "Quota 'NVIDIA_H100_GPUS' exceeded. Limit: 8.0")],
                more={"operationGroupId": group["operationGroupId"]},
            )
            return group
        if num_come == 0:
            return self._bulk(zone, request_id, count, 0, errors=[])  # nothing, and not a word
        shortage = ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", f"{zone} does not have enough resources")
        return self._bulk(zone, request_id, count, num_come, errors=[("VM_MIN_COUNT_NOT_REACHED", "few"), shortage])

    def instances_get(self, at: dict[str, str], body: Json | None, request_id: str) -> Json:
        return self._thing("instances", f"zones/{at['zone']}/instances/{at['instance']}").row

    def instances_delete(self, at: dict[str, str], body: Json | None, request_id: str) -> Json:
        key = f"zones/{at['zone']}/instances/{at['instance']}"
        thing = self._thing("instances", key)
        if thing.row["status"] == "STOPPING":
            raise Refused(400, "resourceNotReady", f"{key} is being deleted")
        thing.row["status"] = "STOPPING"
        return self._operate(
            "delete", zone=at["zone"], target=key, lasts_s=DELETE_S, then=lambda: self.delete_instance(key)
        )

    def instances_setLabels(self, at: dict[str, str], body: Json, request_id: str) -> Json:
        key = f"zones/{at['zone']}/instances/{at['instance']}"
        row = self._thing("instances", key).row
        if body["labelFingerprint"] != row["labelFingerprint"]:
            raise Refused(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
        self.relabel(row, body["labels"])
        return self._operate("setLabels", zone=at["zone"], target=key, lasts_s=0.0)

    def relabel(self, row: Json, labels: Json) -> None:
        """Replace a machine's labels."""
        row["labels"] = dict(labels)
        row["labelFingerprint"] = hashlib.sha256(repr(sorted(labels.items())).encode()).hexdigest()[:12]

    def disks_delete(self, at: dict[str, str], body: Json | None, request_id: str) -> Json:
        key = f"zones/{at['zone']}/disks/{at['disk']}"
        if self._thing("disks", key).row.get("users"):
            raise Refused(400, "resourceInUseByAnotherResource", f"{key} is in use")
        return self._operate(
            "delete", zone=at["zone"], target=key, lasts_s=SHORT_S, then=lambda: self._drop("disks", key)
        )

    # Placement policies

    def resourcePolicies_insert(self, at: dict[str, str], body: Json, request_id: str) -> Json:
        key = f"regions/{at['region']}/resourcePolicies/{body['name']}"
        self._create("resourcePolicies", key, {**body, "status": "READY"})
        return self._operate("insert", region=at["region"], target=key, lasts_s=SHORT_S)

    def resourcePolicies_delete(self, at: dict[str, str], body: Json | None, request_id: str) -> Json:
        key = f"regions/{at['region']}/resourcePolicies/{at['resourcePolicy']}"
        self._thing("resourcePolicies", key)
        if any(at["resourcePolicy"] in each.row["resourcePolicies"] for each in self.things["instances"].values()):
            raise Refused(400, "resourceInUseByAnotherResource", f"{key} is in use")
        return self._operate(
            "delete",
            region=at["region"],
            target=key,
            lasts_s=SHORT_S,
            then=lambda: self._drop("resourcePolicies", key),
        )

    # Groups and their queues

    def regionInstanceTemplates_insert(self, at: dict[str, str], body: Json, request_id: str) -> Json:
        key = f"regions/{at['region']}/instanceTemplates/{body['name']}"
        self._create("instanceTemplates", key, dict(body))
        return self._operate("insert", region=at["region"], target=key, lasts_s=SHORT_S)

    def regionInstanceTemplates_delete(self, at: dict[str, str], body: Json | None, request_id: str) -> Json:
        key = f"regions/{at['region']}/instanceTemplates/{at['instanceTemplate']}"
        self._thing("instanceTemplates", key)
        if any(each.row["instanceTemplate"] == key for each in self.things["instanceGroupManagers"].values()):
            raise Refused(400, "resourceInUseByAnotherResource", f"{key} is in use")
        return self._operate(
            "delete",
            region=at["region"],
            target=key,
            lasts_s=SHORT_S,
            then=lambda: self._drop("instanceTemplates", key),
        )

    def instanceGroupManagers_insert(self, at: dict[str, str], body: Json, request_id: str) -> Json:
        key = f"zones/{at['zone']}/instanceGroupManagers/{body['name']}"
        if body["instanceTemplate"] not in self.things["instanceTemplates"]:
            raise Refused(400, "invalid", f"{body['instanceTemplate']} does not exist")
        zone_url = f"{API}/projects/{PROJECT}/zones/{at['zone']}"
        self._create(
            "instanceGroupManagers", key, {**body, "zone": zone_url, "status": {"isStable": True}, "targetSize": 0}
        )
        return self._operate("insert", zone=at["zone"], target=key, lasts_s=SHORT_S)

    def instanceGroupManagers_patch(self, at: dict[str, str], body: Json, request_id: str) -> Json:
        key = f"zones/{at['zone']}/instanceGroupManagers/{at['instanceGroupManager']}"
        self._thing("instanceGroupManagers", key).row.update(body)
        return self._operate("patch", zone=at["zone"], target=key, lasts_s=SHORT_S)

    def instanceGroupManagers_delete(self, at: dict[str, str], body: Json | None, request_id: str) -> Json:
        key = f"zones/{at['zone']}/instanceGroupManagers/{at['instanceGroupManager']}"
        group = self._thing("instanceGroupManagers", key).row

        def end() -> None:
            self._drop("instanceGroupManagers", key)
            for each in [each for each in self.things["resizeRequests"] if each.startswith(f"{key}/")]:
                self._drop("resizeRequests", each)
            for each in [each for each, thing in self.things["instances"].items() if thing.row.get("_group") == key]:
                self.delete_instance(each)

        group["targetSize"] = 0
        return self._operate("delete", zone=at["zone"], target=key, lasts_s=DELETE_S, then=end)

    def instanceGroupManagerResizeRequests_insert(self, at: dict[str, str], body: Json, request_id: str) -> Json:
        group = f"zones/{at['zone']}/instanceGroupManagers/{at['instanceGroupManager']}"
        self._thing("instanceGroupManagers", group)
        region = at["zone"].rpartition("-")[0]
        if self.quota.get(region, body["resizeBy"]) < body["resizeBy"]:
            return self._operate(
                "insert",
                zone=at["zone"],
                target=group,
                lasts_s=SHORT_S,
                request_id=request_id,
                errors=[("QUOTA_EXCEEDED", "Quota 'PREEMPTIBLE_NVIDIA_H100_GPUS' exceeded")],
            )
        row = {**body, "state": "ACCEPTED", "_group": group, "_from_s": self.clock.now_s() + self.queue_s}
        self._create("resizeRequests", f"{group}/resizeRequests/{body['name']}", row)
        return self._operate("insert", zone=at["zone"], target=group, lasts_s=SHORT_S, request_id=request_id)

    def instanceGroupManagerResizeRequests_cancel(self, at: dict[str, str], body: Json | None, request_id: str) -> Json:
        group = f"zones/{at['zone']}/instanceGroupManagers/{at['instanceGroupManager']}"
        row = self._thing("resizeRequests", f"{group}/resizeRequests/{at['resizeRequest']}").row
        if row["state"] != "ACCEPTED":
            raise Refused(400, "resourceNotReady", f"the request is {row['state']}")
        row["state"] = "CANCELLED"
        return self._operate("cancel", zone=at["zone"], target=group, lasts_s=SHORT_S)

    # Below

    def _bulk(self, zone: str, request_id: str, count: int, created: int, *, errors: list[tuple[str, str]]) -> Json:
        status = {"status": "DONE", "targetVmCount": count, "createdVmCount": created}
        return self._operate(
            "bulkInsert",
            zone=zone,
            target=f"zones/{zone}",
            lasts_s=self.create_s,
            request_id=request_id,
            errors=errors,
            more={
                "operationGroupId": f"group-{next(self._count)}",
                "instancesBulkInsertOperationMetadata": {"perLocationStatus": {f"zones/{zone}": status}},
            },
        )

    def _boot(self, zone: str, name: str, properties: Json, *, group: str = "") -> None:
        """Have a machine begin, with its disk."""
        number = next(self._count)
        key = f"zones/{zone}/instances/{name}"
        (boot,) = properties["disks"]
        disk_key = f"zones/{zone}/disks/{name}"
        zone_url = f"{API}/projects/{PROJECT}/zones/{zone}"
        disk = {
            "name": name,
            "zone": zone_url,
            "labels": boot["initializeParams"]["labels"],
            "description": boot["initializeParams"]["description"],
            "users": [f"{API}/projects/{PROJECT}/{key}"],
        }
        self._create("disks", disk_key, disk)
        row = {
            "id": str(number),
            "name": name,
            "zone": zone_url,
            "machineType": f"{zone_url}/machineTypes/{properties['machineType']}",
            "status": "PROVISIONING",
            "metadata": {"items": properties["metadata"]["items"]},
            "scheduling": properties["scheduling"],
            "resourcePolicies": list(properties.get("resourcePolicies", [])),
            "guestAccelerators": [
                {"acceleratorType": f"{zone_url}/acceleratorTypes/nvidia-h100-80gb", "acceleratorCount": 8}
            ],
            "networkInterfaces": [{"networkIP": f"10.0.{number // 250}.{number % 250 + 1}"}],
            "disks": [
                {"boot": True, "autoDelete": boot["autoDelete"], "source": f"{API}/projects/{PROJECT}/{disk_key}"}
            ],
            "resourceStatus": {
                "physicalHostTopology": {
                    "cluster": "c1",
                    "block": "b1",
                    "subblock": f"s{number % 2}",
                    "host": f"h{number}",
                }
            },
            "_group": group,
        }
        self.relabel(row, properties["labels"])
        self._create("instances", key, row)
        self.after(self.boot_s, lambda: row.update(status="RUNNING") if row["status"] == "PROVISIONING" else None)
        longest = properties["scheduling"].get("maxRunDuration")
        if longest:
            self.after(float(longest["seconds"]), lambda: self.delete_instance(key))

    def delete_instance(self, key: str, *, is_room_free: bool = True) -> None:
        """Have a machine gone, and its disk with it unless disks are kept."""
        thing = self.things["instances"].pop(key, None)
        if thing is None:
            return
        row = thing.row
        zone, shape = key.split("/")[1], row["machineType"].rpartition("/")[2]
        if is_room_free:
            self._take_room(zone, shape, -1)
        disk = f"zones/{zone}/disks/{row['name']}"
        if row["disks"][0]["autoDelete"] and not self.keeps_disks:
            self._drop("disks", disk)
        else:
            self.things["disks"][disk].row["users"] = []

    def _meet_requests(self) -> None:
        """Give queued requests their machines, each all of them, once they have waited and there is room."""
        for key, thing in list(self.things["resizeRequests"].items()):
            row = thing.row
            if row["state"] != "ACCEPTED" or row["_from_s"] > self.clock.now_s():
                continue
            group = self.things["instanceGroupManagers"][row["_group"]].row
            properties = self.things["instanceTemplates"][group["instanceTemplate"]].row["properties"]
            zone, shape = key.split("/")[1], properties["machineType"]
            if self.rooms.get((zone, shape), 0) < row["resizeBy"]:
                shortage = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "no capacity yet"}
                row["status"] = {"lastAttempt": {"error": {"errors": [shortage]}}}
                continue
            self._take_room(zone, shape, row["resizeBy"])
            row["state"], group["targetSize"] = "SUCCEEDED", row["resizeBy"]
            labels = {**properties["labels"], **group["allInstancesConfig"]["properties"]["labels"]}
            for _ in range(row["resizeBy"]):
                name = f"{group['baseInstanceName']}-{next(self._count):04d}"
                self._boot(zone, name, {**properties, "labels": labels}, group=row["_group"])

    def _take_room(self, zone: str, shape: str, num: int) -> None:
        self.rooms[zone, shape] = self.rooms.get((zone, shape), 0) - num

    def _expect_policy(self, region: str, properties: Json) -> None:
        for name in properties.get("resourcePolicies", []):
            if f"regions/{region}/resourcePolicies/{name}" not in self.things["resourcePolicies"]:
                raise Refused(400, "invalid", f"resource policy {name} does not exist")

    def _create(self, kind: str, key: str, row: Json) -> None:
        if key in self.things[kind]:
            raise Refused(409, "alreadyExists", f"{key} already exists")
        row["creationTimestamp"] = self.stamp()
        self.things[kind][key] = Thing(row, self.listed_at_s())

    def _thing(self, kind: str, key: str) -> Thing:
        if key not in self.things[kind]:
            raise Refused(404, "notFound", f"{key} was not found")
        return self.things[kind][key]

    def _drop(self, kind: str, key: str) -> None:
        self.things[kind].pop(key, None)

    def listed_at_s(self) -> float:
        """Return from when on what is made now is listed."""
        return self.clock.now_s() + (LISTING_S if self.hides_new else 0.0)

    def _operate(
        self,
        kind: str,
        *,
        target: str,
        lasts_s: float,
        zone: str = "",
        region: str = "",
        request_id: str = "",
        errors: list[tuple[str, str]] | None = None,
        more: Json | None = None,
        then: Callable[[], None] | None = None,
    ) -> Json:
        """Begin an operation; ``then`` happens when it is done."""
        scope = f"zones/{zone}" if zone else f"regions/{region}"
        name = f"operation-{next(self._count)}"
        row: Json = {
            "name": name,
            "operationType": kind,
            "status": "RUNNING",
            "insertTime": self.stamp(),
            "targetLink": f"{API}/projects/{PROJECT}/{target}",
            ("zone" if zone else "region"): f"{API}/projects/{PROJECT}/{scope}",
            **({"clientOperationId": request_id} if request_id else {}),
            **(more or {}),
        }
        self.things["operations"][f"{scope}/operations/{name}"] = Thing(row, self.listed_at_s())
        if request_id:
            self.begun[request_id] = row

        def end() -> None:
            row.update(status="DONE", endTime=self.stamp())
            if errors:
                row["error"] = {"errors": [{"code": code, "message": message} for code, message in errors]}
            if then is not None:
                then()

        if lasts_s:
            self.after(lasts_s, end)
        else:
            end()
        return row

    def repeated(self, request_id: str) -> Json | None:
        """Return the operation that a request of this id began, if one did."""
        return self.begun.get(request_id) if request_id else None
