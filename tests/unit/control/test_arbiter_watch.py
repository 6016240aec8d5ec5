from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.control.arbiter_state import Claim, GroundState, QueueLease
from airflow_llmsched.control.arbiter_watch import summons
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.queue import QueuedGang

ONE, TWO = RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), RunKey("ls-bbbbbbbbbbbbbbbbbbbb")


def claim_of(run: RunKey, *, since_s: float = 0.0, **others: object) -> Claim:
    gang = QueuedGang(key=run, team="red", priority_class="normal")
    return Claim(gang=gang, num_records=1, since_s=since_s, **others)  # type: ignore[arg-type]


def state_of(*claims: Claim, **others: object) -> GroundState:
    return GroundState(claims={each.gang.key: each for each in claims}, **others)  # type: ignore[arg-type]


def test_a_run_that_waits_is_called_once_it_holds_something() -> None:
    held = {NodeId("n0"): (0,)}
    assert summons(state_of(claim_of(ONE, held=held)), ONE, has_gang=False, now_s=5.0) == "it is its turn"
    assert summons(state_of(claim_of(ONE, held=held)), ONE, has_gang=True, now_s=5.0) == ""
    assert summons(state_of(claim_of(ONE)), ONE, has_gang=False, now_s=5.0) == ""


def test_a_gang_is_called_for_when_it_is_to_make_room() -> None:
    claim = claim_of(ONE, held={NodeId("n0"): (0,)}, yields_to=TWO)
    assert TWO in summons(state_of(claim), ONE, has_gang=True, now_s=5.0)


def test_of_those_that_wait_the_first_sees_to_a_change_that_nobody_has_decided_about() -> None:
    state = state_of(claim_of(ONE, since_s=2.0), claim_of(TWO, since_s=1.0), undecided=frozenset({ONE, TWO}))
    assert summons(state, TWO, has_gang=False, now_s=5.0) == "the queue has changed"
    assert summons(state, ONE, has_gang=False, now_s=5.0) == ""
    led = replace(state, lease=QueueLease(holder="x", until_s=9.0))
    assert summons(led, TWO, has_gang=False, now_s=5.0) == ""
    assert summons(led, TWO, has_gang=False, now_s=9.0) == "the queue has changed"
    assert summons(led, TWO, has_gang=False, now_s=9.0 - 3600.0) == "the queue has changed"


def test_of_those_that_wait_one_that_does_not_come_sees_to_nothing() -> None:
    gone = claim_of(TWO, since_s=1.0, seen_at_s=1.0)
    state = state_of(claim_of(ONE, since_s=2.0, seen_at_s=2_000.0), gone, undecided=frozenset({ONE, TWO}))
    state = replace(state, decided_at_s=2_000.0)
    assert summons(state, ONE, has_gang=False, now_s=1_000.0) == ""
    assert summons(state, ONE, has_gang=False, now_s=2_002.0) == "the queue has changed"


def test_a_run_that_claims_nothing_is_not_called_for() -> None:
    assert summons(state_of(claim_of(TWO), undecided=frozenset({ONE, TWO})), ONE, has_gang=False, now_s=5.0) == ""
    assert summons(GroundState(), ONE, has_gang=True, now_s=5.0) == ""
