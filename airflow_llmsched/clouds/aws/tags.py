"""What everything rented says of itself, as EC2 tags. Pure.

EC2 takes letters, digits, spaces and ``+-=._:/@`` in values of up to 256 characters. Airflow's ids may be longer and
hold more, so free text is escaped (``=C3=A4``, as in quoted-printable) and cut over several tags.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import InternalError

CLOUD = "aws"

LEASE = "llmsched:lease"
RUN = "llmsched:run"
DEPLOYMENT = "llmsched:deployment"
DAG_ID = "llmsched:dag-id"
RUN_ID = "llmsched:run-id"
EXPIRES = "llmsched:expires-s"
CREATED = "llmsched:created-s"
ZONE = "llmsched:zone"
SHAPE = "llmsched:shape"
CAPACITY = "llmsched:capacity"
NODES = "llmsched:nodes"
BLOCK_ENDS = "llmsched:block-ends-s"
"""When EC2 begins to take the instances of a capacity block (Unix seconds)."""
INTERRUPTION = "llmsched:interruption-s"
"""When the node will be taken, as EventBridge said (Unix seconds)."""
REBALANCE = "llmsched:rebalance-s"
"""When EventBridge said that the node may be taken (Unix seconds)."""

MAX_VALUE_CHARS = 256
_KEY = re.compile(r"(?P<run>.+)-g(?P<generation>\d+)-r(?P<rental>\d+)")
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-._:/@")
_ESCAPED = re.compile(r"=([0-9A-F]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTags:
    """What the tags of one resource say. Times are Unix seconds."""

    key: LeaseKey
    origin: RunOrigin
    pool: Pool
    num_nodes: int
    created_at_s: float
    expires_at_s: float


def write(tags: LeaseTags) -> dict[str, str]:
    """Return EC2 tags. The expiry is rounded up to a whole second, so that a shell can compare it."""
    return {
        LEASE: tags.key.name,
        RUN: str(tags.key.run),
        **_cut(DEPLOYMENT, tags.origin.deployment_id),
        **_cut(DAG_ID, tags.origin.dag_id),
        **_cut(RUN_ID, tags.origin.run_id),
        EXPIRES: expiry(tags.expires_at_s),
        CREATED: str(math.floor(tags.created_at_s)),
        ZONE: tags.pool.zone,
        SHAPE: tags.pool.shape,
        CAPACITY: tags.pool.capacity_type.value,
        NODES: str(tags.num_nodes),
    }


def expiry(until_s: float) -> str:
    """Return the value of the expiry's tag."""
    return str(math.ceil(until_s))


def read(tags: Mapping[str, str], *, region: str) -> LeaseTags | None:
    """Return what tags of ours say, None for those of somebody else's resource or without a lease's name.

    Tags that a hand has removed or spoilt cost what they said: no expiry reads as one that has passed, so that the
    resource can not be forgotten. A renewal writes it anew.
    """
    named = _KEY.fullmatch(tags.get(LEASE, ""))
    if named is None:
        return None
    key = LeaseKey(run=RunKey(named["run"]), generation=int(named["generation"]), rental=int(named["rental"]))
    return LeaseTags(
        key=key,
        origin=RunOrigin(
            deployment_id=_joined(DEPLOYMENT, tags),
            run=key.run,
            dag_id=_joined(DAG_ID, tags),
            run_id=_joined(RUN_ID, tags),
        ),
        pool=Pool(
            cloud=CLOUD,
            region=region,
            zone=tags.get(ZONE, ""),
            shape=tags.get(SHAPE, ""),
            capacity_type=_capacity_type(tags.get(CAPACITY)),
        ),
        num_nodes=int(number(tags, NODES)),
        created_at_s=number(tags, CREATED),
        expires_at_s=number(tags, EXPIRES),
    )


def number(tags: Mapping[str, str], name: str) -> float:
    """Return a number among tags, 0 where there is none."""
    text = tags.get(name, "")
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


def key_of(name: str) -> LeaseKey:
    """Return the key that is named so. Raises ``InternalError`` for another's name."""
    named = _KEY.fullmatch(name)
    if named is None:
        raise InternalError(f"{name!r} is not the name of a lease key")
    return LeaseKey(run=RunKey(named["run"]), generation=int(named["generation"]), rental=int(named["rental"]))


def pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as EC2 takes them."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def unpaired(rows: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return tags as EC2 gives them, by key."""
    return {row["Key"]: row["Value"] for row in rows}


def on_each(kinds: Sequence[str], tags: Mapping[str, str]) -> list[dict[str, object]]:
    """Return ``TagSpecifications`` that put the tags on each kind of resource."""
    return [{"ResourceType": kind, "Tags": pairs(tags)} for kind in kinds]


def _capacity_type(word: str | None) -> CapacityType:
    return CapacityType(word) if word in set(CapacityType) else CapacityType.ON_DEMAND


def _cut(name: str, text: str) -> dict[str, str]:
    value = "".join(chr(each) if each in _PLAIN else f"={each:02X}" for each in text.encode())
    parts = [value[start : start + MAX_VALUE_CHARS] for start in range(0, len(value), MAX_VALUE_CHARS)]
    return {name if index == 0 else f"{name}.{index}": part for index, part in enumerate(parts or [""])}


def _joined(name: str, tags: Mapping[str, str]) -> str:
    value, index = tags.get(name, ""), 1
    while f"{name}.{index}" in tags:
        value += tags[f"{name}.{index}"]
        index += 1
    data = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)
    return data.encode("latin-1", "replace").decode(errors="replace")
