"""Workload values are frozen, and survive being stored."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.workload import BatchPhase, WorkloadSpec
from tests.support.specs import load_small


def test_a_phase_knows_the_tokens_of_its_steps() -> None:
    assert BatchPhase(from_tokens=0, sequence_length_tokens=128, num_sequences=32).tokens_per_step == 4096


def test_a_workload_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_small().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "mixtral-8x7b", "placement": {"ep": {"required": "node"}}},
        {"roles": [{"kind": "trainer"}, {"kind": "evaluator", "num_ranks": 1, "command": ["x"]}]},
        {"launcher": {"environment": {"A": "b"}}, "evaluation": {"max_loss": 3.0}},
    ],
)
def test_a_workload_survives_being_stored(changes: dict[str, object]) -> None:
    spec = load_small(changes)
    assert codec.from_json(WorkloadSpec, codec.to_json(spec)) == spec
    assert codec.from_plain(WorkloadSpec, codec.to_plain(spec)) == spec
