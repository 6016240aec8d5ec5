"""Spans of groups as a plan says them, when only the group and its level matter."""

from __future__ import annotations

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.layout import RankGroup
from airflow_llmsched.domain.plan import GroupSpan


def span(group: RankGroup, *, level: str | None) -> GroupSpan:
    """Return the span of one kind of group that ``level`` holds whole."""
    return GroupSpan(
        group=group, num_ranks=2, num_nodes=2, level=level, fabric="network", bytes_per_s=1e9,
        transport=next(iter(Transport)), reduces=False,
    )  # fmt: skip
