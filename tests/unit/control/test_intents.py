from __future__ import annotations

import pytest

from airflow_llmsched.control.intents import evaluation_intents, preflight_intents, side_intents
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.errors import StoreError
from tests.support.memory_store import MemoryStore

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
EVALUATION = RunKey("ls-bbbbbbbbbbbbbbbbbbbb")
FIRST = AttemptKey(run=EVALUATION, generation=1, attempt=1)
SECOND = AttemptKey(run=EVALUATION, generation=12, attempt=2)


def test_what_is_noted_is_known_to_every_process() -> None:
    store = MemoryStore()
    evaluation_intents(store, RUN).note(FIRST, at_s=1.0)
    evaluation_intents(store, RUN).note(SECOND, at_s=2.0)
    assert set(evaluation_intents(store, RUN).noted()) == {FIRST, SECOND}


def test_noting_again_tells_when_it_was_noted_first() -> None:
    intents = evaluation_intents(MemoryStore(), RUN)
    assert intents.note(FIRST, at_s=5.0) == 5.0
    assert intents.note(FIRST, at_s=9.0) == 5.0
    assert intents.noted() == (FIRST,)


def test_notes_of_one_run_are_not_those_of_another() -> None:
    store = MemoryStore()
    evaluation_intents(store, RUN).note(FIRST, at_s=1.0)
    assert evaluation_intents(store, EVALUATION).noted() == ()


def test_damaged_note_still_says_what_was_about_to_be_launched_but_not_since_when() -> None:
    store = MemoryStore()
    evaluation_intents(store, RUN).note(FIRST, at_s=1.0)
    (name,) = store.objects
    store.objects[name] = b"{"
    assert evaluation_intents(store, RUN).noted() == (FIRST,)
    with pytest.raises(StoreError, match=FIRST.name):
        evaluation_intents(store, RUN).note(FIRST, at_s=2.0)


def test_what_is_no_note_is_never_taken_for_none() -> None:
    store = MemoryStore()
    store.put(f"runs/{RUN}/evaluation-launches/{FIRST.name}.json.copy", b"{}")
    with pytest.raises(StoreError, match=r"\.copy is no note of a launch"):
        evaluation_intents(store, RUN).noted()


def test_checks_of_nodes_and_evaluations_are_both_noted_beside_the_training() -> None:
    store = MemoryStore()
    evaluation_intents(store, RUN).note(FIRST, at_s=1.0)
    preflight_intents(store, RUN).note(SECOND, at_s=2.0)
    assert evaluation_intents(store, RUN).noted() == (FIRST,)
    assert set(side_intents(store, RUN)) == {FIRST, SECOND}
