"""Cloud TPU that keeps state: queued resources and their slices, under the clock of the world around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.gcp_errors import Refused

if TYPE_CHECKING:
    from tests.support.gcp_world import World

Json = dict[str, Any]

QUEUE_S = 40.0
SLICE_S = 30.0
DELETE_S = 10.0


class TpuWorld:
    """``rooms`` are slices still to be had, by zone and accelerator type."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rooms: dict[tuple[str, str], int] = {}
        self.types: dict[str, list[str]] = {}
        self.queued: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.operations: dict[str, Json] = {}
        self._by_request: dict[str, Json] = {}

    def billed(self) -> frozenset[str]:
        """Return what costs money, or may: slices, and requests that wait for some."""
        waiting = [name for name, row in self.queued.items() if row["state"]["state"] == "WAITING_FOR_RESOURCES"]
        running = [name for name, row in self.nodes.items() if row["state"] not in ("PREEMPTED", "TERMINATED")]
        return frozenset("locations/" + name.partition("/locations/")[2] for name in [*waiting, *running])

    def settle(self) -> None:
        """Meet requests that have waited and for which there is room; give up those whose time is over."""
        for name, row in list(self.queued.items()):
            if row["state"]["state"] != "WAITING_FOR_RESOURCES":
                continue
            (spec,) = row["tpu"]["nodeSpec"]
            zone, shape = name.split("/")[3], spec["node"]["acceleratorType"]
            count = spec.get("multisliceParams", {}).get("nodeCount", 1)
            if row["_until"] <= self.world.stamp():
                error = {"code": 8, "message": "There is no more capacity in the zone"}
                row["state"] = {"state": "FAILED", "failedData": {"error": error}}
            elif row["_from_s"] <= self.world.clock.now_s() and self.rooms.get((zone, shape), 0) >= count:
                self.rooms[zone, shape] -= count
                self._make_slices(name, row, spec, count)

    def preempt(self, name: str) -> None:
        """Take a slice. Google suspends the request that it belongs to."""
        row = next(row for full, row in self.nodes.items() if full.endswith(f"/{name}"))
        row["state"] = "PREEMPTED"
        self.queued[row["queuedResource"]]["state"] = {"state": "SUSPENDED", "stateInitiator": "SERVICE"}

    # Verbs

    def queuedResources_create(self, parent: str, params: dict[str, str], body: Json) -> Json:
        again = self._by_request.get(params["requestId"])
        if again is not None:
            return again
        name = f"{parent}/queuedResources/{params['queuedResourceId']}"
        if name in self.queued:
            raise Refused(409, "ALREADY_EXISTS", f"{name} already exists")
        (spec,) = body["tpu"]["nodeSpec"]
        count = spec.get("multisliceParams", {}).get("nodeCount", 1)
        assert (count > 1) is ("nodeId" not in spec), "one slice has a name, several have a prefix"
        zone, shape = parent.split("/")[3], spec["node"]["acceleratorType"]
        region = zone.rpartition("-")[0]
        if self.world.quota.get(region, count) < count:
            error = {"code": 8, "message": "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded"}
            return self._operate(parent, 2.0, params["requestId"], error=error)
        if self.rooms.get((zone, shape)) is None:
            raise Refused(400, "INVALID_ARGUMENT", f"{zone} has no {shape}")
        self.queued[name] = {
            **body,
            "name": name,
            "createTime": self.world.stamp(),
            "_listed_s": self.world.listed_at_s(),
            "state": {"state": "WAITING_FOR_RESOURCES"},
            "_from_s": self.world.clock.now_s() + QUEUE_S,
            "_until": body["queueingPolicy"]["validUntilTime"],
        }
        return self._operate(parent, 2.0, params["requestId"])

    def queuedResources_delete(self, name: str, params: dict[str, str], body: Json | None) -> Json:
        row = self._there(self.queued, name)
        if row["state"]["state"] == "DELETING":
            raise Refused(409, "ABORTED", "another operation is under way")
        row["state"] = {"state": "DELETING"}
        mine = [each for each, node in self.nodes.items() if node["queuedResource"] == name]
        for each in mine:
            self.nodes[each]["state"] = "DELETING"
        assert params.get("force") == "true" or not mine

        def end() -> None:
            self.queued.pop(name, None)
            for each in mine:
                self._drop_slice(each)

        operation = self._operate(name.partition("/queuedResources")[0], DELETE_S, "")
        self.world.after(DELETE_S, end)
        return operation

    def nodes_patch(self, name: str, params: dict[str, str], body: Json) -> Json:
        assert params["updateMask"] == "labels"
        self._there(self.nodes, name)["labels"] = body["labels"]
        return self._operate(name.partition("/nodes")[0], 0.0, "")

    def nodes_delete(self, name: str, params: dict[str, str], body: Json | None) -> Json:
        self._there(self.nodes, name)["state"] = "DELETING"
        operation = self._operate(name.partition("/nodes")[0], DELETE_S, "")
        self.world.after(DELETE_S, lambda: self._drop_slice(name))
        return operation

    def nodes_get(self, name: str, params: dict[str, str], body: Json | None) -> Json:
        return self._there(self.nodes, name)

    def queuedResources_get(self, name: str, params: dict[str, str], body: Json | None) -> Json:
        return self._there(self.queued, name)

    def operations_get(self, name: str, params: dict[str, str], body: Json | None) -> Json:
        return self._there(self.operations, name)

    def queuedResources_list(self, parent: str, params: dict[str, str], body: Json | None) -> Json:
        return {"queuedResources": self._listed(self.queued, parent)}

    def nodes_list(self, parent: str, params: dict[str, str], body: Json | None) -> Json:
        return {"nodes": self._listed(self.nodes, parent)}

    def acceleratorTypes_list(self, parent: str, params: dict[str, str], body: Json | None) -> Json:
        types = self.types.get(parent.split("/")[3], [])
        return {"acceleratorTypes": [{"name": f"{parent}/acceleratorTypes/{each}", "type": each} for each in types]}

    # Below

    def _make_slices(self, name: str, row: Json, spec: Json, count: int) -> None:
        parent = name.partition("/queuedResources")[0]
        prefix = spec.get("multisliceParams", {}).get("nodeIdPrefix", "")
        row["state"] = {"state": "PROVISIONING"}
        made: list[Json] = []
        for index in range(count):
            full = f"{parent}/nodes/{f'{prefix}-{index}' if prefix else spec['nodeId']}"
            node = {**spec["node"], "name": full, "state": "CREATING", "queuedResource": name}
            node["networkEndpoints"] = [{"ipAddress": f"10.9.{len(self.nodes)}.{index + 2}"}]
            node["createTime"] = self.world.stamp()
            node["_listed_s"] = self.world.listed_at_s()
            self.nodes[full] = node
            made.append(node)

        def come_up() -> None:
            if row["state"]["state"] == "PROVISIONING":
                row["state"] = {"state": "ACTIVE"}
                for node in made:
                    node["state"] = "READY"

        self.world.after(SLICE_S, come_up)

    def _drop_slice(self, name: str) -> None:
        row = self.nodes.pop(name, None)
        if row is not None:
            self.rooms[name.split("/")[3], row["acceleratorType"]] += 1

    def _listed(self, rows: dict[str, Json], parent: str) -> list[Json]:
        now_s = self.world.clock.now_s()
        mine = [row for name, row in sorted(rows.items()) if name.startswith(f"{parent}/")]
        return [row for row in mine if row["_listed_s"] <= now_s]

    def _there(self, rows: dict[str, Json], name: str) -> Json:
        if name not in rows:
            raise Refused(404, "NOT_FOUND", f"{name} was not found")
        return rows[name]

    def _operate(self, parent: str, lasts_s: float, request_id: str, *, error: Json | None = None) -> Json:
        name = f"{parent}/operations/op-{len(self.operations)}"
        row: Json = {"name": name, "done": lasts_s == 0.0}
        self.operations[name] = row
        if request_id:
            self._by_request[request_id] = row
        self.world.after(lasts_s, lambda: row.update(done=True, **({"error": error} if error else {})))
        return row
