"""From what each host says of its part to the gang's status; what cannot be seen is never taken for gone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_llmsched.domain.gang import GangPhase, GangStatus, NodeStatus
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines import agent_states
from airflow_llmsched.engines.agent_states import GangFacts, NodeFacts
from airflow_llmsched.engines.hosts.words import Off, Part, Sight, Unseen

HIDDEN = "; its ranks may be alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What we know of an attempt ourselves. Times are ours (Unix seconds); ``abort`` is why we gave it up.

    ``is_gone_to``: some host may have been told to go. Until then no rank can start anywhere, seen or not.
    """

    nodes: tuple[NodeId, ...]
    submitted_at_s: float
    start_limit_s: float
    grace_s: float = 0.0
    stop_at_s: float | None = None
    abort: Mapping[str, Any] | None = None
    is_gone_to: bool = True


def status_of(asked: Asked, sights: Mapping[NodeId, Sight], *, now_s: float) -> GangStatus:
    """Return the gang's status.

    With a host unseen it is what the others say, if they have ended: then with ``unconfirmed_nodes``, but for those
    that are proven off. A gang that is live or may be has lost the host, and says so: what is left of it must be ended
    from outside.
    """
    unseen = {node: sight for node in asked.nodes if isinstance(sight := sights[node], Unseen | Off)}
    facts = _facts(asked, sights)
    if not unseen:
        return _told_of_loss(agent_states.status_of(facts, now_s=now_s), facts)
    if not facts.nodes:
        return _all_unseen(asked, unseen, now_s=now_s)
    status = agent_states.status_of(facts, now_s=now_s)
    nodes = {node.node: node for node in status.nodes}
    if not status.phase.ended:
        shown = tuple(nodes.get(node) or _hidden(node, unseen, status.phase) for node in asked.nodes)
        return replace(status, nodes=shown, fault=FaultKind.NODE_LOST, reason=_lost(unseen))
    # A node that is done has heard from all others that they are done.
    hidden = GangPhase.SUCCEEDED if status.phase is GangPhase.SUCCEEDED else GangPhase.LOST
    shown = tuple(nodes.get(node) or _hidden(node, unseen, hidden) for node in asked.nodes)
    if hidden is GangPhase.SUCCEEDED or not asked.is_gone_to:
        return replace(status, nodes=shown)
    reason = f"{status.reason}; {_lost(unseen)}".lstrip("; ")
    return _unconfirmed(replace(status, nodes=shown, reason=reason), unseen)


def _told_of_loss(status: GangStatus, facts: GangFacts) -> GangStatus:
    """Say of a live gang that a host has lost its part, as one that was rebooted has: the others will notice later."""
    if status.phase.ended or status.fault is not None or facts.stop_at_s is not None or facts.abort is not None:
        return status
    lost = [node for node in status.nodes if node.phase is GangPhase.LOST]
    if not lost or not facts.go:
        return status
    reason = "; ".join(f"lost node {node.node}: {node.reason}" for node in lost)
    return replace(status, fault=FaultKind.NODE_LOST, reason=reason)


def _facts(asked: Asked, sights: Mapping[NodeId, Sight]) -> GangFacts:
    parts = [sight for sight in sights.values() if isinstance(sight, Part)]
    aborts = [*([] if asked.abort is None else [asked.abort]), *(part.abort for part in parts if part.abort)]
    stops_s = [each for each in (asked.stop_at_s, *(part.stop_at_s for part in parts)) if each is not None]
    return GangFacts(
        nodes=tuple(_node(node, sights[node]) for node in asked.nodes if not isinstance(sights[node], Unseen | Off)),
        submitted_at_s=asked.submitted_at_s,
        start_limit_s=asked.start_limit_s,
        grace_s=asked.grace_s,
        go=any(part.go for part in parts),
        stop_at_s=min(stops_s, default=None),
        abort=min(aborts, key=lambda abort: float(abort["at_s"]), default=None),
    )


def _node(node: NodeId, sight: Sight) -> NodeFacts:
    return sight.node if isinstance(sight, Part) else NodeFacts(node=node)


def _all_unseen(asked: Asked, unseen: Mapping[NodeId, Unseen | Off], *, now_s: float) -> GangStatus:
    are_off = all(isinstance(sight, Off) for sight in unseen.values())
    is_ended = asked.stop_at_s is not None or asked.abort is not None or are_off
    phase = GangPhase.LOST if is_ended else GangPhase.RUNNING
    reason = _lost(unseen)
    status = GangStatus(
        phase=phase,
        observed_at_s=now_s,
        nodes=tuple(_hidden(node, unseen, phase) for node in asked.nodes),
        fault=FaultKind.NODE_LOST,
        reason=reason,
    )
    if not is_ended:
        return status
    status = replace(status, ended_at_s=_given_up_s(asked, unseen, now_s=now_s))
    return _unconfirmed(status, unseen) if asked.is_gone_to else status


def _given_up_s(asked: Asked, unseen: Mapping[NodeId, Unseen | Off], *, now_s: float) -> float:
    if asked.stop_at_s is not None:
        return asked.stop_at_s
    if asked.abort is not None:
        return float(asked.abort["at_s"])
    proven_s = [sight.at_s for sight in unseen.values() if isinstance(sight, Off) and sight.at_s is not None]
    return max(proven_s, default=now_s)


def _unconfirmed(status: GangStatus, unseen: Mapping[NodeId, Unseen | Off]) -> GangStatus:
    nodes = tuple(node for node, sight in unseen.items() if isinstance(sight, Unseen))
    return replace(status, reason=status.reason + HIDDEN, unconfirmed_nodes=nodes) if nodes else status


def _hidden(node: NodeId, unseen: Mapping[NodeId, Unseen | Off], phase: GangPhase) -> NodeStatus:
    return NodeStatus(node=node, phase=phase, reason=f"cannot be seen: {unseen[node].reason}")


def _lost(unseen: Mapping[NodeId, Unseen | Off]) -> str:
    return "; ".join(f"lost node {node}: {sight.reason}" for node, sight in unseen.items())
