from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.domain.gang import GangPhase, GangStatus, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.engines.hosts.ledger import Ledger

KEY = AttemptKey(run=RunKey("ls-x"), generation=1, attempt=1)
NAME = KEY.name
BODY = {
    "nodes": [{"node": "h1", "slots": [0, 1]}, {"node": "h2", "slots": [1]}],
    "start_limit_s": 60.0,
    "grace_s": 5.0,
}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path)
    with ledger.exclusive():
        assert ledger.create(LaunchRequest(engine="hosts", key=KEY, body=BODY))
    return ledger


def test_attempt_on_record_has_no_node_on_this_machine(ledger: Ledger) -> None:
    assert ledger.nodes(NAME) == ("h1", "h2")
    assert not (ledger.gang(NAME).path / "nodes").exists()


def test_token_is_one_for_whoever_asks_and_nobody_elses_to_read(ledger: Ledger, tmp_path: Path) -> None:
    token = ledger.token(NAME)
    assert len(bytes.fromhex(token)) == 32
    assert Ledger(tmp_path).token(NAME) == token
    assert ledger.gang(NAME).token.stat().st_mode & 0o077 == 0


def test_slots_are_taken_until_the_hosts_themselves_say_so_or_the_start_took_too_long(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ledger.pending_slots() == {"h1": frozenset({0, 1}), "h2": frozenset({1})}
    submitted_at_s = ledger.asked(NAME).submitted_at_s
    monkeypatch.setattr("airflow_llmsched.engines.hosts.ledger.time.time", lambda: submitted_at_s + 61.0)
    assert ledger.pending_slots() == {}
    monkeypatch.undo()
    ledger.gone(NAME, {})
    assert ledger.pending_slots() == {}
    assert ledger.is_decided(NAME)
    assert not ledger.is_given_up(NAME)


def test_ranks_are_possible_from_the_moment_on_that_hosts_may_be_told_to_go(ledger: Ledger) -> None:
    assert not ledger.asked(NAME).is_gone_to
    ledger.going(NAME)
    assert ledger.asked(NAME).is_gone_to


def test_first_word_of_giving_up_stands(ledger: Ledger) -> None:
    ledger.give_up(NAME, node=NodeId("h2"), reason="first")
    ledger.give_up(NAME, node=NodeId("h1"), reason="second")
    asked = ledger.asked(NAME)
    assert asked.abort is not None
    assert (asked.abort["reason"], asked.abort["node"], asked.abort["fault"]) == ("first", "h2", "start_failed")
    assert ledger.is_given_up(NAME)


def test_stop_is_noted_once(ledger: Ledger) -> None:
    ledger.note_stop(NAME, grace_s=5.0)
    at_s = ledger.asked(NAME).stop_at_s
    ledger.note_stop(NAME, grace_s=0.0)
    assert ledger.asked(NAME).stop_at_s == at_s is not None


def test_end_is_remembered_as_it_was(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.end(NAME) is None
    status = GangStatus(phase=GangPhase.FAILED, observed_at_s=7.0, reason="why", ended_at_s=6.0)
    ledger.note_end(NAME, status)
    ledger.note_end(NAME, GangStatus(phase=GangPhase.LOST, observed_at_s=9.0))
    assert Ledger(tmp_path).end(NAME) == status
