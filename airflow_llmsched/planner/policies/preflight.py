"""Which nodes a round of checks speaks against. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.preflight import CheckOutcome, NodeChecks, PreflightRound

MIN_NODES_TO_COMPARE = 3
"""Of two nodes that differ nobody can say which one is the odd one."""


def judge(
    reported: Sequence[NodeChecks], *, asked: Collection[NodeId], min_share: float | None = None
) -> PreflightRound:
    """Return the round with the nodes that must not be used, each with why.

    A node is unfit if one of its checks is bad, if it left no word, or if it measured less than ``min_share`` of the
    median of its peers in anything (None: rates are not compared). ``asked`` are the nodes that had a rank.
    """
    unfit: dict[NodeId, str] = {}
    for each in reported:
        troubles = [
            f"{check.name}: {check.detail or 'bad'}" for check in each.checks if check.outcome is CheckOutcome.BAD
        ]
        troubles += _slow(each, reported, min_share)
        if troubles:
            unfit[each.node] = "; ".join(troubles)
    seen = {each.node for each in reported}
    unfit |= {node: "left no word of its checks" for node in sorted(asked) if node not in seen}
    return PreflightRound(nodes=tuple(reported), unfit=unfit)


def _slow(node: NodeChecks, reported: Sequence[NodeChecks], min_share: float | None) -> list[str]:
    if min_share is None:
        return []
    troubles = []
    for check in node.checks:
        values = [
            other.value
            for each in reported
            for other in each.checks
            if other.name == check.name and other.value is not None and other.outcome is not CheckOutcome.SKIPPED
        ]
        if check.value is None or len(values) < MIN_NODES_TO_COMPARE:
            continue
        middle = median(values)
        if check.value < min_share * middle:
            troubles.append(
                f"{check.name}: {check.value:.3g} {check.unit}, {check.value / middle:.0%} of the median of all nodes"
            )
    return troubles
