"""Compute Engine over HTTP, before a ``World``: what the discovery document does not allow is refused, both ways."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.cloud_faults import CallKind, CloudFault, FaultPlan
from tests.support.gcp_errors import Refused
from tests.support.gcp_world import Json, Thing, World
from tests.support.google_discovery import Discovery, Match, discovery
from tests.support.http_server import LocalServer, QuietHandler

INTERFACES = ("compute.v1", "tpu.v2", "cloudbilling.v1")
PAGE_SIZE = 3
"""So small that every list has to be turned over."""

LISTED = {
    "instances": "instances",
    "disks": "disks",
    "resourcePolicies": "resourcePolicies",
    "instanceGroupManagers": "instanceGroupManagers",
    "instanceTemplates": "instanceTemplates",
    "regionInstanceTemplates": "instanceTemplates",
    "instanceGroupManagerResizeRequests": "resizeRequests",
    "zoneOperations": "operations",
}
SHELVED = {
    "machineTypes": "machine_types",
    "reservations": "reservations",
    "futureReservations": "future_reservations",
    "regions": "regions",
}
CREATING = ("instances.bulkInsert", "instanceGroupManagerResizeRequests.insert")
"""What may cost money from then on."""


class GcpServer(LocalServer):
    """One project's Compute Engine on a port of its own.

    ``unreachable``: a zone that lists of everywhere leave out, saying so, and that answers nothing itself. Calls with
    ``dark_path`` in their path fail.

    ``new_words``: those that Google has for states since its description was shipped.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = FaultPlan()
        self.unreachable = ""
        self.dark_path = ""
        self.new_words: set[str] = set()
        self.calls: list[str] = []
        self.faults: list[str] = []
        self.interfaces: tuple[Discovery, ...] = tuple(map(discovery, INTERFACES))
        self._lock = threading.Lock()
        super().__init__(_handler(self))

    def __exit__(self, *_: object) -> None:
        """Stop. Raises ``AssertionError`` for calls that Google does not have, and for answers that it never gives."""
        super().__exit__()
        assert self.faults == []

    def is_unreachable(self, url: str) -> bool:
        """Whether a call is to what cannot be reached."""
        path = urlsplit(url).path
        named = re.search(r"/(?:zones|locations)/([^/]+)", path)
        is_there = bool(self.unreachable) and named is not None and named[1] == self.unreachable
        return is_there or (bool(self.dark_path) and self.dark_path in path)

    def answer(self, verb: str, url: str, body: Json | None) -> tuple[int, Json]:
        """Return status and answer of a call. What goes wrong in this server itself is kept for ``close``."""
        try:
            return self._answer(verb, url, body)
        except Exception as error:
            self.faults.append(f"{verb} {url}: {error!r}")
            raise

    def _answer(self, verb: str, url: str, body: Json | None) -> tuple[int, Json]:
        parts = urlsplit(url)
        found = [(each, match) for each in self.interfaces if (match := each.match(verb, parts.path))]
        assert found, f"Google has no {verb} {parts.path}"
        ((interface, match),) = found
        params = dict(parse_qsl(parts.query))
        problems = interface.request_problems(match, params, body)
        with self._lock:
            self.calls.append(match.id.removeprefix("compute.").removeprefix("tpu.projects.locations."))
            if problems:
                return 400, _error(400, "invalid", "; ".join(problems))
            self.world.settle()
            try:
                answer = self._do(match, params, body)
            except Refused as refused:
                return refused.status, _error(refused.status, refused.reason, refused.message)
            shown = _public(answer)
        problems = list(interface.problems(match.method["response"], shown, is_request=False))
        wrong = [each for each in problems if not any(f"{word!r} is none of" in each for word in self.new_words)]
        assert wrong == [], wrong
        return 200, shown

    def _do(self, match: Match, params: dict[str, str], body: Json | None) -> Json:
        if match.id == "cloudbilling.services.skus.list":
            return self._skus(match.path["parent"], params)
        if match.id.startswith("tpu."):
            *_, resource, verb = match.id.split(".")
            (name,) = match.path.values()
            return getattr(self.world.tpus, f"{resource}_{verb}")(name, params, body)
        _, resource, verb = match.id.split(".")
        at = match.path
        if resource in ("zoneOperations", "regionOperations") and verb == "get":
            scope = f"zones/{at['zone']}" if "zone" in at else f"regions/{at['region']}"
            return self.world.things["operations"][f"{scope}/operations/{at['operation']}"].row
        if verb in ("list", "aggregatedList"):
            return self._list(resource, verb, at, params)
        request_id = params.get("requestId", "")
        again = self.world.repeated(request_id)
        return again or getattr(self.world, f"{resource}_{verb}")(at, body, request_id)

    def _skus(self, service: str, params: dict[str, str]) -> Json:
        rows = self.world.shelf.skus.get(service, [])
        start = int(params.get("pageToken", "0"))
        more = {"nextPageToken": str(start + PAGE_SIZE)} if start + PAGE_SIZE < len(rows) else {}
        return {"skus": rows[start : start + PAGE_SIZE], **more}

    def _list(self, resource: str, verb: str, at: dict[str, str], params: dict[str, str]) -> Json:
        rows = [row for row in self._rows(resource, at) if _passes(row, params.get("filter", ""))]
        start = int(params.get("pageToken", "0"))
        page = rows[start : start + PAGE_SIZE]
        more = {"nextPageToken": str(start + PAGE_SIZE)} if start + PAGE_SIZE < len(rows) else {}
        if verb == "list":
            return {"items": page, **more} if page else {}
        scopes: Json = {"zones/us-west9-z": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}
        if self.unreachable:
            scopes[f"zones/{self.unreachable}"] = {"warning": {"code": "UNREACHABLE"}}
            page = [row for row in page if self.unreachable not in str(row.get("zone"))]
        collection = LISTED.get(resource, resource)
        for row in page:
            where = str(row.get("zone") or row.get("region") or "global")
            scope = re.sub(r".*/((zones|regions)/[^/]+).*", r"\1", where)
            scopes.setdefault(scope, {}).setdefault(collection, []).append(row)
        return {"items": scopes, **more}

    def _rows(self, resource: str, at: dict[str, str]) -> Iterator[Json]:
        if resource in SHELVED:
            for row in getattr(self.world.shelf, SHELVED[resource]):
                if "zone" not in at or row["zone"].endswith(f"/{at['zone']}"):
                    yield row
            return
        prefix = f"zones/{at['zone']}/" if "zone" in at else f"regions/{at['region']}/" if "region" in at else ""
        if "instanceGroupManager" in at:
            prefix = f"{prefix}instanceGroupManagers/{at['instanceGroupManager']}/"
        things: dict[str, Thing] = self.world.things[LISTED[resource]]
        for key, thing in sorted(things.items()):
            if key.startswith(prefix) and thing.listed_at_s <= self.world.clock.now_s():
                yield thing.row

    @staticmethod
    def kind(verb: str, path: str) -> CallKind:
        """Return what a call does, for whoever lets it go wrong."""
        if verb == "GET":
            return CallKind.LOOK
        if verb == "DELETE" or path.endswith("/cancel"):
            return CallKind.REMOVE
        creates = path.endswith(("/bulkInsert", "/resizeRequests", "/queuedResources"))
        return CallKind.CREATE if creates else CallKind.CHANGE


def _handler(server: GcpServer) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def handle_call(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            fault = server.plan.next(server.kind(self.command, urlsplit(self.path).path))
            if fault is CloudFault.UNHEARD:
                self.close_connection = True
                return
            if fault is CloudFault.THROTTLED:
                self.send(403, _error(403, "rateLimitExceeded", "Rate Limit Exceeded"))
                return
            if fault is CloudFault.FAILED or server.is_unreachable(self.path):
                self.send(503, _error(503, "backendError", "Backend Error"))
                return
            status, answer = server.answer(self.command, self.path, body)
            if fault is CloudFault.UNANSWERED:
                self.close_connection = True
                return
            self.send(status, answer)

        def send(self, status: int, answer: Json) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PATCH = handle_call

    return Handler


def _error(status: int, reason: str, message: str) -> Json:
    if reason.isupper():  # as Cloud TPU words it
        return {"error": {"code": status, "message": message, "status": reason}}
    return {"error": {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}}


def _public(value: Any) -> Any:
    """Return a deep copy without the world's own notes."""
    if isinstance(value, dict):
        return {key: _public(each) for key, each in value.items() if not key.startswith("_")}
    return [_public(each) for each in value] if isinstance(value, list) else value


_TERM = re.compile(r"\(?(?P<field>[\w.-]+) = \"(?P<value>[^\"]*)\"\)?")


def _passes(row: Json, filter_: str) -> bool:
    """Whether a row passes a filter, of the kinds that we send. Any other is an error."""
    if not filter_:
        return True
    if regex := re.fullmatch(r"(\w+) eq \"(.*)\"", filter_):
        return re.fullmatch(regex[2], str(row.get(regex[1], ""))) is not None
    if defined := re.fullmatch(r"([\w.-]+):\*", filter_):
        return _field(row, defined[1]) is not None
    terms = [_TERM.fullmatch(each) for each in filter_.split(" OR ")]
    assert all(terms), f"a filter that this server does not know: {filter_}"
    return any(str(_field(row, each["field"])) == each["value"] for each in terms if each)


def _field(row: Any, path: str) -> Any:
    head, _, rest = path.partition(".")
    value = row.get(head) if isinstance(row, dict) else None
    return _field(value, rest) if rest else value
