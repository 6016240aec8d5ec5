"""Whether claims to a cluster call for a run's supervisor before its time. Pure: whoever watches has read the state."""

from __future__ import annotations

from airflow_llmsched.control.arbiter_state import GroundState
from airflow_llmsched.domain.identity import RunKey


def summons(state: GroundState, run: RunKey, *, has_gang: bool, now_s: float) -> str:
    """Return why a worker is to look after the run now; empty: it has no reason to.

    ``has_gang``: the run's gang is watched, else the run waits. Of those that wait the first one sees to it that it is
    decided what has changed: whoever changed it may have died before that, also while he was about to decide it. The
    others come back by themselves.
    """
    claim = state.claims.get(run)
    if has_gang:
        return "" if claim is None or claim.yields_to is None else f"it is to make room for run {claim.yields_to}"
    if claim is None:
        return ""
    if not claim.waits:
        return "it is its turn"
    if run in state.undecided and not state.is_led(now_s) and run in _first_of_each(state, now_s):
        return "the queue has changed"
    return ""


def _first_of_each(state: GroundState, now_s: float) -> set[RunKey]:
    """Return of all claims that are undecided the one that has waited longest, for each part of a cluster's nodes."""
    absent = state.absent(now_s)
    first: dict[str, RunKey] = {}
    for claim in state.waiting:
        if claim.gang.key in state.undecided and claim.gang.key not in absent:
            first.setdefault(claim.scope, claim.gang.key)
    return set(first.values())
