"""What a claim that waits says of its turn, and what keeps one from being made at all. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from airflow_llmsched.control.arbiter_state import Claim, QueueLease
from airflow_llmsched.control.planning import retry_at_s
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.queue_decision import QueueDecision, WaitReason, Waits
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWish

LOOK_EVERY_S = 60.0
"""How often a run that waits comes back at first, though nobody calls it: nodes may have come back as well."""

START_S = 60.0
"""What a gang is taken to need from its launch to its first step."""

FAR_S = 10 * 365 * 86_400.0
"""A start that is further away is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Why a claim waits, and when to look again (Unix seconds; None: it is given up). ``start_s`` is an estimate."""

    reason: str
    again_at_s: float | None
    start_s: float | None = None
    is_promised: bool = False


def turn_of(claim: Claim, lease: QueueLease | None, wish: QueueWish | None, *, now_s: float) -> Turn:
    """Return what a waiting claim is to say, whose run has ``wish``. ``lease`` is whoever is about to decide."""
    wait = claim.wait
    limit_s = wish.max_wait_s if wish is not None and wish.max_wait_s is not None else math.inf
    reason = "waits in the queue" if wait is None else f"waits in the queue ({wait.reason}): {wait.detail}"
    again_at_s = retry_at_s(waiting_since_s=claim.since_s, now_s=now_s, wait_s=limit_s, poll_s=LOOK_EVERY_S)
    if again_at_s is None or (wait is not None and wait.reason is WaitReason.OVER_QUOTA):
        given_up = "" if again_at_s is not None else f"; waited {now_s - claim.since_s:.0f} s"
        return Turn(reason=f"{reason}{given_up}", again_at_s=None)
    if lease is not None:
        again_at_s = min(again_at_s, lease.until_s)  # whoever is to decide may be gone
    start_s = None if wait is None or wait.start_s is None or wait.start_s > now_s + FAR_S else wait.start_s
    is_promised = wait is not None and wait.is_promised
    return Turn(reason=reason, again_at_s=again_at_s, start_s=start_s, is_promised=is_promised)


def unknown_words(wish: QueueWish | None, rules: QueueRules) -> str:
    """Return what a spec says that the deployment's rules do not know; empty: nothing."""
    wish = wish or QueueWish()
    classes, teams = [each.name for each in rules.classes], [each.team for each in rules.quotas]
    if wish.priority not in classes:
        return f"queue.priority: there is no class {wish.priority!r}; the fleet file has {', '.join(classes)}"
    if teams and wish.team not in teams:
        known = ", ".join(teams)
        return f"queue.team: there is no team {wish.team!r}; the fleet file has {known}: name one, or have it added"
    return ""


def with_moves(decision: QueueDecision) -> tuple[Waits, ...]:
    """Return why gangs wait, and for which of them others might be moved when these have saved next: as a proposal."""
    told: dict[RunKey, list[str]] = {}
    for move in decision.moves:
        minutes = max(1, round((move.at_s - decision.at_s) / 60))
        nodes = ", ".join(sorted(move.num_slots))
        told.setdefault(move.beneficiary, []).append(f"{move.gang} moved to {nodes} (it saves in about {minutes} min)")
    return tuple(
        replace(each, detail=f"{each.detail}; it could start if {' and '.join(told[each.gang])}")
        if each.gang in told
        else each
        for each in decision.waits
    )


def ends_by_s(runs_for_s: float | None, *, now_s: float) -> float | None:
    """Return when a gang that starts now is expected to have ended, None: nobody knows."""
    return None if runs_for_s is None else now_s + runs_for_s
