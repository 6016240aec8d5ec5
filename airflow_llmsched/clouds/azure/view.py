"""Leases as Azure's answers show them. Pure: rows of its lists in, leases out.

A spot machine that is evicted vanishes from its scale set, as ``evictionPolicy`` Delete wants it. So a machine counts
as gone when the set, ready and listed for long enough, has fewer than the lease. Azure counts the machines of a new set
from 0 on: the missing ones are named by the numbers that no machine has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_llmsched.clouds.azure import states
from airflow_llmsched.clouds.azure.render import zone_name
from airflow_llmsched.clouds.azure.states import SetPhase
from airflow_llmsched.clouds.azure.tags import NAME, LeaseTags, from_tags, parse_key
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseId, LeaseState
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import InternalError

Row = Mapping[str, Any]


def lease_id(pool: Pool, key: LeaseKey) -> LeaseId:
    """Return the lease's id: its region, and the name that its scale set has in the resource group."""
    return LeaseId(f"{pool.region}/{key.name}")


def set_name(each: LeaseId) -> str:
    """Return the name of the lease's scale set; empty for an id that is none of ours."""
    name = each.partition("/")[2]
    key = parse_key(name)
    return name if key is not None and key.name == name else ""


def said_by(row: Row) -> LeaseTags | None:
    """Return whose a resource is by its tags, or, where it has none, by its name. None: not ours."""
    said = from_tags(row.get("tags") or {})
    key = parse_key(str(row.get("name", "")))
    if said is not None or key is None:
        return said
    region = str(row.get("location", ""))
    zones = row.get("zones") or [""]
    spot = _properties(row).get("virtualMachineProfile", {}).get("priority") == "Spot"
    return LeaseTags(
        key=key,
        pool=Pool(
            cloud=NAME,
            region=region,
            zone=zone_name(region, str(zones[0])),
            shape=str((row.get("sku") or {}).get("name", "")),
            capacity_type=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        ),
        num_nodes=int((row.get("sku") or {}).get("capacity") or 0),
        expires_at_s=0.0,
        origin=None,
    )


def phase(row: Row) -> SetPhase:
    """Return where a scale set stands."""
    return states.set_phase(str(_properties(row).get("provisioningState", "")), name=str(row.get("name", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRows:
    """What Azure shows of one scale set: itself, its machines and their interfaces, and why it failed if it did."""

    row: Row
    machines: Sequence[Row] = ()
    interfaces: Sequence[Row] = ()
    failure: str = ""


def lease_of(rows: SetRows, *, leftovers: Sequence[str] = (), now_s: float, consistency_s: float) -> Lease | None:
    """Return the lease that a scale set is, None when it is none of ours."""
    said = said_by(rows.row)
    if said is None:
        return None
    stands = phase(rows.row)
    is_listed = now_s >= _created_at_s(rows.row) + consistency_s
    nodes = _nodes(said, rows, count_missing=stands is SetPhase.READY and is_listed)
    state, reason = _state(said, rows, stands, nodes)
    return replace(
        _bare(said),
        state=state,
        nodes=nodes,
        leftovers=tuple(leftovers),
        reason=reason,
    )


def pending(said: LeaseTags) -> Lease:
    """Return the lease of a set that was ordered and is not listed yet."""
    return _bare(said)


def remains_of(rows: Sequence[Row]) -> Lease:
    """Return the lease of which only the parts ``rows`` are left. The one that says most speaks for all.

    Raises ``InternalError`` when none is ours.
    """
    said = [each for each in map(said_by, rows) if each is not None]
    if not said:
        raise InternalError("what is left of a lease says not of which")
    best = max(said, key=lambda each: (each.origin is not None, each.expires_at_s))
    reason = "its machines are gone, but not all that came with them"
    leftovers = tuple(str(row["id"]) for row in rows)
    return replace(_bare(best), state=LeaseState.BROKEN, leftovers=leftovers, reason=reason)


def is_loose(row: Row) -> bool:
    """Whether a disk, an interface or an address hangs on nothing."""
    properties = _properties(row)
    return not (row.get("managedBy") or properties.get("virtualMachine") or properties.get("ipConfiguration"))


def belongs_to(row: Row, name: str) -> bool:
    """Whether a resource is part of the lease of that name, by tag or by its own name."""
    said = said_by(row)
    return said is not None and said.key.name == name


def tree_of(lease: Lease, machines: Sequence[Row], *, num_slots: int) -> TopologyTree:
    """Return the lease's nodes under region, zone and placement group, in which InfiniBand joins them all."""
    groups = {str(row["name"]): _view(row).get("placementGroupId") or lease.key.name for row in machines}
    region, zone = lease.pool.region, lease.pool.zone or lease.pool.region
    return TopologyTree(
        levels=("region", "zone", "placement_group"),
        nodes=tuple(
            TopologyNode(
                id=node.id,
                path=(region, zone, str(groups.get(node.id, lease.key.name))),
                shape=lease.pool.shape,
                num_slots=num_slots,
                num_free_slots=num_slots,
            )
            for node in lease.nodes
            if not node.state.is_gone
        ),
    )


def _bare(said: LeaseTags) -> Lease:
    return Lease(
        id=lease_id(said.pool, said.key),
        key=said.key,
        pool=said.pool,
        num_nodes=said.num_nodes,
        state=LeaseState.PENDING,
        expires_at_s=said.expires_at_s,
        origin=said.origin,
    )


def _state(said: LeaseTags, rows: SetRows, stands: SetPhase, nodes: Sequence[LeasedNode]) -> tuple[LeaseState, str]:
    num_gone = sum(node.state.is_gone for node in nodes)
    if stands is SetPhase.ENDING:
        return LeaseState.BROKEN, "Azure is removing it"
    if stands is SetPhase.FAILED:
        return LeaseState.BROKEN, rows.failure or "Azure could not create all of it, and does not say why"
    if num_gone:
        return LeaseState.BROKEN, f"{num_gone} of {said.num_nodes} nodes are gone"
    num_running = sum(node.state is LeasedNodeState.RUNNING for node in nodes)
    if stands is SetPhase.COMING or num_running < said.num_nodes:
        return LeaseState.PENDING, f"{num_running} of {said.num_nodes} nodes run so far"
    return LeaseState.ACTIVE, ""


def _nodes(said: LeaseTags, rows: SetRows, *, count_missing: bool) -> tuple[LeasedNode, ...]:
    addresses = _addresses(rows.interfaces)
    capacity_type = said.pool.capacity_type
    seen = {
        str(row["name"]): LeasedNode(
            id=NodeId(str(row["name"])),
            state=states.node_state(
                str(_properties(row).get("provisioningState", "")),
                _statuses(row),
                capacity_type,
                name=str(row["name"]),
            ),
            address=addresses.get(str(row.get("instanceId", "")), ""),
            is_off=states.is_off(_statuses(row)),
        )
        for row in rows.machines
    }
    if count_missing:
        unseen = [name for number in range(said.num_nodes) if (name := f"{said.key.name}_{number}") not in seen]
        for name in unseen[: max(0, said.num_nodes - len(seen))]:
            seen[name] = LeasedNode(id=NodeId(name), state=states.gone(capacity_type), is_off=True)
    return tuple(seen[name] for name in sorted(seen, key=_number))


def _statuses(row: Row) -> list[str]:
    return [str(each.get("code", "")) for each in _view(row).get("statuses") or []]


def _number(name: str) -> tuple[int, str]:
    tail = name.rpartition("_")[2]
    return (int(tail) if tail.isdecimal() else 0, name)


def _addresses(interfaces: Sequence[Row]) -> dict[str, str]:
    """Return the first private address of each machine, by its number in the set."""
    found: dict[str, str] = {}
    for row in interfaces:
        properties = _properties(row)
        number = str((properties.get("virtualMachine") or {}).get("id", "")).rpartition("/")[2]
        for each in properties.get("ipConfigurations") or []:
            address = _properties(each).get("privateIPAddress")
            if address:
                found.setdefault(number, str(address))
    return found


def _created_at_s(row: Row) -> float:
    try:
        return datetime.fromisoformat(str(_properties(row).get("timeCreated", ""))).timestamp()
    except ValueError:
        return 0.0


def _properties(row: Row) -> Mapping[str, Any]:
    return row.get("properties") or {}


def _view(row: Row) -> Mapping[str, Any]:
    return _properties(row).get("instanceView") or {}
