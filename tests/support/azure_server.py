"""Azure's management interface over HTTP, with state and a virtual clock: what the adapter calls, and no more.

Request bodies are checked against the SDK's own models, versions against the SDK's. Creations and removals take time,
as operations that are polled. What goes wrong is ordered from a ``FaultPlan``, or is a shortage, a quota, a delay here.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from azure.mgmt.compute import models

from airflow_llmsched.sim.clock import VirtualClock
from tests.support.azure_bodies import BodyError, check
from tests.support.cloud_faults import CallKind, CloudFault, FaultPlan
from tests.support.http_server import LocalServer, QuietHandler

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
GROUP = "llmsched"
GROUP_PATH = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
RESERVATIONS = f"{GROUP_PATH}/providers/Microsoft.Compute/capacityReservationGroups/block"
REGION, FAR_REGION = "eastus", "westus3"
SHAPE = "Standard_ND96isr_H100_v5"
FAMILY = "standardNDSH100v5Family"
NUM_CORES = 96

CREATE_S = 60.0
FAIL_S = 20.0
DELETE_S = 30.0
PAGE_SIZE = 3

COMPUTE, DISKS, SKUS, NETWORK, SET_NETWORK = "2026-04-01", "2026-03-02", "2021-07-01", "2026-03-01", "2018-10-01"
GRAPH = "2022-10-01"
_KINDS = {
    "GET": CallKind.LOOK,
    "POST": CallKind.LOOK,
    "PUT": CallKind.CREATE,
    "PATCH": CallKind.CHANGE,
    "DELETE": CallKind.REMOVE,
}

Reply = tuple[int, dict[str, Any], dict[str, str]]


class RefusalError(Exception):
    """An answer of Azure that is an error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        self.reply: Reply = (status, {"error": {"code": code, "message": message or f"{code} happened."}}, {})
        super().__init__(code)


@dataclass
class Operation:
    ready_at_s: float
    error: dict[str, str] | None = None


@dataclass
class ScaleSet:
    name: str
    body: dict[str, Any]
    created_at_s: float
    listed_at_s: float
    ready_at_s: float
    numbers: list[int]
    error: dict[str, str] | None = None
    deleted_at_s: float | None = None
    etag: int = 1
    states: dict[int, str] = field(default_factory=dict)

    @property
    def pool(self) -> tuple[str, bool]:
        zone = (self.body.get("zones") or [""])[0]
        return zone, self.body["properties"]["virtualMachineProfile"].get("priority") == "Spot"


class AzureServer(LocalServer):
    """One resource group. ``num_free`` more machines can be had in each zone and way of renting."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.plan = FaultPlan()
        self.num_free: dict[tuple[str, bool], int] = {}
        self.quota_nodes: int | None = None
        self.hides_new = False
        self.leaves_behind = False
        self.dark_path = ""
        """Calls with this in their path are not heard."""
        self.dark_region = ""
        """Answers nothing of what is in it: lists of the whole group come from elsewhere."""
        self.consistency_s = 60.0
        self.create_s = CREATE_S
        self.sets: dict[str, ScaleSet] = {}
        self.parts: dict[str, dict[str, Any]] = {}
        self.operations: dict[str, Operation] = {}
        self.prices: list[dict[str, Any]] = []
        self.evictions: list[dict[str, str]] = [{"name": SHAPE.upper(), "rate": "5-10"}]
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda _method: None
        self.refusals: list[str] = []
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        super().__init__(_handler(self))

    # What the harness does beyond the interface

    def billed(self) -> frozenset[str]:
        with self._lock:
            self._settle()
            machines = {f"{each.name}_{number}" for each in self.sets.values() for number in each.numbers}
            return frozenset({*machines, *self.sets, *self.parts})

    def evict(self, machine: str) -> None:
        with self._lock:
            self._settle()
            name, _, number = machine.rpartition("_")
            self.sets[name].numbers.remove(int(number))

    def set_state(self, machine: str, power: str) -> None:
        with self._lock:
            name, _, number = machine.rpartition("_")
            self.sets[name].states[int(number)] = power

    def add_part(self, kind: str, name: str, *, tags: Mapping[str, str], **more: Any) -> str:
        """Have a disk, interface or address that hangs on nothing, or on what ``more`` says."""
        path = f"{GROUP_PATH}/providers/{kind}/{name}"
        with self._lock:
            self.parts[path] = {"id": path, "name": name, "location": REGION, "tags": dict(tags), **more}
        return path

    # The interface

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: Any) -> Reply | CloudFault:
        self.before(method)
        fault = self.plan.next(_KINDS[method])
        match fault:
            case CloudFault.UNHEARD:
                return CloudFault.UNHEARD
            case CloudFault.THROTTLED:
                return 429, {"error": {"code": "TooManyRequests", "message": "slow down"}}, {"Retry-After": "2"}
            case CloudFault.FAILED:
                return 500, {"error": {"code": "InternalServerError", "message": "it hurts"}}, {}
        with self._lock:
            self._settle()
            path, query = (
                urlsplit(target).path,
                {name: each[0] for name, each in parse_qs(urlsplit(target).query).items()},
            )
            self.calls.append(f"{method} {path}")
            if self._is_dark(path, body):
                return CloudFault.UNHEARD
            try:
                reply = self._route(method, path, query, headers, body)
            except RefusalError as error:
                self.refusals.append(str(error.reply[1]))
                reply = error.reply
        return CloudFault.UNANSWERED if fault is CloudFault.UNANSWERED else reply

    def _is_dark(self, path: str, body: Any) -> bool:
        named = re.search(r"/virtualMachineScaleSets/([\w-]+)", path)
        there = None if named is None else self.sets.get(named[1])
        content = body if isinstance(body, dict) else {} if there is None else there.body
        is_there = content.get("location") == self.dark_region or f"/locations/{self.dark_region}/" in path
        is_shut = bool(self.dark_path) and self.dark_path in path
        return is_shut or (bool(self.dark_region) and is_there)

    def _route(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: Any) -> Reply:
        if path == "/api/retail/prices":
            return 200, {"Items": self._priced(query), "NextPageLink": None}, {}
        if not headers.get("Authorization", "").startswith("Bearer "):
            raise RefusalError(401, "AuthenticationFailed")
        for verb, pattern, version, act in self._routes():
            match = re.fullmatch(pattern, path, re.IGNORECASE)
            if verb == method and match is not None:
                if version and query.get("api-version") != version:
                    raise RefusalError(400, "InvalidApiVersionParameter", f"{path} has {version}, not {query}")
                return act(query=query, headers=headers, body=body, path=path, **match.groupdict())
        if "/resourcegroups/" in path.lower() and not path.lower().startswith(GROUP_PATH.lower() + "/"):
            raise RefusalError(404, "ResourceGroupNotFound")
        raise RefusalError(404, "InvalidResourceType", f"nothing answers {method} {path}")

    def _routes(self) -> list[tuple[str, str, str, Callable[..., Reply]]]:
        group, subscription = re.escape(GROUP_PATH), re.escape(f"/subscriptions/{SUBSCRIPTION}")
        sets = rf"{group}/providers/Microsoft\.Compute/virtualMachineScaleSets"
        one = rf"{sets}/(?P<name>[\w-]+)"
        disks = rf"{group}/providers/Microsoft\.Compute/disks"
        network = rf"{group}/providers/Microsoft\.Network/(networkInterfaces|publicIPAddresses)"
        return [
            ("POST", "/providers/Microsoft.ResourceGraph/resources", GRAPH, self._query_graph),
            ("GET", sets, COMPUTE, self._list_sets),
            ("GET", one, COMPUTE, self._get_set),
            ("PUT", one, COMPUTE, self._put_set),
            ("PATCH", one, COMPUTE, self._patch_set),
            ("DELETE", one, COMPUTE, self._delete_set),
            ("GET", rf"{one}/virtualMachines", COMPUTE, self._list_machines),
            ("GET", rf"{one}/networkInterfaces", SET_NETWORK, self._list_interfaces),
            ("GET", rf"{one}/instanceView", COMPUTE, self._view_set),
            ("GET", disks, DISKS, self._list_parts),
            ("GET", network, NETWORK, self._list_parts),
            ("DELETE", rf"{disks}/.+", DISKS, self._delete_part),
            ("DELETE", rf"{network}/.+", NETWORK, self._delete_part),
            (
                "GET",
                rf"{subscription}/providers/Microsoft\.Compute/locations/\w+/operations/(?P<number>\d+)",
                "",
                self._get_operation,
            ),
            ("GET", rf"{subscription}/providers/Microsoft\.Compute/skus", SKUS, self._list_skus),
            (
                "GET",
                rf"{subscription}/providers/Microsoft\.Compute/locations/(?P<region>\w+)/usages",
                COMPUTE,
                self._usages,
            ),
            ("GET", rf"{re.escape(RESERVATIONS)}/capacityReservations", COMPUTE, self._list_reservations),
            ("GET", rf"{re.escape(RESERVATIONS)}/capacityReservations/h100", COMPUTE, self._get_reservation),
        ]

    # Scale sets

    def _put_set(self, *, name: str, body: Any, headers: Mapping[str, str], **_: Any) -> Reply:
        try:
            check(models.VirtualMachineScaleSet, body)
        except BodyError as error:
            raise RefusalError(400, "InvalidRequestContent", str(error)) from error
        there = self.sets.get(name)
        if there is not None and there.deleted_at_s is not None:
            raise RefusalError(409, "OperationNotAllowed", "The scale set is marked for deletion.")
        if there is not None and headers.get("If-None-Match") == "*":
            raise RefusalError(412, "PreconditionFailed")
        if there is not None:
            raise RefusalError(400, "PropertyChangeNotAllowed", "this server changes tags only")
        num_nodes = body["sku"]["capacity"]
        allowed = self.quota_nodes
        quota = f"Operation could not be completed as it results in exceeding approved {FAMILY} Cores quota."
        if allowed == 0:
            raise RefusalError(409, "OperationNotAllowed", quota)
        now_s = self.clock.now_s()
        made = ScaleSet(
            name=name,
            body=body,
            created_at_s=now_s,
            listed_at_s=now_s + (self.consistency_s if self.hides_new else 0.0),
            ready_at_s=now_s + self.create_s,
            numbers=[],
        )
        num_free = self.num_free.get(made.pool, 8)
        num_come = min(num_nodes, num_free, num_nodes if allowed is None else allowed)
        made.numbers = list(range(num_come))
        self.num_free[made.pool] = num_free - num_come
        if num_come < num_nodes and num_free:  # with none free at all it claims success, and nobody says why
            made.ready_at_s = now_s + FAIL_S
            short = {"code": "AllocationFailed", "message": "We do not have sufficient capacity."}
            over = {"code": "OperationNotAllowed", "message": quota}
            made.error = over if allowed is not None and allowed < num_nodes else short
        self.sets[name] = made
        operation = self._begin(made.ready_at_s, made.error)
        return 201, self._row(made), {"Azure-AsyncOperation": operation}

    def _get_set(self, *, name: str, **_: Any) -> Reply:
        return 200, self._row(self._listed(name)), {}

    def _list_sets(self, *, query: Mapping[str, str], path: str, **_: Any) -> Reply:
        now_s = self.clock.now_s()
        return self._page([self._row(each) for each in self.sets.values() if each.listed_at_s <= now_s], query, path)

    def _patch_set(self, *, name: str, body: Any, headers: Mapping[str, str], **_: Any) -> Reply:
        try:
            check(models.VirtualMachineScaleSetUpdate, body, for_update=True)
        except BodyError as error:
            raise RefusalError(400, "InvalidRequestContent", str(error)) from error
        there = self.sets.get(name)
        if there is None:
            raise RefusalError(404, "ResourceNotFound")
        if there.deleted_at_s is not None:
            raise RefusalError(409, "OperationNotAllowed", "The scale set is marked for deletion.")
        if headers.get("If-Match") not in ("*", f'"{there.etag}"'):
            raise RefusalError(412, "PreconditionFailed")
        there.body["tags"] = body["tags"]
        there.etag += 1
        return 200, self._row(there), {}

    def _delete_set(self, *, name: str, **_: Any) -> Reply:
        there = self.sets.get(name)
        if there is None:
            return 204, {}, {}
        if there.deleted_at_s is None:
            there.deleted_at_s = self.clock.now_s() + DELETE_S
        return 202, {}, {"Azure-AsyncOperation": self._begin(there.deleted_at_s, None)}

    def _view_set(self, *, name: str, **_: Any) -> Reply:
        there = self._listed(name)
        code = "ProvisioningState/succeeded"
        status = {"code": code, "level": "Info"}
        if there.error is not None and self.clock.now_s() >= there.ready_at_s:
            status = {"code": f"ProvisioningState/failed/{there.error['code']}", "message": there.error["message"]}
        return 200, {"statuses": [status]}, {}

    def _list_machines(self, *, name: str, query: Mapping[str, str], path: str, **_: Any) -> Reply:
        there = self._listed(name)
        rows = [
            self._machine(there, number, is_viewed="instanceView" in query.get("$expand", ""))
            for number in there.numbers
        ]
        return self._page(rows, query, path)

    def _list_interfaces(self, *, name: str, query: Mapping[str, str], path: str, **_: Any) -> Reply:
        there = self._listed(name)
        rows = [
            {
                "name": "nic",
                "properties": {
                    "virtualMachine": {"id": f"{self._row(there)['id']}/virtualMachines/{number}"},
                    "ipConfigurations": [
                        {"name": "ip", "properties": {"privateIPAddress": self._address(there, number)}}
                    ],
                },
            }
            for number in there.numbers
        ]
        return self._page(rows, query, path)

    def _listed(self, name: str) -> ScaleSet:
        there = self.sets.get(name)
        if there is None or there.listed_at_s > self.clock.now_s():
            raise RefusalError(404, "ResourceNotFound")
        return there

    def _row(self, each: ScaleSet) -> dict[str, Any]:
        now_s = self.clock.now_s()
        state = "Creating" if now_s < each.ready_at_s else "Failed" if each.error else "Succeeded"
        state = "Deleting" if each.deleted_at_s is not None else state
        created = datetime.fromtimestamp(each.created_at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "7+00:00"
        return {
            "id": f"{GROUP_PATH}/providers/Microsoft.Compute/virtualMachineScaleSets/{each.name}",
            "type": "Microsoft.Compute/virtualMachineScaleSets",
            "name": each.name,
            "etag": f'"{each.etag}"',
            **{name: each.body[name] for name in ("location", "tags", "sku", "zones") if name in each.body},
            "properties": each.body["properties"] | {"provisioningState": state, "timeCreated": created},
        }

    def _machine(self, each: ScaleSet, number: int, *, is_viewed: bool) -> dict[str, Any]:
        is_up = self.clock.now_s() >= each.ready_at_s
        state = "Deleting" if each.deleted_at_s is not None else "Succeeded" if is_up else "Creating"
        view = {
            "placementGroupId": f"pg-{each.created_at_s:.0f}",
            "statuses": [
                {"code": f"ProvisioningState/{state.lower()}"},
                {"code": f"PowerState/{each.states.get(number, 'running' if is_up else 'starting')}"},
            ],
        }
        return {
            "name": f"{each.name}_{number}",
            "instanceId": str(number),
            "location": each.body["location"],
            "properties": {"provisioningState": state} | ({"instanceView": view} if is_viewed else {}),
        }

    def _address(self, each: ScaleSet, number: int) -> str:
        return f"10.0.{list(self.sets).index(each.name)}.{number + 4}"

    def _settle(self) -> None:
        now_s = self.clock.now_s()
        for each in list(self.sets.values()):
            if each.deleted_at_s is not None and now_s >= each.deleted_at_s:
                del self.sets[each.name]
                self.num_free[each.pool] = self.num_free.get(each.pool, 8) + len(each.numbers)
                if self.leaves_behind:
                    self._leave_behind(each)

    def _leave_behind(self, each: ScaleSet) -> None:
        tags = each.body["tags"]
        self.add_part("Microsoft.Compute/disks", f"{each.name}_{each.name}_0_OsDisk_1_5f", tags={})
        nic = self.add_part("Microsoft.Network/networkInterfaces", f"{each.name}-nic", tags=tags)
        self.add_part(
            "Microsoft.Network/publicIPAddresses",
            "public-7",
            tags=tags,
            properties={"ipConfiguration": {"id": f"{nic}/ipConfigurations/ip"}},
        )

    # What machines leave behind

    def _list_parts(self, *, query: Mapping[str, str], path: str, **_: Any) -> Reply:
        return self._page([row for name, row in self.parts.items() if name.startswith(path + "/")], query, path)

    def _delete_part(self, *, path: str, **_: Any) -> Reply:
        row = self.parts.get(path)
        if row is None:
            return 204, {}, {}
        holder = row.get("properties", {}).get("ipConfiguration", {}).get("id", "")
        if any(holder.startswith(other) for other in self.parts if holder):
            raise RefusalError(400, "PublicIPAddressCannotBeDeleted", f"{path} is still allocated to {holder}")
        del self.parts[path]
        return 202, {}, {"Azure-AsyncOperation": self._begin(self.clock.now_s() + 5.0, None)}

    # Operations, catalogue, prices

    def _begin(self, ready_at_s: float, error: dict[str, str] | None) -> str:
        number = str(next(self._numbers))
        self.operations[number] = Operation(ready_at_s=ready_at_s, error=error)
        path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{REGION}/operations/{number}"
        return f"{self.address}{path}?api-version={COMPUTE}"

    def _get_operation(self, *, number: str, **_: Any) -> Reply:
        operation = self.operations.get(number)
        if operation is None:
            raise RefusalError(404, "NotFound")
        if self.clock.now_s() < operation.ready_at_s:
            return 200, {"status": "InProgress"}, {}
        if operation.error is not None:
            return 200, {"status": "Failed", "error": operation.error}, {}
        return 200, {"status": "Succeeded"}, {}

    def _list_skus(self, *, query: Mapping[str, str], path: str, **_: Any) -> Reply:
        region = query["$filter"].split("'")[1]
        where = {"locations": [region], "locationInfo": [{"location": region, "zones": ["1", "2"]}]}
        rows = [SKU | where] if region in (REGION, FAR_REGION) else []
        return self._page(rows, query, path)

    def _usages(self, *, query: Mapping[str, str], path: str, **_: Any) -> Reply:
        limit = 10_000 if self.quota_nodes is None else self.quota_nodes * NUM_CORES
        names = ("cores", FAMILY, "lowPriorityCores")
        return self._page([{"name": {"value": name}, "currentValue": 0, "limit": limit} for name in names], query, path)

    def _list_reservations(self, *, query: Mapping[str, str], path: str, **_: Any) -> Reply:
        return self._page([RESERVATION], query, path)

    def _get_reservation(self, *, query: Mapping[str, str], **_: Any) -> Reply:
        view = {"utilizationInfo": {"currentCapacity": 6, "virtualMachinesAllocated": [{"id": "a"}, {"id": "b"}]}}
        properties = {"instanceView": view} if query.get("$expand") == "instanceView" else {}
        return 200, RESERVATION | {"properties": properties}, {}

    def _query_graph(self, *, body: Any, **_: Any) -> Reply:
        if set(body) != {"subscriptions", "query"} or body["subscriptions"] != [SUBSCRIPTION]:
            raise RefusalError(400, "BadRequest", f"not a query: {body}")
        found = [row for row in self.evictions if f"'{SHAPE}'" in body["query"]]
        return 200, {"totalRecords": len(found), "count": len(found), "resultTruncated": "false", "data": found}, {}

    def _priced(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        wanted = query["$filter"]
        return [
            row for row in self.prices if f"'{row['armSkuName']}'" in wanted and f"'{row['armRegionName']}'" in wanted
        ]

    def _page(self, rows: list[dict[str, Any]], query: Mapping[str, str], path: str) -> Reply:
        start = int(query.get("$skiptoken", "0"))
        body: dict[str, Any] = {"value": rows[start : start + PAGE_SIZE]}
        if start + PAGE_SIZE < len(rows):
            more = "".join(f"&{name}={query[name]}" for name in ("$expand", "$filter") if name in query)
            version = query["api-version"]
            body["nextLink"] = f"{self.address}{path}?api-version={version}&$skiptoken={start + PAGE_SIZE}{more}"
        return 200, body, {}


SKU: dict[str, Any] = {
    "resourceType": "virtualMachines",
    "name": SHAPE,
    "family": FAMILY,
    "locations": [REGION],
    "locationInfo": [{"location": REGION, "zones": ["1", "2"]}],
    "capabilities": [
        {"name": "vCPUs", "value": str(NUM_CORES)},
        {"name": "GPUs", "value": "8"},
        {"name": "LowPriorityCapable", "value": "True"},
    ],
    "restrictions": [],
}
RESERVATION: dict[str, Any] = {
    "name": "h100",
    "sku": {"name": SHAPE, "capacity": 6},
    "zones": ["2"],
    "location": REGION,
}


def price(usd_per_hour: float, *, spot: bool = False, **changes: Any) -> dict[str, Any]:
    """Return one row of the public price list."""
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": usd_per_hour,
        "unitPrice": usd_per_hour,
        "armRegionName": REGION,
        "location": "US East",
        "effectiveStartDate": "2023-11-01T00:00:00Z",
        "meterName": "ND96isr H100 v5" + " Spot" * spot,
        "productName": "Virtual Machines NDsrH100v5 Series Linux",
        "skuName": "Standard_ND96isr_H100_v5" + " Spot" * spot,
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": SHAPE,
    } | changes


def _handler(server: AzureServer) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(data) if data else None
            reply = server.answer(self.command, self.path, self.headers, body)
            if isinstance(reply, CloudFault):
                self.close_connection = True
                return
            status, content, headers = reply
            text = json.dumps(content).encode() if status != 204 else b""
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    return Handler
