from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control.lineage import attempt_steps, in_order
from airflow_llmsched.domain.checkpoint import SavedBy
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.identity import AttemptKey
from tests.support.history import RUN, attempt, mark, report, step, steps


def kept(attempts, reports):
    found = attempt_steps(attempts, reports)
    return {number: each.step_S[each.kept_S].tolist() for number, each in found.items()}


def test_a_preempted_attempt_keeps_what_its_successor_resumed_from():
    attempts = [
        attempt(1, ended=12, phase=GangPhase.PREEMPTED),
        attempt(2, launched=15, ended=25, phase=GangPhase.SUCCEEDED, resumed_step=4),
    ]
    reports = {1: [report(steps=steps(1, 6, start=2))], 2: [report(steps=steps(5, 8, start=16))]}
    assert kept(attempts, reports) == {1: [1, 2, 3, 4], 2: [5, 6, 7, 8]}


def test_falling_back_to_an_older_checkpoint_throws_away_steps_of_both_earlier_attempts():
    attempts = [
        attempt(1, ended=12, phase=GangPhase.FAILED),
        attempt(2, launched=15, ended=25, phase=GangPhase.FAILED, resumed_step=8),
        attempt(3, launched=30, ended=60, phase=GangPhase.SUCCEEDED, resumed_step=4),
    ]
    reports = {
        1: [report(steps=steps(1, 9, start=2))],
        2: [report(steps=steps(9, 12, start=16))],
        3: [report(steps=steps(5, 12, start=31))],
    }
    assert kept(attempts, reports) == {1: [1, 2, 3, 4], 2: [], 3: list(range(5, 13))}


def test_an_attempt_that_never_trained_does_not_cut_the_line():
    attempts = [
        attempt(1, ended=12, phase=GangPhase.FAILED),
        attempt(2, launched=15, ended=20, phase=GangPhase.FAILED, resumed_step=4),
        attempt(3, launched=30, ended=60, phase=GangPhase.SUCCEEDED, resumed_step=8),
    ]
    reports = {1: [report(steps=steps(1, 9, start=2))], 3: [report(steps=steps(9, 10, start=31))]}
    assert kept(attempts, reports) == {1: list(range(1, 9)), 2: [], 3: [9, 10]}


def test_the_folder_of_a_checkpoint_decides_who_wrote_it_before_any_record():
    """The writer was out of sight: nobody has its marks, nor its last steps."""
    last = attempt(3, launched=30, ended=60, phase=GangPhase.SUCCEEDED, resumed_step=6)
    writer = SavedBy(generation=last.key.generation, attempt=1)
    attempts = [
        attempt(1, ended=12, phase=GangPhase.LOST),
        attempt(2, launched=15, ended=20, phase=GangPhase.FAILED, resumed_step=2),
        replace(last, resumed_from=replace(last.resumed_from, saved_by=writer)),
    ]
    reports = {
        1: [report(steps=steps(1, 4, start=2))],
        2: [report(steps=steps(3, 7, start=16))],
        3: [report(steps=steps(7, 8, start=31))],
    }
    assert kept(attempts, reports) == {1: [1, 2, 3, 4], 2: [], 3: [7, 8]}


def test_the_mark_of_a_checkpoint_decides_who_wrote_it():
    attempts = [
        attempt(1, ended=12, phase=GangPhase.FAILED),
        attempt(2, launched=15, ended=20, phase=GangPhase.FAILED, resumed_step=2),
        attempt(3, launched=30, ended=60, phase=GangPhase.SUCCEEDED, resumed_step=6),
    ]
    reports = {
        1: [report(steps=steps(1, 7, start=2), marks=[mark(2, 4), mark(6, 8)])],
        2: [report(steps=steps(3, 6, start=16))],
        3: [report(steps=steps(7, 8, start=31))],
    }
    assert kept(attempts, reports) == {1: [1, 2, 3, 4, 5, 6], 2: [], 3: [7, 8]}


def test_records_lost_with_their_node_do_not_lose_the_steps_before_them():
    attempts = [
        attempt(1, ended=12, phase=GangPhase.LOST),
        attempt(2, launched=15, ended=25, phase=GangPhase.SUCCEEDED, resumed_step=5),
    ]
    reports = {1: [report(steps=steps(1, 4, start=2))], 2: [report(steps=steps(6, 8, start=16))]}
    assert kept(attempts, reports) == {1: [1, 2, 3, 4], 2: [6, 7, 8]}


def test_a_start_from_scratch_throws_everything_before_away():
    attempts = [
        attempt(1, ended=12, phase=GangPhase.FAILED),
        attempt(2, launched=15, ended=25, phase=GangPhase.SUCCEEDED),
    ]
    reports = {1: [report(steps=steps(1, 4, start=2))], 2: [report(steps=steps(1, 5, start=16))]}
    assert kept(attempts, reports) == {1: [], 2: [1, 2, 3, 4, 5]}


@pytest.mark.parametrize("phase", [GangPhase.FAILED, GangPhase.PREEMPTED, GangPhase.LOST, GangPhase.STOPPED])
def test_a_last_attempt_that_did_not_succeed_keeps_up_to_its_newest_checkpoint(phase):
    reports = {1: [report(steps=steps(1, 6, start=2), marks=[mark(2, 4), mark(4, 6)])]}
    assert kept([attempt(1, ended=12, phase=phase)], reports) == {1: [1, 2, 3, 4]}


def test_a_run_that_goes_on_keeps_its_steps_for_now():
    reports = {1: [report(steps=steps(1, 6, start=2))]}
    assert kept([attempt(1, phase=GangPhase.RUNNING)], reports) == {1: [1, 2, 3, 4, 5, 6]}
    assert kept([attempt(1)], reports) == {1: [1, 2, 3, 4, 5, 6]}


def test_a_record_read_twice_counts_once():
    twice = report(steps=steps(1, 3, start=2))
    found = attempt_steps([attempt(1)], {1: [twice, twice]})[1]
    assert found.step_S.tolist() == [1, 2, 3]


def test_of_a_step_trained_twice_in_one_attempt_the_last_counts():
    again = [report(steps=[*steps(1, 3, start=2), step(2, 6, 7), step(3, 7, 8)])]
    found = attempt_steps([attempt(1)], {1: again})[1]
    assert found.step_S.tolist() == [1, 2, 3, 2, 3]
    assert found.kept_S.tolist() == [True, False, False, True, True]


def test_no_attempts_have_no_steps():
    assert attempt_steps([], {}) == {}


def test_attempts_of_two_generations_are_refused():
    other = replace(attempt(2), key=AttemptKey(run=RUN, generation=2, attempt=2))
    with pytest.raises(ValueError, match="one generation"):
        in_order([attempt(1), other])


def test_two_records_of_one_attempt_are_refused():
    with pytest.raises(ValueError, match="same attempt number"):
        in_order([attempt(1), attempt(1, launched=4)])
