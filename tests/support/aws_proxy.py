"""A thin proxy in front of moto: real HTTP, moto's state, and what moto is too kind for or does not have.

moto meets every fleet, forgets client tokens, knows no placement groups, and never loses an answer. Here a fleet comes
in part or not at all, a token is kept, and each call may be throttled, fail, or be cut off by a ``FaultPlan``.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree

os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # a second of every start, for images nobody asks for

from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sqs.models import sqs_backends
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.cloud_faults import CallKind, CloudFault, FaultPlan

ACCOUNT = "123456789012"
_NS = "http://ec2.amazonaws.com/doc/2016-11-15"
_INSTANCE = re.compile(r"\bi-[0-9a-f]{17}\b")

KINDS = {
    "CreateFleet": CallKind.CREATE,
    "CreateLaunchTemplate": CallKind.CHANGE,
    "CreatePlacementGroup": CallKind.CHANGE,
    "CreateTags": CallKind.CHANGE,
    "DeleteMessageBatch": CallKind.CHANGE,
    "TerminateInstances": CallKind.REMOVE,
    "CancelSpotInstanceRequests": CallKind.REMOVE,
    "DeleteLaunchTemplate": CallKind.REMOVE,
    "DeletePlacementGroup": CallKind.REMOVE,
    "DeleteVolume": CallKind.REMOVE,
    "DeleteNetworkInterface": CallKind.REMOVE,
}
"""What each action does; all others look."""


class RefusedError(Exception):
    """An error answer of EC2's."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        self.code, self.message, self.status = code, message, status
        super().__init__(code)


@dataclass
class Call:
    environ: dict[str, Any]
    action: str
    region: str
    form: dict[str, str]
    body: bytes


@dataclass
class Group:
    name: str
    tags: list[tuple[str, str]]
    members: set[str] = field(default_factory=set)

    @property
    def id(self) -> str:
        return "pg-" + self.name


@dataclass
class World:
    """What the account holds beside moto's state, and how much there is to have. Pools are (type, zone, is spot)."""

    now_s: Callable[[], float] = lambda: 0.0
    free: dict[tuple[str, str, bool], int] = field(default_factory=dict)
    quota: dict[str, int] = field(default_factory=dict)
    refuse_fleet_with: str | None = None
    shortage: str = "InsufficientInstanceCapacity"
    num_garbled: int = 0
    on_launch: Callable[[str, list[str]], None] | None = None
    hide_for_s: float = 0.0
    dark_regions: set[str] = field(default_factory=set)
    hidden_until_s: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, tuple[dict[str, str], bytes]] = field(default_factory=dict)
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    groups_held: bool = False
    taken: set[str] = field(default_factory=set)
    pool_of: dict[str, tuple[str, str, bool]] = field(default_factory=dict)
    scheduled: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    network_nodes: dict[str, list[str]] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    on_demand_usd: dict[str, str] = field(default_factory=dict)
    quotas: dict[str, float] = field(default_factory=dict)
    reservations: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    crashes: list[str] = field(default_factory=list)
    """What went wrong in moto or here, of its own accord: no fault that anybody ordered."""
    calls: list[str] = field(default_factory=list)
    access_keys: list[str] = field(default_factory=list)
    bodies: list[tuple[str, dict[str, str]]] = field(default_factory=list)


class AwsProxy:
    """WSGI application: answers itself, or passes on to moto. ``reset`` makes it a new account."""

    def __init__(self) -> None:
        self.plan = FaultPlan()
        self.world = World()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        self._facts: dict[bytes, tuple[int, str, bytes]] = {}
        self._own: dict[str, Callable[[str, dict[str, str]], bytes]] = {
            "CreateFleet": self._create_fleet,
            "CreatePlacementGroup": self._create_group,
            "DescribePlacementGroups": self._describe_groups,
            "DeletePlacementGroup": self._delete_group,
            "TerminateInstances": self._terminate,
            "CancelSpotInstanceRequests": self._cancel_requests,
            "CreateTags": self._tag,
            "DescribeInstanceStatus": self._statuses,
            "DescribeInstanceTopology": self._topology,
            "GetSpotPlacementScores": self._scores,
            "DescribeCapacityReservations": self._reservations,
            "DescribeCapacityBlockOfferings": self._blocks,
        }

    def reset(self, *, now_s: Callable[[], float]) -> None:
        self.plan, self.world = FaultPlan(), World(now_s=now_s)
        for backends in (ec2_backends, sqs_backends):
            for backend in backends[ACCOUNT].values():
                backend.reset()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        form = {} if target else dict(parse_qsl(body.decode(), keep_blank_values=True))
        action = target.rpartition(".")[2] or form.get("Action", "")
        region = _region(environ.get("HTTP_AUTHORIZATION", ""))
        with self._lock:
            self.world.calls.append(action)
            self.world.access_keys.append(_access_key(environ.get("HTTP_AUTHORIZATION", "")))
            self.world.bodies.append((action, form))
            fault = self.plan.next(KINDS.get(action, CallKind.LOOK))
            if fault is CloudFault.UNHEARD or region in self.world.dark_regions:
                return _cut_off(environ, start_response)
            status, kind, data = self._answer(Call(environ, action, region, form, body), fault)
            if fault is CloudFault.UNANSWERED:
                return _cut_off(environ, start_response)
        start_response(f"{status} Said", [("Content-Type", kind), ("Content-Length", str(len(data)))])
        return [data]

    def _answer(self, call: Call, fault: CloudFault | None) -> tuple[int, str, bytes]:
        if self.world.num_garbled:
            self.world.num_garbled -= 1
            return 502, "text/html", b"<!doctype html><title>Bad Gateway</title>"
        try:
            self._refuse(call, fault)
            return self._carried_out(call)
        except RefusedError as refused:
            return _error(refused, is_json=not call.form)
        except Exception as error:
            self.world.crashes.append(f"{call.action}: {error!r}")
            raise

    def _refuse(self, call: Call, fault: CloudFault | None) -> None:
        if fault is CloudFault.THROTTLED:
            raise RefusedError("RequestLimitExceeded", "Request limit exceeded.", status=503)
        if fault is CloudFault.FAILED:
            raise RefusedError("InternalError", "An internal error has occurred", status=500)
        if call.action in self.world.denied:
            raise RefusedError("UnauthorizedOperation", "You are not authorized to do this.", status=403)

    def _carried_out(self, call: Call) -> tuple[int, str, bytes]:
        if call.action == "GetProducts":
            return 200, "application/x-amz-json-1.1", self._products(json.loads(call.body))
        if call.action == "ListServiceQuotas":
            return 200, "application/x-amz-json-1.1", self._quotas()
        if call.action in self._own:
            return 200, "text/xml", self._own[call.action](call.region, call.form)
        if _is_vain(call):
            return 200, "text/xml", _answer_of(call.action, "")
        return self._facts.get(call.body) or self._of_moto(call)

    def _of_moto(self, call: Call) -> tuple[int, str, bytes]:
        if call.action == "DeleteLaunchTemplate":
            backend = ec2_backends[ACCOUNT][call.region]
            if call.form["LaunchTemplateName"] not in backend.launch_template_name_to_ids:
                raise RefusedError("InvalidLaunchTemplateName.NotFoundException", "There is no such launch template.")
        status, kind, data = self._pass_on(call.environ, call.body)
        if call.action == "DescribeInstanceTypes":
            self._facts[call.body] = (status, kind, data)
        if self.world.hidden_until_s and call.action.startswith("Describe"):
            data = self._without_hidden(data)
        if call.action == "CreateLaunchTemplate" and status == 200 and self.world.hide_for_s:
            self._hide([call.form["LaunchTemplateName"]])
        return status, kind, data

    def _pass_on(self, environ: dict[str, Any], body: bytes) -> tuple[int, str, bytes]:
        said: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], _info: Any = None) -> None:
            said["status"] = int(status.split(maxsplit=1)[0])
            said["kind"] = dict(headers).get("Content-Type", "text/xml")

        inner = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        inner.pop("HTTP_TRANSFER_ENCODING", None)
        data = b"".join(self._moto(inner, start))
        if said["status"] >= 500:
            self.world.crashes.append(f"moto on {body[:200]!r}: {data[:500]!r}")
        return said["status"], said["kind"], data

    # Fleets

    def _create_fleet(self, region: str, form: dict[str, str]) -> bytes:
        known = self.world.tokens.get(form["ClientToken"])
        if known is not None:
            if known[0] != form:
                raise RefusedError("IdempotentParameterMismatch", "The same client token with different parameters.")
            return known[1]
        if self.world.refuse_fleet_with is not None:
            raise RefusedError(self.world.refuse_fleet_with, "Refused.")
        data = self._launch(region, form)
        self.world.tokens[form["ClientToken"]] = (form, data)
        return data

    def _launch(self, region: str, form: dict[str, str]) -> bytes:
        backend = ec2_backends[ACCOUNT][region]
        name = form["LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName"]
        if name not in backend.launch_template_name_to_ids:
            raise RefusedError(
                "InvalidLaunchTemplateName.NotFoundException", "The specified launch template is not there."
            )
        template = backend.get_launch_template_by_name(name).get_version("1").data
        subnet_id = template["NetworkInterfaces"][0]["SubnetId"]
        zone = backend.get_subnet(subnet_id).availability_zone
        group = template.get("Placement", {}).get("GroupName")
        if group is not None and (region, group) not in self.world.groups:
            raise RefusedError("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
        kind = form["TargetCapacitySpecification.DefaultTargetCapacityType"]
        shape = form["LaunchTemplateConfigs.1.Overrides.1.InstanceType"]
        wanted = int(form["TargetCapacitySpecification.TotalTargetCapacity"])
        pool = (shape, zone, kind == "spot")
        num_free = self.world.free.get(pool, 8)
        num_allowed = self.world.quota.get(region, wanted)
        come = min(wanted, num_free, num_allowed)
        errors = []
        if num_allowed < min(wanted, num_free):
            errors.append("MaxSpotInstanceCountExceeded" if kind == "spot" else "VcpuLimitExceeded")
        elif 0 < num_free < wanted:
            errors.append(self.world.shortage)  # none free at all comes without a word: field case E5
        data = (
            self._launched(region, form, subnet_id, come)
            if come
            else _answer_of("CreateFleet", "<fleetId>fleet-0</fleetId>")
        )
        ids = sorted(set(_INSTANCE.findall(data.decode())))
        self.world.free[pool] = num_free - len(ids)
        self.world.pool_of.update(dict.fromkeys(ids, pool))
        if region in self.world.quota:
            self.world.quota[region] -= len(ids)
        if group is not None:
            self.world.groups[(region, group)].members.update(ids)
        if self.world.hide_for_s:
            self._hide(ids)
        if self.world.on_launch is not None and ids:
            self.world.on_launch(region, ids)
        items = "".join(
            f"<item><errorCode>{code}</errorCode><errorMessage>Not as many as were asked for.</errorMessage></item>"
            for code in errors
        )
        return data.replace(b"</CreateFleetResponse>", f"<errorSet>{items}</errorSet></CreateFleetResponse>".encode())

    def _launched(self, region: str, form: dict[str, str], subnet_id: str, count: int) -> bytes:
        kind = form["TargetCapacitySpecification.DefaultTargetCapacityType"]
        inner = {
            **form,
            "TargetCapacitySpecification.TotalTargetCapacity": str(count),
            "TargetCapacitySpecification.DefaultTargetCapacityType": "spot" if kind == "spot" else "on-demand",
            # The real one takes the subnet of the template's interfaces.
            "LaunchTemplateConfigs.1.Overrides.1.SubnetId": subnet_id,
        }
        status, _, data = self._pass_on(_environ(region), urlencode(inner).encode())
        assert status == 200, data
        return data

    def _terminate(self, region: str, form: dict[str, str]) -> bytes:
        ids = _numbered(form, "InstanceId")
        absent = [each for each in ids if self._is_hidden(each)]
        if absent:
            raise RefusedError("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(absent)}' do not exist")
        status, _, data = self._pass_on(_environ(region), urlencode(form).encode())
        if status != 200:
            raise RefusedError(_text(data, "Code"), _text(data, "Message"), status=status)
        for each in ids:
            pool = self.world.pool_of.pop(each, None)
            if pool is not None and each not in self.world.taken:
                self.world.free[pool] += 1
                if region in self.world.quota:
                    self.world.quota[region] += 1
            for group in self.world.groups.values():
                group.members.discard(each)
        return data

    def _cancel_requests(self, region: str, form: dict[str, str]) -> bytes:
        for each in _numbered(form, "SpotInstanceRequestId"):
            # The real one cancels twice without complaint.
            ec2_backends[ACCOUNT][region].spot_instance_requests.pop(each, None)
        return _answer_of("CancelSpotInstanceRequests", "<spotInstanceRequestSet/>")

    def preempt(self, region: str, instance_id: str) -> None:
        """Take a spot instance, as EC2 does: its room is another's now."""
        backend = ec2_backends[ACCOUNT][region]
        with self._lock:
            instance = backend.get_instance(instance_id)
            instance.terminate()
            instance.state_reason = StateReason("Server.SpotInstanceTermination", "Server.SpotInstanceTermination")
            self.world.taken.add(instance_id)
            for request in backend.spot_instance_requests.values():
                if request.instance is instance:
                    request.state = "closed"

    # What is new is not listed yet

    def _hide(self, names: Iterable[str]) -> None:
        until_s = self.world.now_s() + self.world.hide_for_s
        self.world.hidden_until_s.update(dict.fromkeys(names, until_s))

    def _is_hidden(self, name: str | None) -> bool:
        return self.world.now_s() < self.world.hidden_until_s.get(name or "", 0.0)

    def _without_hidden(self, data: bytes) -> bytes:
        ElementTree.register_namespace("", _NS)
        root = ElementTree.fromstring(data)
        for parent in root.iter():
            for item in list(parent):
                names = [item.findtext(f"{{*}}{name}") for name in ("instanceId", "launchTemplateName")]
                if any(self._is_hidden(name) for name in names):
                    parent.remove(item)
        return ElementTree.tostring(root)

    # Placement groups

    def _create_group(self, region: str, form: dict[str, str]) -> bytes:
        name = form["GroupName"]
        if (region, name) in self.world.groups:
            raise RefusedError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        assert form["Strategy"] == "cluster"
        self.world.groups[(region, name)] = group = Group(name, _tags(form))
        return _answer_of("CreatePlacementGroup", f"<placementGroup>{_group(group)}</placementGroup>")

    def _describe_groups(self, region: str, form: dict[str, str]) -> bytes:
        found = [
            group
            for (where, _), group in self.world.groups.items()
            if where == region and _matches(form, {"group-name": group.name, **_tag_fields(group.tags)})
        ]
        items = "".join(f"<item>{_group(group)}</item>" for group in found)
        return _answer_of("DescribePlacementGroups", f"<placementGroupSet>{items}</placementGroupSet>")

    def _delete_group(self, region: str, form: dict[str, str]) -> bytes:
        group = self.world.groups.get((region, form["GroupName"]))
        if group is None:
            raise RefusedError(
                "InvalidPlacementGroup.Unknown", f"The Placement Group '{form['GroupName']}' is unknown."
            )
        if group.members - self.world.taken or self.world.groups_held:
            raise RefusedError("InvalidPlacementGroup.InUse", f"The Placement Group '{group.name}' is in use.")
        del self.world.groups[(region, group.name)]
        return _answer_of("DeletePlacementGroup", "<return>true</return>")

    def _tag(self, region: str, form: dict[str, str]) -> bytes:
        ids = _numbered(form, "ResourceId")
        written = _tags(form, prefix="Tag")
        for group in self.world.groups.values():
            if group.id in ids:
                group.tags = list({**dict(group.tags), **dict(written)}.items())
        others = [each for each in ids if not each.startswith("pg-")]
        rest = {key: value for key, value in form.items() if not key.startswith("ResourceId.")}
        inner = {**rest, **{f"ResourceId.{index}": each for index, each in enumerate(others, start=1)}}
        status, _, data = self._pass_on(_environ(region), urlencode(inner).encode())
        if status != 200:
            raise RefusedError(_text(data, "Code"), _text(data, "Message"), status=status)
        return data

    # What EC2 says of instances

    def _statuses(self, region: str, form: dict[str, str]) -> bytes:
        items = "".join(
            f"<item><instanceId>{each}</instanceId><eventsSet><item><code>{code}</code><description>{words}</description>"
            f"<notBefore>{at}</notBefore></item></eventsSet></item>"
            for each, (code, at, words) in self.world.scheduled.items()
            if _matches(form, {"event.code": code})
        )
        return _answer_of("DescribeInstanceStatus", f"<instanceStatusSet>{items}</instanceStatusSet>")

    def _topology(self, region: str, form: dict[str, str]) -> bytes:
        items = ""
        for each in _numbered(form, "InstanceId"):
            levels = self.world.network_nodes.get(each, ["nn-1", "nn-2", "nn-3"])
            nodes = "".join(f"<item>{level}</item>" for level in levels)
            items += f"<item><instanceId>{each}</instanceId><networkNodeSet>{nodes}</networkNodeSet></item>"
        return _answer_of("DescribeInstanceTopology", f"<instanceSet>{items}</instanceSet>")

    # Catalogues

    def _scores(self, region: str, form: dict[str, str]) -> bytes:
        items = "".join(
            f"<item><region>{region}</region><availabilityZoneId>{zone}</availabilityZoneId><score>{score}</score></item>"
            for zone, score in self.world.scores.items()
        )
        return _answer_of("GetSpotPlacementScores", f"<spotPlacementScoreSet>{items}</spotPlacementScoreSet>")

    def _reservations(self, region: str, form: dict[str, str]) -> bytes:
        items = "".join(f"<item>{_fields(row)}</item>" for row in self.world.reservations)
        return _answer_of("DescribeCapacityReservations", f"<capacityReservationSet>{items}</capacityReservationSet>")

    def _blocks(self, region: str, form: dict[str, str]) -> bytes:
        items = "".join(f"<item>{_fields(row)}</item>" for row in self.world.blocks)
        return _answer_of(
            "DescribeCapacityBlockOfferings", f"<capacityBlockOfferingSet>{items}</capacityBlockOfferingSet>"
        )

    def _products(self, body: dict[str, Any]) -> bytes:
        asked = {each["Field"]: each["Value"] for each in body["Filters"]}
        usd = self.world.on_demand_usd.get(asked["instanceType"])
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
        row = {"terms": {"OnDemand": {"t": {"priceDimensions": {"d": dimension}}}}}
        return json.dumps({"FormatVersion": "aws_v1", "PriceList": [json.dumps(row)] if usd else []}).encode()

    def _quotas(self) -> bytes:
        rows = [{"QuotaName": name, "Value": value} for name, value in self.world.quotas.items()]
        return json.dumps({"Quotas": rows}).encode()


class _QuietHandler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's own name
        """Say nothing."""


_server: tuple[AwsProxy, str] | None = None


def aws_server() -> tuple[AwsProxy, str]:
    """Return this process's proxy and its address; started when first asked for, on a port of its own."""
    global _server  # noqa: PLW0603 - one for each process
    if _server is None:
        proxy = AwsProxy()
        server = make_server("127.0.0.1", 0, proxy, threaded=True, request_handler=_QuietHandler)
        threading.Thread(target=server.serve_forever, name="aws", daemon=True).start()
        _server = (proxy, f"http://127.0.0.1:{server.server_port}")
    return _server


def _cut_off(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Close the connection without an answer."""
    connection = environ["werkzeug.socket"]
    connection.shutdown(socket.SHUT_RDWR)
    start_response("500 Gone", [])
    return []


def _is_vain(call: Call) -> bool:
    """Whether a list is empty anyway, which moto takes its time to find out."""
    backend = ec2_backends[ACCOUNT][call.region]
    if call.action == "DescribeSpotInstanceRequests":
        return not backend.spot_instance_requests
    if call.action == "DescribeNetworkInterfaces":
        return not any(each.get_tags() for each in backend.enis.values())
    return call.action == "DescribeVolumes" and not backend.volumes


def _environ(region: str) -> dict[str, Any]:
    """Return what a call to EC2 in a region looks like to moto."""
    credential = f"Credential=test/20260101/{region}/ec2/aws4_request"
    return {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/",
        "QUERY_STRING": "",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": f"ec2.{region}.amazonaws.com",
        "HTTP_AUTHORIZATION": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0",
        "CONTENT_TYPE": "application/x-www-form-urlencoded; charset=utf-8",
        "wsgi.url_scheme": "http",
        "wsgi.errors": io.StringIO(),
        "wsgi.version": (1, 0),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def _region(authorization: str) -> str:
    found = re.search(r"Credential=[^/]+/\d+/([^/]+)/", authorization)
    return found[1] if found else "us-east-1"


def _access_key(authorization: str) -> str:
    found = re.search(r"Credential=([^/]+)/", authorization)
    return found[1] if found else ""


def _error(refused: RefusedError, *, is_json: bool) -> tuple[int, str, bytes]:
    if is_json:
        data = json.dumps({"__type": refused.code, "message": refused.message}).encode()
        return refused.status, "application/x-amz-json-1.1", data
    words = f"<Error><Code>{refused.code}</Code><Message>{refused.message}</Message></Error>"
    return refused.status, "text/xml", f"<Response><Errors>{words}</Errors><RequestID>r</RequestID></Response>".encode()


def _answer_of(action: str, inner: str) -> bytes:
    return f'<{action}Response xmlns="{_NS}"><requestId>r</requestId>{inner}</{action}Response>'.encode()


def _text(data: bytes, name: str) -> str:
    found = re.search(rf"<{name}>(.*?)</{name}>", data.decode())
    return found[1] if found else "InternalError"


def _numbered(form: dict[str, str], name: str) -> list[str]:
    return [value for key, value in form.items() if re.fullmatch(rf"{name}\.\d+", key)]


def _tags(form: dict[str, str], *, prefix: str = r"TagSpecification\.1\.Tag") -> list[tuple[str, str]]:
    keys = {m[1]: value for key, value in form.items() if (m := re.fullmatch(rf"{prefix}\.(\d+)\.Key", key))}
    values = {m[1]: value for key, value in form.items() if (m := re.fullmatch(rf"{prefix}\.(\d+)\.Value", key))}
    return [(keys[number], values[number]) for number in keys]


def _tag_fields(tags: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {f"tag:{key}": value for key, value in tags} | {"tag-key": " ".join(key for key, _ in tags)}


def _matches(form: dict[str, str], fields: dict[str, str]) -> bool:
    """Whether a row with these fields passes the filters of a call."""
    for key, name in form.items():
        found = re.fullmatch(r"Filter\.(\d+)\.Name", key)
        if found is None:
            continue
        wanted = [value for each, value in form.items() if each.startswith(f"Filter.{found[1]}.Value.")]
        has = fields.get(name, "").split() if name == "tag-key" else [fields.get(name)]
        if not set(wanted) & set(has):
            return False
    return True


def _group(group: Group) -> str:
    tags = "".join(f"<item><key>{key}</key><value>{value}</value></item>" for key, value in group.tags)
    return (
        f"<groupName>{group.name}</groupName><groupId>{group.id}</groupId><strategy>cluster</strategy>"
        f"<state>available</state><tagSet>{tags}</tagSet>"
    )


def _fields(row: dict[str, Any]) -> str:
    return "".join(f"<{name}>{value}</{name}>" for name, value in row.items())
