"""Request bodies, printable, as Google's discovery document has them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_llmsched.clouds.gcp import record
from airflow_llmsched.clouds.gcp.record import Record
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.units import DAY_S

MAX_QUEUED_RUN_S = 7 * DAY_S
"""How long Google lets a machine run that came by flex start."""
RESERVATION_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What every machine is made of. ``nics`` are network interfaces as the API has them, the first for the gang.

    ``max_run_s``: Google itself deletes a machine this long after its start, whoever has died meanwhile; None: never.
    """

    image: str
    disk_gib: int = 200
    disk_type: str = "pd-balanced"
    nics: tuple[Mapping[str, Any], ...] = ({"network": "global/networks/default"},)
    external_ip: bool = False
    service_account: str = ""
    scopes: tuple[str, ...] = ("https://www.googleapis.com/auth/cloud-platform",)
    startup_script: str = ""
    network_tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    max_run_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Capacity that is reserved for us: by name, and bound to its end if it has one."""

    name: str
    is_bound: bool


def bulk_insert(
    spec: Record, *, machine: Machine, policy: str | None = None, reservation: Reservation | None = None
) -> dict[str, Any]:
    """Return the request for all machines of a lease, by names of their own.

    A pattern would number on beside machines that are there already; a name can be taken once, however late a
    duplicate of the call arrives.
    """
    count = str(spec.num_nodes)
    return {
        "count": count,
        "minCount": count,
        "perInstanceProperties": {record.node_name(spec.place, index): {} for index in range(spec.num_nodes)},
        "instanceProperties": {
            **properties(spec, machine=machine),
            "scheduling": scheduling(spec.capacity_type, machine=machine, reservation=reservation),
            **({"resourcePolicies": [policy]} if policy else {}),
            **_affinity(reservation),
        },
    }


def properties(spec: Record, *, machine: Machine) -> dict[str, Any]:
    """Return what machines of a lease have in common, whatever way they come."""
    labels = record.labels(spec)
    metadata = {
        **machine.metadata,
        **({"startup-script": machine.startup_script} if machine.startup_script else {}),
        record.METADATA_KEY: record.encode(spec),
    }
    return {
        "machineType": spec.shape,
        "labels": labels,
        "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
        "disks": [_boot_disk(spec, machine=machine, labels=labels)],
        "networkInterfaces": [_nic(each, index=index, machine=machine) for index, each in enumerate(machine.nics)],
        **({"tags": {"items": list(machine.network_tags)}} if machine.network_tags else {}),
        **(
            {"serviceAccounts": [{"email": machine.service_account, "scopes": list(machine.scopes)}]}
            if machine.service_account
            else {}
        ),
    }


def scheduling(
    capacity_type: CapacityType, *, machine: Machine, reservation: Reservation | None = None
) -> dict[str, Any]:
    """Return how machines are scheduled.

    They are never restarted by Google: who restarts a gang is us. A spot machine that is taken stays, stopped, so that
    one can see that it was taken; only where a longest run is set does Google delete it, then as before.
    """
    model = {CapacityType.ON_DEMAND: "STANDARD", CapacityType.SPOT: "SPOT", CapacityType.RESERVED: "STANDARD"}
    is_bound = reservation is not None and reservation.is_bound
    is_short = machine.max_run_s is not None
    return {
        "provisioningModel": "RESERVATION_BOUND" if is_bound else model[capacity_type],
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        **({"maxRunDuration": duration(machine.max_run_s)} if machine.max_run_s is not None else {}),
        **({"instanceTerminationAction": "DELETE"} if is_short or is_bound else {}),
        **({"instanceTerminationAction": "STOP"} if capacity_type is CapacityType.SPOT and not is_short else {}),
    }


def placement_policy(spec: Record) -> dict[str, Any]:
    """Return the policy that keeps a lease's machines close together. It costs nothing, and goes with the lease."""
    return {
        "name": spec.place.name,
        "description": record.encode(spec),
        "groupPlacementPolicy": {"collocation": "COLLOCATED", "vmCount": spec.num_nodes},
    }


def set_labels(instance: Mapping[str, Any], *, expires_at_s: float) -> dict[str, Any]:
    """Return a machine's labels with a new expiry, good only as long as nobody else has changed them."""
    return {
        "labels": {**instance.get("labels", {}), record.EXPIRY_LABEL: record.expiry_label(expires_at_s)},
        "labelFingerprint": instance.get("labelFingerprint", ""),
    }


def template(spec: Record, *, machine: Machine) -> dict[str, Any]:
    """Return the template by which a group makes the machines that a queue has given it."""
    run_s = queued_run_s(machine)
    return {
        "name": spec.place.name,
        "description": record.encode(spec),
        "properties": {
            **properties(spec, machine=machine),
            "scheduling": {
                "provisioningModel": "FLEX_START",
                "automaticRestart": False,
                "onHostMaintenance": "TERMINATE",
                "instanceTerminationAction": "DELETE",
                "maxRunDuration": duration(run_s),
            },
            "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
        },
    }


def group(spec: Record, *, template_url: str) -> dict[str, Any]:
    """Return a group without machines, which neither repairs nor adds any of its own accord."""
    return {
        "name": spec.place.name,
        "description": record.encode(spec),
        "baseInstanceName": spec.place.name,
        "instanceTemplate": template_url,
        "targetSize": 0,
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        "allInstancesConfig": group_expiry(spec.expires_at_s)["allInstancesConfig"],
    }


def group_expiry(expires_at_s: float) -> dict[str, Any]:
    """Return the change of a group that moves the expiry of its lease: its machines inherit the label."""
    return {"allInstancesConfig": {"properties": {"labels": {record.EXPIRY_LABEL: record.expiry_label(expires_at_s)}}}}


def resize_request(spec: Record, *, machine: Machine) -> dict[str, Any]:
    """Return the request that waits until all machines can be had at once."""
    return {
        "name": spec.place.name,
        "description": record.encode(spec),
        "resizeBy": spec.num_nodes,
        "requestedRunDuration": duration(queued_run_s(machine)),
    }


def queued_run_s(machine: Machine) -> float:
    """Return how long machines from the queue run at most (seconds)."""
    return min(machine.max_run_s or MAX_QUEUED_RUN_S, MAX_QUEUED_RUN_S)


def duration(length_s: float) -> dict[str, str]:
    """Return a duration as the API has it, rounded up to whole seconds."""
    return {"seconds": str(math.ceil(length_s))}


def timestamp(time_s: float) -> str:
    """Return a time as the API has it (RFC 3339)."""
    return datetime.fromtimestamp(time_s, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def any_of(field_name: str, values: Sequence[str]) -> str:
    """Return a filter for the rows in which a field has one of the values."""
    return " OR ".join(f'({field_name} = "{value}")' for value in values)


def _boot_disk(spec: Record, *, machine: Machine, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the disk, which goes with its machine, and says whose it is in case that it does not."""
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": machine.image,
            "diskSizeGb": str(machine.disk_gib),
            "diskType": machine.disk_type,
            "labels": dict(labels),
            "description": record.encode(spec),
        },
    }


def _nic(nic: Mapping[str, Any], *, index: int, machine: Machine) -> dict[str, Any]:
    outside = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}] if machine.external_ip and index == 0 else []
    return {**nic, **({"accessConfigs": outside} if outside else {})}


def _affinity(reservation: Reservation | None) -> dict[str, Any]:
    if reservation is None:
        return {}
    return {
        "reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": RESERVATION_KEY,
            "values": [reservation.name],
        }
    }
