"""What Google lists, put together to leases. Pure.

Machines, disks, placement policies, groups and operations are listed apart; a lease is what says the same key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_llmsched.clouds.gcp import record, states
from airflow_llmsched.clouds.gcp.record import Place, Record, Way
from airflow_llmsched.clouds.gcp.states import RequestState
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseState, NodeNotice, NoticeKind

Json = Mapping[str, Any]
REGIONAL = frozenset({"resourcePolicies", "instanceTemplates"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that is listed of one lease, at ``at_s``. ``preempted`` are the names of machines that Google took."""

    place: Place
    at_s: float
    machines: tuple[Json, ...] = ()
    disks: tuple[Json, ...] = ()
    policies: tuple[Json, ...] = ()
    groups: tuple[Json, ...] = ()
    templates: tuple[Json, ...] = ()
    requests: tuple[Json, ...] = ()
    preempted: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is listed of it."""
        return not (self.machines or self.disks or self.policies or self.groups or self.templates)

    @property
    def loose_disks(self) -> tuple[Json, ...]:
        """Disks that no machine holds: they stayed when it went."""
        return tuple(each for each in self.disks if not each.get("users"))

    @property
    def record(self) -> Record | None:
        """What its parts say that it is; None when none of them says anything that we understand."""
        described = (*self.groups, *self.templates, *self.policies, *self.disks)
        texts = [each.get("description", "") for each in described]
        found = [*map(record.of_instance, self.machines), *map(record.decode, texts)]
        return next((each for each in found if each is not None), None)

    @property
    def created_at_s(self) -> float | None:
        """When the first of its parts was created (Unix seconds)."""
        parts = (*self.machines, *self.policies, *self.groups, *self.templates, *self.disks)
        return min((parse_time_s(each["creationTimestamp"]) for each in parts), default=None)

    @property
    def expires_at_s(self) -> float:
        """The latest expiry that any part states (Unix seconds): a renewal may have reached only some."""
        grouped = [each.get("allInstancesConfig", {}).get("properties", {}).get("labels", {}) for each in self.groups]
        labelled = [*(each.get("labels", {}) for each in (*self.machines, *self.disks)), *grouped]
        stated = [each for each in map(record.expiry, labelled) if each is not None]
        first = self.record
        return max([*stated, *([first.expires_at_s] if first else [])], default=0.0)


@dataclass(slots=True)
class Gatherer:
    """Collects parts by the lease they belong to."""

    at_s: float
    parts: dict[Place, dict[str, list[Json]]] = field(default_factory=dict)

    def add(self, kind: str, rows: Iterable[Json]) -> None:
        """Add rows of one kind (a field of ``Seen``); what is not ours is left aside."""
        for row in rows:
            place = place_of(row)
            if place is not None:
                self.parts.setdefault(place, {}).setdefault(kind, []).append(row)

    def seen(self, place: Place, *, preempted: frozenset[str] = frozenset()) -> Seen:
        """Return what was collected of one lease, each kind in order of names."""
        mine = {
            kind: tuple(sorted(rows, key=lambda each: str(each.get("name"))))
            for kind, rows in self.parts.get(place, {}).items()
        }
        return Seen(place=place, at_s=self.at_s, preempted=preempted, **mine)


def place_of(row: Json) -> Place | None:
    """Return the lease that a listed thing belongs to, as it says itself; None: it is not ours."""
    spec = record.of_instance(row) or record.decode(row.get("description", ""))
    return spec.place if spec else None


def parse_time_s(text: str) -> float:
    """Return an RFC 3339 time in Unix seconds."""
    return datetime.fromisoformat(text).timestamp()


def short(url: str) -> str:
    """Return the last part of a URL: the name of what it names."""
    return url.rpartition("/")[2]


def is_short(seen: Seen) -> bool:
    """Whether fewer machines are listed than there are to be."""
    spec = seen.record
    return spec is not None and len(seen.machines) < spec.num_nodes


def needs_causes(seen: Seen) -> bool:
    """Whether a machine is gone, so that operations must be asked why."""
    gone = any(states.node_state(dict(each), preempted=frozenset()).is_gone for each in seen.machines)
    return gone or (seen.place.way is Way.MACHINES and is_short(seen))


def lease(seen: Seen, *, consistency_s: float) -> Lease | None:
    """Return the lease as its parts show it; None when nothing of it is listed, or nothing that is ours.

    A machine that is not listed is gone once ``consistency_s`` has passed since the lease began.
    """
    spec = seen.record
    if spec is None:
        return None
    is_young = seen.created_at_s is not None and seen.at_s < seen.created_at_s + consistency_s
    nodes = _nodes(seen, spec, is_young=is_young)
    state, reason = _state(seen, spec, nodes, is_young=is_young)
    return Lease(
        id=seen.place.id,
        key=seen.place.key,
        pool=spec.pool,
        num_nodes=spec.num_nodes,
        state=state,
        expires_at_s=seen.expires_at_s,
        nodes=nodes,
        origin=spec.origin,
        leftovers=leftovers(seen, state),
        reason=reason,
    )


def pending(spec: Record) -> Lease:
    """Return a lease that has been asked for, and of which nothing is to be seen yet."""
    return Lease(
        id=spec.place.id,
        key=spec.place.key,
        pool=spec.pool,
        num_nodes=spec.num_nodes,
        state=LeaseState.PENDING,
        expires_at_s=spec.expires_at_s,
        origin=spec.origin,
        reason="it has been asked for",
    )


def leftovers(seen: Seen, state: LeaseState) -> tuple[str, ...]:
    """Return what costs money, or could, beside the nodes, and of a lease that is over everything else there is."""
    costly = [path(seen.place, "disks", each) for each in seen.loose_disks]
    costly += [path(seen.place, "resizeRequests", each) for each in waiting_requests(seen)]
    return (*costly, *_settings(seen)) if state is LeaseState.BROKEN else tuple(costly)


def everything(seen: Seen) -> tuple[str, ...]:
    """Return all there is of a lease, what costs money first."""
    return (
        *(path(seen.place, "instances", each) for each in seen.machines),
        *leftovers(seen, LeaseState.ACTIVE),
        *_settings(seen),
    )


def _settings(seen: Seen) -> tuple[str, ...]:
    """Return what costs nothing by itself."""
    return (
        *(path(seen.place, "instanceGroupManagers", each) for each in seen.groups),
        *(path(seen.place, "instanceTemplates", each) for each in seen.templates),
        *(path(seen.place, "resourcePolicies", each) for each in seen.policies),
    )


def waiting_requests(seen: Seen) -> tuple[Json, ...]:
    """Return the requests that may still be met."""
    return tuple(each for each in seen.requests if states.request_state(dict(each)) is RequestState.WAITING)


def path(place: Place, collection: str, row: Json) -> str:
    """Return the name by which a thing is found in its project, whoever looks."""
    scope = f"regions/{place.region}" if collection in REGIONAL else f"zones/{place.zone}"
    inside = f"instanceGroupManagers/{place.name}/" if collection == "resizeRequests" else ""
    return f"{scope}/{inside}{collection}/{row['name']}"


def _nodes(seen: Seen, spec: Record, *, is_young: bool) -> tuple[LeasedNode, ...]:
    """Return the machines that are listed, and, where names are known beforehand, those that are not (any more)."""
    listed = {NodeId(each["name"]): _node(each, seen.preempted) for each in seen.machines}
    if seen.place.way is not Way.MACHINES:
        return tuple(listed.values())
    names = [record.node_name(seen.place, index) for index in range(spec.num_nodes)]
    return tuple(listed.get(name) or _missing(name, seen.preempted, is_young=is_young) for name in names)


def _node(machine: Json, preempted: frozenset[str]) -> LeasedNode:
    nics = machine.get("networkInterfaces", [])
    return LeasedNode(
        id=NodeId(machine["name"]),
        state=states.node_state(dict(machine), preempted=preempted),
        address=nics[0].get("networkIP", "") if nics else "",
        notice=_notice(machine),
        is_off=machine.get("status") in states.OFF,
    )


def _missing(name: NodeId, preempted: frozenset[str], *, is_young: bool) -> LeasedNode:
    if name in preempted:
        return LeasedNode(id=name, state=LeasedNodeState.PREEMPTED, is_off=True)
    state = LeasedNodeState.STARTING if is_young else LeasedNodeState.LOST
    return LeasedNode(id=name, state=state, is_off=state.is_gone)


def _notice(machine: Json) -> NodeNotice | None:
    """Return what Google announces about a machine, if it does: a graceful shutdown, or maintenance."""
    status = machine.get("resourceStatus", {})
    if machine.get("status") == "PENDING_STOP":
        return NodeNotice(kind=NoticeKind.INTERRUPTION)
    planned = status.get("upcomingMaintenance", {})
    if not planned:
        return None
    begins = planned.get("windowStartTime", "")
    return NodeNotice(kind=NoticeKind.MAINTENANCE, effective_at_s=parse_time_s(begins) if begins else None)


def _state(seen: Seen, spec: Record, nodes: Sequence[LeasedNode], *, is_young: bool) -> tuple[LeaseState, str]:
    gone = [node for node in nodes if node.state.is_gone]
    if gone:
        told = ", ".join(f"{node.id} {node.state}" for node in gone[:4])
        return LeaseState.BROKEN, f"{len(gone)} of {spec.num_nodes} nodes are gone: {told}"
    if seen.place.way is Way.QUEUE and len(nodes) < spec.num_nodes:
        return _queue_state(seen, spec, is_young=is_young)
    if any(node.state is LeasedNodeState.STARTING for node in nodes):
        return LeaseState.PENDING, "its machines are on their way"
    return LeaseState.ACTIVE, ""


def _queue_state(seen: Seen, spec: Record, *, is_young: bool) -> tuple[LeaseState, str]:
    """Return the state of a lease whose machines are not all there: it waits, or its request came to nothing."""
    if not seen.requests:
        if is_young:
            return LeaseState.PENDING, "its request is on its way"
        return LeaseState.BROKEN, "nothing is asked for any more: its request was never made, or is gone"
    request = seen.requests[0]
    match states.request_state(dict(request)):
        case RequestState.WAITING:
            return LeaseState.PENDING, _last_words(request) or "it waits in the queue"
        case RequestState.MET if _is_filling(seen, spec):
            return LeaseState.PENDING, "its machines are on their way"
        case RequestState.MET:
            return LeaseState.BROKEN, f"{len(seen.machines)} of {spec.num_nodes} machines are there"
        case RequestState.FAILED | RequestState.ENDED:
            return LeaseState.BROKEN, f"its request ended {request['state']}: {_last_words(request)}"


def _is_filling(seen: Seen, spec: Record) -> bool:
    """Whether the group means to have all machines, and has not come to rest, or to being listed, yet."""
    return any(
        each.get("targetSize", 0) >= spec.num_nodes
        and (not each.get("status", {}).get("isStable", False) or not seen.machines)
        for each in seen.groups
    )


def _last_words(request: Json) -> str:
    """Return why a request has not been met so far, as Google tells it."""
    status = request.get("status", {})
    errors = states.native_errors(status.get("error") or status.get("lastAttempt", {}).get("error"))
    return "; ".join(map(str, errors))
