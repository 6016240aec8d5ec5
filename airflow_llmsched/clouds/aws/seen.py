"""Rows of EC2's answers become leases. Pure: it is told the time, and how long lists may lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_llmsched.clouds.aws import notices, states, tags
from airflow_llmsched.clouds.aws.states import RequestState
from airflow_llmsched.clouds.aws.tags import LeaseTags
from airflow_llmsched.domain.identity import LeaseKey, NodeId
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseId, LeaseState

RENTING_S = 180.0
"""How long a rental may take from its first call to its last, with tries and waits: until then nodes may yet come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a region listed: each field in EC2's own rows. ``statuses`` are ``InstanceStatuses``."""

    instances: Sequence[Mapping[str, Any]] = ()
    templates: Sequence[Mapping[str, Any]] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    requests: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[Mapping[str, Any]] = ()
    interfaces: Sequence[Mapping[str, Any]] = ()
    statuses: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A lease, and what of it there is to remove. ``instance_ids`` are those that cost money or still may."""

    lease: Lease
    created_at_s: float
    instance_ids: tuple[str, ...] = ()
    request_ids: tuple[str, ...] = ()
    volume_ids: tuple[str, ...] = ()
    interface_ids: tuple[str, ...] = ()
    template_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    named_ids: tuple[str, ...] = ()
    """Ids of the template and, where it was asked for, the group: they carry the expiry, too."""

    @property
    def is_left(self) -> bool:
        """Whether there is anything to remove, be it only a name."""
        return bool(self.costly or self.template_names or self.group_names)

    @property
    def costly(self) -> tuple[str, ...]:
        """Ids of all that costs money, or still may."""
        return (*self.instance_ids, *self.request_ids, *self.volume_ids, *self.interface_ids)


@dataclass(slots=True)
class _Pile:
    """The rows of one lease."""

    said: list[LeaseTags] = field(default_factory=list)
    instances: list[Mapping[str, Any]] = field(default_factory=list)
    templates: list[Mapping[str, Any]] = field(default_factory=list)
    groups: list[Mapping[str, Any]] = field(default_factory=list)
    requests: list[Mapping[str, Any]] = field(default_factory=list)
    volumes: list[Mapping[str, Any]] = field(default_factory=list)
    interfaces: list[Mapping[str, Any]] = field(default_factory=list)


def lease_id(region: str, key: LeaseKey) -> LeaseId:
    """Return a lease's name: its region, and its key's name."""
    return LeaseId(f"{region}/{key.name}")


def leases(rows: Rows, *, region: str, now_s: float, consistency_s: float) -> dict[LeaseId, Seen]:
    """Return every lease that any row belongs to, by id in order."""
    piles: dict[LeaseId, _Pile] = {}
    for kind in ("instances", "templates", "groups", "requests", "volumes", "interfaces"):
        for row in getattr(rows, kind):
            # Network interfaces alone have their tags under another name.
            said = tags.read(tags.unpaired(row.get("Tags", row.get("TagSet", ()))), region=region)
            if said is None:
                continue
            pile = piles.setdefault(lease_id(region, said.key), _Pile())
            pile.said.append(said)
            getattr(pile, kind).append(row)
    events = {row["InstanceId"]: row for row in rows.statuses}
    return {
        each: _seen(each, pile, events, now_s=now_s, consistency_s=consistency_s)
        for each, pile in sorted(piles.items())
    }


def _seen(
    each: LeaseId, pile: _Pile, events: Mapping[str, Mapping[str, Any]], *, now_s: float, consistency_s: float
) -> Seen:
    first = pile.said[0]
    requests = {row.get("InstanceId"): row for row in pile.requests}
    nodes = tuple(
        sorted(
            (
                _node(row, requests.get(row["InstanceId"], {}), events.get(row["InstanceId"], {}), now_s=now_s)
                for row in pile.instances
            ),
            key=lambda node: node.id,
        )
    )
    bare = Seen(
        lease=Lease(
            id=each,
            key=first.key,
            pool=first.pool,
            num_nodes=first.num_nodes,
            state=LeaseState.ENDED,
            expires_at_s=max(said.expires_at_s for said in pile.said),
            nodes=nodes,
            origin=first.origin,
            leftovers=_leftovers(pile),
        ),
        created_at_s=max(said.created_at_s for said in pile.said),
        instance_ids=_ids(pile.instances, "InstanceId", lambda row: row["State"]["Name"] not in states.REMOVED),
        request_ids=_ids(pile.requests, "SpotInstanceRequestId", lambda row: _request(row) is not RequestState.OVER),
        volume_ids=_ids(pile.volumes, "VolumeId", _is_loose),
        interface_ids=_ids(pile.interfaces, "NetworkInterfaceId", _is_loose),
        template_names=_ids(pile.templates, "LaunchTemplateName", _always),
        group_names=_ids(pile.groups, "GroupName", _stays),
        named_ids=(*_ids(pile.templates, "LaunchTemplateId", _always), *_ids(pile.groups, "GroupId", _stays)),
    )
    state, reason = _state(bare, is_young=now_s < bare.created_at_s + RENTING_S + consistency_s)
    return replace(bare, lease=replace(bare.lease, state=state, reason=reason))


def _state(seen: Seen, *, is_young: bool) -> tuple[LeaseState, str]:
    lease = seen.lease
    if not seen.is_left:
        return LeaseState.ENDED, "nothing of it is left"
    if lease.gone:
        ends = ", ".join(f"{node.id} {node.state}" for node in lease.gone)
        return LeaseState.BROKEN, f"{len(lease.gone)} of {lease.num_nodes} nodes are gone: {ends}"
    if len(lease.nodes) < lease.num_nodes:
        came = f"{len(lease.nodes)} of {lease.num_nodes} nodes are listed"
        if is_young or lease.leftovers:
            return LeaseState.PENDING, f"{came} so far"
        return LeaseState.BROKEN, f"{came}, and no more will come"
    starting = [node.id for node in lease.nodes if node.state is LeasedNodeState.STARTING]
    if starting:
        return LeaseState.PENDING, f"{len(starting)} of {lease.num_nodes} nodes are starting"
    return LeaseState.ACTIVE, ""


def _node(row: Mapping[str, Any], request: Mapping[str, Any], events: Mapping[str, Any], *, now_s: float) -> LeasedNode:
    written = tags.unpaired(row.get("Tags", ()))
    announced = [
        notices.of_request(request),
        notices.of_block(written, now_s=now_s),
        *notices.tagged(written),
        *notices.scheduled(events),
    ]
    state, reason = row["State"]["Name"], row.get("StateReason", {}).get("Code", "")
    return LeasedNode(
        id=NodeId(row["InstanceId"]),
        state=states.node_state(
            state,
            instance=row["InstanceId"],
            reason=reason,
            request_status=request.get("Status", {}).get("Code", ""),
            is_block_over=0.0 < tags.number(written, tags.BLOCK_ENDS) <= now_s,
        ),
        address=row.get("PrivateIpAddress", ""),
        notice=notices.weightiest(announced),
        is_off=states.is_off(state, reason=reason),
    )


def _leftovers(pile: _Pile) -> tuple[str, ...]:
    """Return what costs money, or still may, beside the nodes: disks and interfaces without one, open requests."""
    return (
        *_ids(pile.requests, "SpotInstanceRequestId", lambda row: _request(row) is RequestState.WAITING),
        *_ids(pile.volumes, "VolumeId", _is_loose),
        *_ids(pile.interfaces, "NetworkInterfaceId", _is_loose),
    )


def _ids(
    rows: Iterable[Mapping[str, Any]], name: str, is_counted: Callable[[Mapping[str, Any]], bool]
) -> tuple[str, ...]:
    return tuple(sorted(row[name] for row in rows if is_counted(row)))


def _request(row: Mapping[str, Any]) -> RequestState:
    return states.request_state(row["State"], request=row["SpotInstanceRequestId"])


def _is_loose(row: Mapping[str, Any]) -> bool:
    """Whether a disk or an interface hangs on nothing: what hangs on an instance goes with it."""
    return bool(row.get("State", row.get("Status")) == "available")


def _always(_row: Mapping[str, Any]) -> bool:
    return True


def _stays(row: Mapping[str, Any]) -> bool:
    return row.get("State") not in ("deleting", "deleted")
