"""Requests to Cloud TPU, and what it lists, in ours. Pure.

A lease is one queued resource with as many slices as the lease has nodes. A slice is a node, however many hosts it has:
its ranks are reached through the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched.clouds.gcp import record, render, sight
from airflow_llmsched.clouds.gcp.record import Place, Record
from airflow_llmsched.clouds.gcp.states import NativeError, RequestState
from airflow_llmsched.clouds.words import state_of
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseState, NodeNotice, NoticeKind
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import InternalError
from airflow_llmsched.units import DAY_S

Json = Mapping[str, Any]

QUEUED_STATE = {
    "CREATING": RequestState.WAITING,
    "ACCEPTED": RequestState.WAITING,
    "WAITING_FOR_RESOURCES": RequestState.WAITING,
    "PROVISIONING": RequestState.WAITING,
    "ACTIVE": RequestState.MET,
    "FAILED": RequestState.FAILED,
    "SUSPENDING": RequestState.ENDED,
    "SUSPENDED": RequestState.ENDED,
    "DELETING": RequestState.ENDED,
}
"""A queued resource's ``state.state``. One is suspended when a slice of it was taken."""

SLICE_STATE = {
    "CREATING": LeasedNodeState.STARTING,
    "STARTING": LeasedNodeState.STARTING,
    "RESTARTING": LeasedNodeState.STARTING,
    "REIMAGING": LeasedNodeState.STARTING,
    "READY": LeasedNodeState.RUNNING,
    "PREEMPTED": LeasedNodeState.PREEMPTED,
    "REPAIRING": LeasedNodeState.LOST,
    "STOPPING": LeasedNodeState.LOST,
    "STOPPED": LeasedNodeState.LOST,
    "TERMINATED": LeasedNodeState.LOST,
    "DELETING": LeasedNodeState.LOST,
    "HIDING": LeasedNodeState.LOST,
    "HIDDEN": LeasedNodeState.LOST,
    "UNHIDING": LeasedNodeState.LOST,
    "UNKNOWN": LeasedNodeState.LOST,
}
"""A slice's ``state``."""

SLICE_OFF = frozenset({"PREEMPTED", "STOPPED", "TERMINATED"})
"""States of a slice whose hosts do not run: what ran on them is dead."""

TAKEN = frozenset({"SUSPENDING", "SUSPENDED"})

RPC_CODE = {
    3: "INVALID_ARGUMENT",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    16: "UNAUTHENTICATED",
}
"""``google.rpc.Code``: what operations and failed requests say by number."""

_ACCELERATOR_TYPE = re.compile(r"(?P<generation>v\d+[a-z]*)-(?P<size>\d+)")

TENSOR_CORES = ("v2", "v3", "v4", "v5p")
"""Generations whose accelerator types count cores, two for each chip; later ones count chips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What every slice is made of. ``queue_s`` is how long a request may wait, at least as long as its lease."""

    runtime_version: str
    network: Mapping[str, Any] = field(default_factory=dict)
    service_account: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    queue_s: float = DAY_S


def expires_at_s(until_s: float, *, slice_: Slice, now_s: float) -> float:
    """Return what a new request says of its expiry (Unix seconds).

    Nobody can change what a waiting request says, so it says from the start until when it may wait, and ends then.
    """
    return max(until_s, now_s + slice_.queue_s)


def queued_resource(spec: Record, *, slice_: Slice, parent: str) -> dict[str, Any]:
    """Return the request for all slices of a lease, which Google gives up when it has not been met at the expiry."""
    is_spot = spec.capacity_type is CapacityType.SPOT
    is_reserved = spec.capacity_type is CapacityType.RESERVED
    node = {
        "acceleratorType": spec.shape,
        "runtimeVersion": slice_.runtime_version,
        "labels": record.labels(spec),
        "metadata": {**slice_.metadata, record.METADATA_KEY: record.encode(spec)},
        **({"networkConfig": dict(slice_.network)} if slice_.network else {}),
        **({"serviceAccount": {"email": slice_.service_account}} if slice_.service_account else {}),
        **({"schedulingConfig": {"reserved": True}} if is_reserved else {}),
    }
    several = {"multisliceParams": {"nodeCount": spec.num_nodes, "nodeIdPrefix": spec.place.name}}
    naming = {"nodeId": slice_name(spec.place, 0)} if spec.num_nodes == 1 else several
    return {
        "tpu": {"nodeSpec": [{"parent": parent, "node": node, **naming}]},
        "queueingPolicy": {"validUntilTime": render.timestamp(spec.expires_at_s)},
        **({"spot": {}} if is_spot else {}),
        **({"guaranteed": {}} if is_reserved else {}),
    }


def slice_name(place: Place, index: int) -> NodeId:
    """Return the name of the lease's slice number ``index``, as Google counts them."""
    return NodeId(f"{place.name}-{index}")


def relabelled(node: Json, *, until_s: float) -> dict[str, Any]:
    """Return a slice's labels with a new expiry."""
    return {"labels": {**node.get("labels", {}), record.EXPIRY_LABEL: record.expiry_label(until_s)}}


def is_slice(shape: str) -> bool:
    """Whether a shape is a slice of TPUs, such as ``v5litepod-16``, and not a machine type."""
    return _ACCELERATOR_TYPE.fullmatch(shape) is not None


def num_chips(accelerator_type: str) -> int:
    """Return how many chips a slice has. Raises ``InternalError`` for a type that is spelt otherwise."""
    found = _ACCELERATOR_TYPE.fullmatch(accelerator_type)
    if found is None:
        raise InternalError(f"Google calls an accelerator type {accelerator_type!r}: this form is unknown")
    size = int(found["size"])
    return max(1, size // 2) if found["generation"] in TENSOR_CORES else size


def rpc_errors(error: Json | None) -> tuple[NativeError, ...]:
    """Return a ``google.rpc.Status`` as an error; none when there is none.

    One code means no quota as well as no room: only the message tells which.
    """
    if not error:
        return ()
    message = str(error.get("message", ""))
    code = RPC_CODE.get(error.get("code", 0), f"rpc {error.get('code')}")
    if code == "RESOURCE_EXHAUSTED" and "quota" in message.lower():
        code = "QUOTA_EXCEEDED"
    return (NativeError(code=code, message=message),)


def name_of(row: Json) -> str:
    """Return the last part of a resource's name."""
    return sight.short(str(row["name"]))


def place_of(row: Json) -> Place | None:
    """Return the lease that a queued resource or a slice belongs to; None: it is not ours."""
    spec = record_of(row)
    return spec.place if spec else None


def record_of(row: Json) -> Record | None:
    """Return what a queued resource, through the slices that it asks for, or a slice says that it is."""
    asked = [each.get("node", {}) for each in row.get("tpu", {}).get("nodeSpec", [])]
    texts = [each.get("metadata", {}).get(record.METADATA_KEY, "") for each in (row, *asked)]
    return next((found for found in map(record.decode, texts) if found is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSlices:
    """What is listed of one lease at Cloud TPU, at ``at_s``."""

    place: Place
    at_s: float
    requests: tuple[Json, ...] = ()
    slices: tuple[Json, ...] = ()

    @property
    def state(self) -> str:
        """Google's word for the state of the request; empty when there is none."""
        return str(self.requests[0].get("state", {}).get("state", "")) if self.requests else ""

    @property
    def request_state(self) -> RequestState | None:
        """How far the request has come; None when there is none. One in a state that is new to us may yet be met."""
        if not self.requests:
            return None
        thing = f"GCP queued resource {self.place.name}"
        return state_of(QUEUED_STATE, self.state, thing=thing, otherwise=RequestState.WAITING)

    @property
    def failure(self) -> tuple[NativeError, ...]:
        """Why the request failed; nothing: it did not, or Google does not say."""
        return rpc_errors(self.requests[0]["state"].get("failedData", {}).get("error")) if self.requests else ()


def unlisted(seen: SeenSlices) -> tuple[NodeId, ...]:
    """Return the slices that must be there, as their request has been met, and are not listed."""
    spec = next((found for found in map(record_of, seen.requests) if found is not None), None)
    if spec is None or seen.request_state is not RequestState.MET:
        return ()
    listed = {name_of(row) for row in seen.slices}
    names = [slice_name(seen.place, index) for index in range(spec.num_nodes)]
    return tuple(name for name in names if name not in listed)


def lease(seen: SeenSlices, *, consistency_s: float) -> Lease | None:
    """Return the lease as it is listed; None when nothing of it is."""
    parts = (*seen.slices, *seen.requests)
    spec = next((found for found in map(record_of, parts) if found is not None), None)
    if spec is None:
        return None
    begun_at_s = min(sight.parse_time_s(each["createTime"]) for each in parts)
    nodes = _nodes(seen, spec, is_young=seen.at_s < begun_at_s + consistency_s)
    state, reason = _state(seen, nodes)
    labelled = [each for each in (record.expiry(row.get("labels", {})) for row in seen.slices) if each is not None]
    return Lease(
        id=seen.place.id,
        key=seen.place.key,
        pool=spec.pool,
        num_nodes=spec.num_nodes,
        state=state,
        expires_at_s=max(labelled, default=spec.expires_at_s),
        nodes=nodes,
        origin=spec.origin,
        leftovers=paths(seen.requests) if state is not LeaseState.ACTIVE else (),
        reason=reason,
    )


def paths(rows: Sequence[Json]) -> tuple[str, ...]:
    """Return the names by which things are found in their project."""
    return tuple("locations/" + str(row["name"]).partition("/locations/")[2] for row in rows)


def _nodes(seen: SeenSlices, spec: Record, *, is_young: bool) -> tuple[LeasedNode, ...]:
    """Return the slices, those included that are not there any more."""
    listed = {name_of(row): _node(row) for row in seen.slices}
    if not listed and seen.state not in TAKEN and (is_young or seen.request_state is not RequestState.MET):
        return ()
    names = [slice_name(seen.place, index) for index in range(spec.num_nodes)]
    return tuple(listed.get(name) or _missing(name, seen, is_young=is_young) for name in names)


def _missing(name: NodeId, seen: SeenSlices, *, is_young: bool) -> LeasedNode:
    if seen.state in TAKEN:
        return LeasedNode(id=name, state=LeasedNodeState.PREEMPTED, is_off=True)
    comes = is_young or seen.request_state is RequestState.WAITING
    state = LeasedNodeState.STARTING if comes else LeasedNodeState.LOST
    return LeasedNode(id=name, state=state, is_off=state.is_gone)


def _node(row: Json) -> LeasedNode:
    word = str(row.get("state", ""))
    endpoints = row.get("networkEndpoints", [])
    planned = row.get("upcomingMaintenance", {}).get("windowStartTime", "")
    notice = NodeNotice(kind=NoticeKind.MAINTENANCE, effective_at_s=sight.parse_time_s(planned)) if planned else None
    return LeasedNode(
        id=NodeId(name_of(row)),
        state=state_of(SLICE_STATE, word, thing=f"GCP slice {name_of(row)}", otherwise=LeasedNodeState.STARTING),
        address=endpoints[0].get("ipAddress", "") if endpoints else "",
        notice=notice,
        is_off=word in SLICE_OFF,
    )


def _state(seen: SeenSlices, nodes: Sequence[LeasedNode]) -> tuple[LeaseState, str]:
    gone = [node for node in nodes if node.state.is_gone]
    if gone:
        return LeaseState.BROKEN, f"{len(gone)} slices are gone: {gone[0].id} {gone[0].state}"
    match seen.request_state:
        case RequestState.FAILED | RequestState.ENDED:
            return LeaseState.BROKEN, f"its request is {seen.state}: {'; '.join(map(str, seen.failure))}"
        case RequestState.WAITING:
            return LeaseState.PENDING, f"its request is {seen.state}"
        case RequestState.MET | None:
            starting = not nodes or any(node.state is LeasedNodeState.STARTING for node in nodes)
            return (LeaseState.PENDING, "its slices are on their way") if starting else (LeaseState.ACTIVE, "")
