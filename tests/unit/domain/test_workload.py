"""Workload values are frozen, and survive being stored."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched import codec
from airflow_llmsched.domain.workload import BatchPhase, BudgetSpec, WorkloadSpec, count_phase_steps, count_steps
from airflow_llmsched.specs import presets
from tests.support.specs import load_small, steady


def test_a_phase_knows_the_tokens_of_its_steps() -> None:
    assert BatchPhase(from_tokens=0, sequence_length_tokens=128, num_sequences=32).tokens_per_step == 4096


def test_a_shape_knows_the_widths_that_attention_multiplies() -> None:
    """Grouped keys and values are narrower than queries; latent attention's keys and values are of different widths."""
    grouped, latent = (presets.get(name).shape for name in ("llama-3.1-8b", "deepseek-v3"))
    assert (grouped.query_size, grouped.key_size, grouped.value_size, grouped.context_size) == (4096, 1024, 1024, 4096)
    assert (latent.query_size, latent.key_size) == (128 * 192, 128 * 192)
    assert (latent.value_size, latent.context_size) == (128 * 128, 128 * 128)


def test_a_workload_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_small().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "mixtral-8x7b", "placement": {"ep": {"required": "node"}}},
        {"model": "deepseek-v3"},
        {"model": {"preset": "llama-4-maverick", "freeze_encoder": True}},
        {"roles": [{"kind": "trainer"}, {"kind": "evaluator", "num_ranks": 1, "command": ["x"]}]},
        {"launcher": {"environment": {"A": "b"}}, "evaluation": {"max_loss": 3.0}},
    ],
)
def test_a_workload_survives_being_stored(changes: dict[str, object]) -> None:
    spec = load_small(changes)
    assert codec.from_json(WorkloadSpec, codec.to_json(spec)) == spec
    assert codec.from_plain(WorkloadSpec, codec.to_plain(spec)) == spec


def test_a_budget_in_steps_is_taken_as_it_is() -> None:
    assert load_small({"budget": {"steps": 7}}).num_steps == 7


@pytest.mark.parametrize(
    ("num_tokens", "steps"),
    # 10 steps of 100 tokens in the first phase, then steps of 200
    [(100, 1), (101, 2), (1000, 10), (1001, 11), (1200, 11), (1201, 12)],
)
def test_a_token_budget_buys_the_fewest_steps_that_reach_it(num_tokens: int, steps: int) -> None:
    batch = (phase(0, num_sequences=10), phase(1000, num_sequences=20))
    assert count_steps(batch, BudgetSpec(num_tokens=num_tokens)) == steps


@steady
@given(
    phases=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=4),
    num_tokens=st.integers(1, 2000),
)
def test_steps_are_counted_as_a_trainer_takes_them(phases: list[tuple[int, int]], num_tokens: int) -> None:
    starts = [10 * sum(length for length, _ in phases[:index]) for index in range(len(phases))]
    batch = [phase(start, num_sequences=size) for start, (_, size) in zip(starts, phases, strict=True)]
    seen = steps = 0
    while seen < num_tokens:
        seen += [each for each in batch if each.from_tokens <= seen][-1].tokens_per_step
        steps += 1
    assert count_steps(batch, BudgetSpec(num_tokens=num_tokens)) == steps


@pytest.mark.parametrize(
    ("budget", "steps"),
    # 10 steps of 100 tokens, then steps of 200
    [
        (BudgetSpec(num_tokens=1201), (10, 2)),
        (BudgetSpec(num_tokens=500), (5, 0)),
        (BudgetSpec(num_steps=7), (7, 0)),
        (BudgetSpec(num_steps=15), (10, 5)),
        (BudgetSpec(num_steps=0), (0, 0)),
    ],
)
def test_each_phase_has_its_share_of_the_steps(budget: BudgetSpec, steps: tuple[int, ...]) -> None:
    batch = (phase(0, num_sequences=10), phase(1000, num_sequences=20))
    assert count_phase_steps(batch, budget) == steps
    assert count_steps(batch, budget) == sum(steps)


def test_a_budget_in_steps_needs_no_phase_to_be_counted() -> None:
    assert count_steps((), BudgetSpec(num_steps=3)) == 3
    assert count_phase_steps((), BudgetSpec(num_steps=3)) == ()


def phase(from_tokens: int, *, num_sequences: int) -> BatchPhase:
    return BatchPhase(from_tokens=from_tokens, sequence_length_tokens=10, num_sequences=num_sequences)
