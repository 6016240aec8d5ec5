from __future__ import annotations

from airflow_llmsched import codec
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.preflight import Check, CheckOutcome, NodeChecks, PreflightRecord, PreflightRound

CHECK = Check(name="compute", outcome=CheckOutcome.OK, value=1e12, unit="FLOP/s")
SOUND = PreflightRound(nodes=(NodeChecks(node=NodeId("a"), checks=(CHECK,)),))
BROKEN = PreflightRound(nodes=(), unfit={NodeId("b"): "a GPU is gone"})


def test_a_record_has_passed_once_its_last_round_found_nothing() -> None:
    assert not PreflightRecord(generation=0).passed
    assert not PreflightRecord(generation=0, rounds=(SOUND, BROKEN)).passed
    assert PreflightRecord(generation=0, rounds=(BROKEN, SOUND)).passed


def test_a_node_once_unfit_stays_so() -> None:
    assert PreflightRecord(generation=0, rounds=(BROKEN, SOUND)).unfit == {"b": "a GPU is gone"}


def test_a_record_comes_back_from_storage_as_it_was() -> None:
    record = PreflightRecord(generation=3, rounds=(BROKEN, SOUND))
    assert codec.from_json(PreflightRecord, codec.to_json(record)) == record
