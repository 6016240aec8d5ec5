"""Everything that the agents of an attempt have said so far."""

from __future__ import annotations

from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.ports import RunChannel


def read_all(channel: RunChannel) -> tuple[NodeReport, ...]:
    """Return every whole report in ``channel``. One read is bounded, so it reads until nothing new comes.

    Raises ``CouldNotLookError``.
    """
    found: list[NodeReport] = []
    cursor = ChannelCursor(positions={})
    while True:
        reports, further = channel.read(cursor)
        found.extend(reports)
        if further == cursor:
            return tuple(found)
        cursor = further
