"""Batch phases: what a phase leaves out carries over, tokens become sequences, order is checked."""

from __future__ import annotations

from airflow_llmsched.domain.workload import BatchPhase
from tests.support.specs import errors_of, load_small


def phases(batch: dict[str, object]) -> tuple[BatchPhase, ...]:
    return load_small({"batch": batch, "budget": {"tokens": "1T tokens"}}).batch


def phase(from_tokens: int, length: int, num: int) -> BatchPhase:
    return BatchPhase(from_tokens=from_tokens, sequence_length_tokens=length, num_sequences=num)


def test_without_a_schedule_there_is_one_phase() -> None:
    assert phases({"sequence_length": 128, "global_batch": "32 sequences"}) == (phase(0, 128, 32),)


def test_tokens_are_turned_into_whole_sequences() -> None:
    assert phases({"sequence_length": "8Ki tokens", "global_batch": "4Mi tokens"}) == (phase(0, 8192, 512),)


def test_what_a_phase_leaves_out_stays_as_before() -> None:
    schedule = [
        {"from": 0},
        {"from": "1M tokens", "global_batch": "8 sequences"},
        {"from": "2M tokens", "sequence_length": 256},
    ]
    batch = {"sequence_length": 128, "global_batch": "4 sequences", "schedule": schedule}
    assert phases(batch) == (phase(0, 128, 4), phase(10**6, 128, 8), phase(2 * 10**6, 256, 8))


def test_a_batch_in_tokens_keeps_its_tokens_when_sequences_grow() -> None:
    schedule = [{"from": 0, "sequence_length": 128}, {"from": "1M tokens", "sequence_length": 512}]
    assert phases({"global_batch": "4Ki tokens", "schedule": schedule}) == (phase(0, 128, 32), phase(10**6, 512, 8))


def test_the_first_phase_starts_at_zero() -> None:
    errors = errors_of({"batch.schedule": [{"from": "5 tokens"}]})
    assert "must be 0" in str(errors["batch.schedule[0].from"])


def test_phases_are_in_order() -> None:
    errors = errors_of(
        {"batch.schedule": [{"from": 0}, {"from": "5M tokens"}, {"from": "5M tokens"}, {"from": "1M tokens"}]}
    )
    assert set(errors) == {"batch.schedule[2].from", "batch.schedule[3].from"}
    assert "'5M tokens'" in str(errors["batch.schedule[2].from"])


def test_a_batch_that_is_no_whole_number_of_sequences_names_the_nearest_that_are() -> None:
    errors = errors_of({"batch.global_batch": "1000 tokens"})
    assert "7 sequences and 8 sequences" in str(errors["batch.global_batch"])
    assert str(errors_of({"batch.global_batch": "100 tokens"})["batch.global_batch"]).endswith("nearest: 1 sequence")


def test_length_and_batch_must_come_from_somewhere() -> None:
    assert set(errors_of({"batch": {}})) == {"batch.sequence_length", "batch.global_batch"}
    schedule = [{"from": 0, "global_batch": "4 sequences"}, {"from": "1M tokens", "sequence_length": 128}]
    assert set(errors_of({"batch": {"schedule": schedule}})) == {"batch.schedule[0].sequence_length"}
