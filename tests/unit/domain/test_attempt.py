from __future__ import annotations

from airflow_llmsched import codec
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.gang import GangPhase
from tests.support.history import attempt, preempted


def test_an_attempt_survives_json_with_its_plan_its_end_and_its_fault():
    ended = attempt(2, ended=9.0, end_seen=10.0, phase=GangPhase.PREEMPTED, resumed_step=60, fault=preempted(8.0))
    assert codec.from_json(AttemptRecord, codec.to_json(ended)) == ended


def test_when_an_end_was_seen_and_when_it_was_are_two_times():
    ended = attempt(ended=9.0, end_seen=10.0, phase=GangPhase.FAILED)
    assert ended.end_seen_at_s - ended.status.ended_at_s == 1.0
