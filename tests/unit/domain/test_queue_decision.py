from __future__ import annotations

from airflow_llmsched.codec import from_json, to_json, to_plain
from airflow_llmsched.domain.queue import Reservation
from airflow_llmsched.domain.queue_decision import Move, Preempt, QueueDecision, Start, Waits
from tests.support.queues import decided, gang, racks, runs_on, waits


def test_a_decision_survives_its_record_and_each_part_says_what_it_is():
    decision = decided(
        racks(2),
        runs_on(gang("victim", 8, cls="low"), {"r0n0": 4, "r0n1": 4}),
        waits(gang("urgent", 8, cls="urgent", required_level="rack")),
        waits(gang("fits", 4)),
    )
    assert from_json(QueueDecision, to_json(decision)) == decision
    plain = to_plain(decision)
    kinds = {part["kind"] for name in ("starts", "preemptions", "reservations", "waits") for part in plain[name]}
    assert kinds == {"start", "preempt", "reservation", "waits"}


def test_no_two_records_are_of_one_kind():
    records = (Start, Preempt, Reservation, Move, Waits)
    kinds = {each.__dataclass_fields__["kind"].default for each in records}
    assert len(kinds) == len(records)
