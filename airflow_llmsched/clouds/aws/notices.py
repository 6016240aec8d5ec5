"""What AWS announces about instances: EventBridge's events, spot requests, scheduled events, and our own tags. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_llmsched.clouds.aws import states, tags
from airflow_llmsched.domain.lease import NodeNotice, NoticeKind

SPOT_NOTICE_S = 120.0
"""From a spot interruption's announcement to the interruption (EC2 user guide, "interruption notices")."""

BLOCK_NOTICE_S = 600.0
"""How long before it takes a capacity block's instances EC2 says so on EventBridge; we go by the block's own end."""

_TAGS = ((NoticeKind.INTERRUPTION, tags.INTERRUPTION), (NoticeKind.REBALANCE, tags.REBALANCE))
_RANK = {NoticeKind.REBALANCE: 0, NoticeKind.MAINTENANCE: 1, NoticeKind.INTERRUPTION: 2}
_DONE = re.compile(r"\[(Completed|Canceled)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One event from the queue: what is announced about an instance, and when it was (Unix seconds)."""

    instance_id: str
    region: str
    kind: NoticeKind
    announced_at_s: float

    @property
    def tag(self) -> tuple[str, str]:
        """Name and value of the tag that keeps it: of an interruption, when it comes true."""
        if self.kind is NoticeKind.INTERRUPTION:
            return tags.INTERRUPTION, f"{self.announced_at_s + SPOT_NOTICE_S:.0f}"
        return tags.REBALANCE, f"{self.announced_at_s:.0f}"


def announcement(body: str) -> Announcement | None:
    """Return what a message of the queue announces, None for one that announces nothing of the kind or is broken."""
    try:
        event = json.loads(body)
        kind = states.DETAIL_TYPES.get(event["detail-type"])
        if kind is None:
            return None
        return Announcement(
            instance_id=str(event["detail"]["instance-id"]),
            region=str(event["region"]),
            kind=kind,
            announced_at_s=datetime.fromisoformat(event["time"]).timestamp(),
        )
    except (ValueError, KeyError, TypeError):
        return None


def tagged(written: Mapping[str, str]) -> list[NodeNotice]:
    """Return what an instance's tags announce."""
    return [
        NodeNotice(
            kind=kind,
            effective_at_s=tags.number(written, name) if kind is NoticeKind.INTERRUPTION else None,
        )
        for kind, name in _TAGS
        if name in written
    ]


def of_block(written: Mapping[str, str], *, now_s: float) -> NodeNotice | None:
    """Return what is due to be announced about an instance of a capacity block: that the block is about to end."""
    ends_at_s = tags.number(written, tags.BLOCK_ENDS)
    if not ends_at_s or now_s < ends_at_s - BLOCK_NOTICE_S:
        return None
    return NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=ends_at_s)


def of_request(row: Mapping[str, Any]) -> NodeNotice | None:
    """Return what the status of an instance's spot request announces."""
    status = row.get("Status", {})
    if status.get("Code") not in states.MARKED:
        return None
    updated = status.get("UpdateTime")
    return NodeNotice(
        kind=NoticeKind.INTERRUPTION,
        effective_at_s=updated.timestamp() + SPOT_NOTICE_S if updated is not None else None,
    )


def scheduled(row: Mapping[str, Any]) -> list[NodeNotice]:
    """Return the scheduled events of an ``InstanceStatuses`` row that are still to come.

    An event that is new to us is maintenance: it is announced, and ends nothing by itself.
    """
    return [
        NodeNotice(
            kind=states.EVENTS.get(event["Code"], NoticeKind.MAINTENANCE),
            effective_at_s=event["NotBefore"].timestamp() if "NotBefore" in event else None,
        )
        for event in row.get("Events", ())
        if not _DONE.match(event.get("Description", ""))
    ]


def weightiest(announced: Iterable[NodeNotice | None]) -> NodeNotice | None:
    """Return the one that matters most: what will be taken before what will stop, and the soonest of equals."""
    known = [each for each in announced if each is not None]
    return max(known, key=lambda each: (_RANK[each.kind], -(each.effective_at_s or float("inf"))), default=None)
