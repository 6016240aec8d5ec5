"""What all that we create at Google says of itself: names, labels, and one record where ids of any spelling fit. Pure.

Labels hold 63 of ``[a-z0-9_-]``, which is enough to find things and for the expiry, but not for a DAG id. So the whole
record is JSON, in a machine's metadata, and in the description of what has none.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.lease import LeaseId
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import SpecError

CLOUD = "gcp"
METADATA_KEY = "llmsched-lease"
LEASE_LABEL = "llmsched-lease"
RUN_LABEL = "llmsched-run"
EXPIRY_LABEL = "llmsched-expires"
"""Unix seconds. Renewals change it; of several it is the latest that counts."""

_NAME = re.compile(r"(?P<run>[a-z][a-z0-9-]*)-g(?P<generation>\d+)-r(?P<rental>\d+)")
_REQUEST_IDS = uuid.UUID("6f0f9e0a-5f0e-4c3e-9d55-0d1f6b1f9a61")


class Way(StrEnum):
    """How machines are asked for."""

    MACHINES = "vm"
    """At once, by bulk insert."""
    QUEUE = "flex"
    """When there are some, by a resize request of a managed instance group (flex start)."""
    TPU = "tpu"
    """When there are some, by a queued resource of Cloud TPU."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """Where a lease is and under which key: all that its id says, and all that is needed to look at it and end it."""

    zone: str
    way: Way
    name: str

    @property
    def id(self) -> LeaseId:
        """The lease's id."""
        return LeaseId(f"{self.zone}/{self.way}/{self.name}")

    @property
    def region(self) -> str:
        """The zone's region."""
        return region_of(self.zone)

    @property
    def key(self) -> LeaseKey:
        """The lease's key."""
        key = parse_name(self.name)
        assert key is not None, "a place is made of a key's name only"
        return key

    def request_id(self, effect: str) -> str:
        """Return the token by which Google knows a repeated call for what it is."""
        return str(uuid.uuid5(_REQUEST_IDS, f"{self.id}/{effect}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a lease is, as its parts say. ``expires_at_s`` is the first expiry; a label holds the one that counts."""

    place: Place
    shape: str
    capacity_type: CapacityType
    num_nodes: int
    expires_at_s: float
    origin: RunOrigin

    @property
    def pool(self) -> Pool:
        """The pool that the lease was taken from."""
        return Pool(
            cloud=CLOUD,
            region=self.place.region,
            zone=self.place.zone,
            shape=self.shape,
            capacity_type=self.capacity_type,
        )


def region_of(zone: str) -> str:
    """Return the region of a zone: ``us-central1`` of ``us-central1-a``."""
    return zone.rpartition("-")[0]


def parse_id(lease_id: LeaseId) -> Place:
    """Return what an id of ours says. Raises ``SpecError`` for any other."""
    parts = lease_id.split("/")
    if len(parts) != 3 or parts[1] not in set(Way) or parse_name(parts[2]) is None:
        raise SpecError(path="lease", value=lease_id, hint="is no id of a lease at Google: <zone>/<way>/<key>")
    return Place(zone=parts[0], way=Way(parts[1]), name=parts[2])


def parse_name(name: str) -> LeaseKey | None:
    """Return the key whose name this is, None if it is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return LeaseKey(run=RunKey(found["run"]), generation=int(found["generation"]), rental=int(found["rental"]))


def node_name(place: Place, index: int) -> NodeId:
    """Return the name of the lease's machine number ``index``, known before it is there."""
    return NodeId(f"{place.name}-n{index}")


def labels(record: Record, *, expires_at_s: float | None = None) -> dict[str, str]:
    """Return the labels of whatever can carry some."""
    key = record.place.key
    return {
        LEASE_LABEL: record.place.name,
        RUN_LABEL: str(key.run),
        "llmsched-generation": str(key.generation),
        "llmsched-capacity": record.capacity_type.value,
        "llmsched-nodes": str(record.num_nodes),
        EXPIRY_LABEL: expiry_label(record.expires_at_s if expires_at_s is None else expires_at_s),
    }


def expiry_label(expires_at_s: float) -> str:
    """Return an expiry as a label's value, never sooner than it."""
    return str(math.ceil(expires_at_s))


def expiry(labelled: Mapping[str, Any]) -> float | None:
    """Return the expiry that labels state, None if they state none."""
    text = str(labelled.get(EXPIRY_LABEL, ""))
    return float(text) if text.isdecimal() else None


def encode(record: Record) -> str:
    """Return the record as text."""
    document = {
        "v": 1,
        "lease": record.place.id,
        "shape": record.shape,
        "capacity": record.capacity_type.value,
        "nodes": record.num_nodes,
        "expires_at_s": record.expires_at_s,
        "deployment": record.origin.deployment_id,
        "run": record.origin.run,
        "dag": record.origin.dag_id,
        "dag_run": record.origin.run_id,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def decode(text: str) -> Record | None:
    """Return the record that a text holds; None for what is not ours."""
    try:
        document = json.loads(text)
        place = parse_id(LeaseId(str(document["lease"])))
        return Record(
            place=place,
            shape=document["shape"],
            capacity_type=CapacityType(document["capacity"]),
            num_nodes=int(document["nodes"]),
            expires_at_s=float(document["expires_at_s"]),
            origin=RunOrigin(
                deployment_id=document["deployment"],
                run=RunKey(document["run"]),
                dag_id=document["dag"],
                run_id=document["dag_run"],
            ),
        )
    except (ValueError, KeyError, TypeError, SpecError):
        return None


def of_instance(instance: Mapping[str, Any]) -> Record | None:
    """Return the record in a machine's metadata."""
    items = instance.get("metadata", {}).get("items", [])
    texts = [each.get("value", "") for each in items if each.get("key") == METADATA_KEY]
    return decode(texts[0]) if texts else None
