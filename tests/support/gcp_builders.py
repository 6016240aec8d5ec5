"""Builders of what Google lists and of what we ask of it."""

from __future__ import annotations

from typing import Any

from airflow_llmsched.clouds.gcp import record, render
from airflow_llmsched.clouds.gcp.record import Place, Record, Way
from airflow_llmsched.clouds.gcp.render import Machine
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.testing.cloud_contract import lease_key, origin
from tests.support.gcp_cloud import IMAGE, SHAPE, ZONE, server_url
from tests.support.gcp_world import Json

AT_S = 1_750_000_000.0
STAMP = "2025-06-15T08:06:40-07:00"
"""``AT_S``, as Google writes it, in its own time zone."""


def place(way: Way = Way.MACHINES) -> Place:
    return Place(zone=ZONE, way=way, name=lease_key().name)


def spec(
    capacity_type: CapacityType = CapacityType.ON_DEMAND, *, num_nodes: int = 2, way: Way = Way.MACHINES
) -> Record:
    return Record(
        place=place(way),
        shape=SHAPE,
        capacity_type=capacity_type,
        num_nodes=num_nodes,
        expires_at_s=AT_S + 3600.0,
        origin=origin(),
    )


def machine(**changes: Any) -> Machine:
    return Machine(image=IMAGE, **changes)


def instance(index: int, of: Record, **changes: Any) -> Json:
    properties = render.properties(of, machine=machine())
    return {
        "name": record.node_name(of.place, index),
        "zone": server_url(f"zones/{of.place.zone}"),
        "status": "RUNNING",
        "creationTimestamp": STAMP,
        "labels": properties["labels"],
        "labelFingerprint": "abc=",
        "metadata": properties["metadata"],
        "networkInterfaces": [{"networkIP": f"10.0.0.{index}"}],
        **changes,
    }


def disk(index: int, of: Record, *, users: tuple[str, ...] = ()) -> Json:
    return {
        "name": record.node_name(of.place, index),
        "creationTimestamp": STAMP,
        "labels": record.labels(of),
        "description": record.encode(of),
        "users": list(users),
    }


def described(of: Record, **changes: Any) -> Json:
    """A policy, a template or a group of the lease."""
    return {"name": of.place.name, "creationTimestamp": STAMP, "description": record.encode(of), **changes}
