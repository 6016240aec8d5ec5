"""What a lease's resources say of themselves, as Azure tags. Pure.

Azure allows 50 tags of 256 characters to a resource. Airflow's ids are free text of up to 250 characters, so they are
percent-encoded and, where they are long, cut into several tags. The others are words that a bill can be filtered by.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.workload import CapacityType

LEASE = "llmsched-lease"
RUN = "llmsched-run"
DEPLOYMENT = "llmsched-deployment"
DAG = "llmsched-dag"
DAG_RUN = "llmsched-dag-run"
EXPIRES = "llmsched-expires"
REGION = "llmsched-region"
ZONE = "llmsched-zone"
SHAPE = "llmsched-shape"
CAPACITY = "llmsched-capacity"
NODES = "llmsched-nodes"

NAME = "azure"
"""What pools of this cloud say in ``Pool.cloud``."""

MAX_VALUE_SIZE = 256
MAX_TAGS = 50

_KEY = re.compile(r"(ls-[a-z2-7]{20})-g(\d+)-r(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTags:
    """What the tags of one resource say. ``expires_at_s`` is 0.0 where they do not say it: it has long expired."""

    key: LeaseKey
    pool: Pool
    num_nodes: int
    expires_at_s: float
    origin: RunOrigin | None


def to_tags(lease: LeaseTags) -> dict[str, str]:
    """Return the tags that say ``lease``."""
    origin = lease.origin
    tags = {
        LEASE: lease.key.name,
        EXPIRES: expiry(lease.expires_at_s),
        REGION: lease.pool.region,
        ZONE: lease.pool.zone,
        SHAPE: lease.pool.shape,
        CAPACITY: lease.pool.capacity_type.value,
        NODES: str(lease.num_nodes),
    }
    if origin is not None:
        tags |= {
            **_cut(RUN, origin.run),
            **_cut(DEPLOYMENT, origin.deployment_id),
            **_cut(DAG, origin.dag_id),
            **_cut(DAG_RUN, origin.run_id),
        }
    return tags


def from_tags(tags: Mapping[str, str]) -> LeaseTags | None:
    """Return what ``tags`` say of a lease of ours, None when they are nobody's or not ours.

    Whoever edits tags by hand may spoil all but the key: what cannot be read counts as expired and of no run.
    """
    key = parse_key(tags.get(LEASE, ""))
    if key is None:
        return None
    capacity = tags.get(CAPACITY, "")
    known = capacity in {each.value for each in CapacityType}
    return LeaseTags(
        key=key,
        pool=Pool(
            cloud=NAME,
            region=tags.get(REGION, ""),
            zone=tags.get(ZONE, ""),
            shape=tags.get(SHAPE, ""),
            capacity_type=CapacityType(capacity) if known else CapacityType.ON_DEMAND,
        ),
        num_nodes=int(nodes) if (nodes := tags.get(NODES, "")).isdecimal() else 0,
        expires_at_s=_parse_expiry(tags.get(EXPIRES, "")),
        origin=_origin(tags),
    )


def expiry(until_s: float) -> str:
    """Return the value of the ``EXPIRES`` tag for Unix seconds, rounded up to a millisecond, for people to read."""
    return datetime.fromtimestamp(math.ceil(until_s * 1000) / 1000, UTC).isoformat(timespec="milliseconds")


def parse_key(name: str) -> LeaseKey | None:
    """Return the key whose name is ``name``, or with which a child's name begins; None: it is none of ours."""
    match = _KEY.match(name)
    if match is None or name[match.end() :][:1] not in ("", "_", "-", "."):
        return None
    return LeaseKey(run=RunKey(match[1]), generation=int(match[2]), rental=int(match[3]))


def _parse_expiry(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _origin(tags: Mapping[str, str]) -> RunOrigin | None:
    run, deployment = _join(RUN, tags), _join(DEPLOYMENT, tags)
    if not run or not deployment:
        return None
    return RunOrigin(deployment_id=deployment, run=RunKey(run), dag_id=_join(DAG, tags), run_id=_join(DAG_RUN, tags))


def _cut(name: str, text: str) -> dict[str, str]:
    """Return ``text`` under ``name``, ``name-2``, ``name-3``: as many tags as it takes, none for an empty one."""
    encoded = quote(text, safe=":+@=,")
    pieces = [encoded[start : start + MAX_VALUE_SIZE] for start in range(0, len(encoded), MAX_VALUE_SIZE)]
    return {name if index == 1 else f"{name}-{index}": piece for index, piece in enumerate(pieces, start=1)}


def _join(name: str, tags: Mapping[str, str]) -> str:
    pieces = [tags.get(name, "")]
    while (piece := tags.get(f"{name}-{len(pieces) + 1}")) is not None:
        pieces.append(piece)
    return unquote("".join(pieces))
