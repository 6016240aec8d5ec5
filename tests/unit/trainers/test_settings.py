from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import SpecError
from airflow_llmsched.trainers.settings import LearningRateSchedule, TrainPhase, TrainSettings


def settings(**changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "ffn_hidden_size": 64,
        "sequence_length_tokens": 16,
        "num_sequences": 8,
        "num_steps": 100,
    }
    return TrainSettings(**(values | changes))


@given(
    seed=st.integers(0, 2**40),
    interval_s=st.none() | st.floats(0.1, 1e6),
    schedule=st.sampled_from(LearningRateSchedule),
    phases=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 64)), max_size=3),
)
def test_settings_survive_json(
    seed: int, interval_s: float | None, schedule: LearningRateSchedule, phases: list[tuple[int, int]]
) -> None:
    later = tuple(
        TrainPhase(from_tokens=(index + 1) * 1000, sequence_length_tokens=length, num_sequences=sequences)
        for index, (length, sequences) in enumerate(phases)
    )
    ours = settings(seed=seed, checkpoint_interval_s=interval_s, schedule=schedule, later_phases=later)

    assert TrainSettings.from_json(ours.to_json()) == ours


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0),
        ("num_layers", 2.5),
        ("num_steps", True),
        ("hidden_size", 36),
        ("num_kv_heads", 3),
        ("vocab_size", 255),
        ("learning_rate", float("nan")),
        ("learning_rate", 0),
        ("final_learning_rate_ratio", 1.5),
        ("checkpoint_interval_steps", 0),
        ("checkpoint_interval_s", -1.0),
        ("keep_last", 0),
        ("micro_batch_size", "8"),
        ("tied_embeddings", "yes"),
        ("seed", -1),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=field) as caught:
        settings(**{field: value})

    assert caught.value.path == field


def test_an_unknown_setting_is_refused_by_name() -> None:
    plain = json.loads(settings().to_json()) | {"hiden_size": 3}

    with pytest.raises(SpecError, match="hiden_size"):
        TrainSettings.from_json(json.dumps(plain))


def test_a_missing_setting_is_refused_by_name() -> None:
    plain = json.loads(settings().to_json())
    del plain["hidden_size"]

    with pytest.raises(SpecError, match="hidden_size"):
        TrainSettings.from_json(json.dumps(plain))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"later_phases": 3}', '{"schedule": "wavy"}'])
def test_text_that_is_no_settings_object_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        TrainSettings.from_json(text)


def test_phases_must_start_one_after_the_other() -> None:
    phase = TrainPhase(from_tokens=1000, sequence_length_tokens=8, num_sequences=4)

    with pytest.raises(SpecError, match=r"later_phases\[1\].from_tokens"):
        settings(later_phases=(phase, dataclasses.replace(phase, from_tokens=1000)))


def test_the_phase_of_a_step_follows_the_tokens_seen() -> None:
    later = TrainPhase(from_tokens=1000, sequence_length_tokens=32, num_sequences=4)
    ours = settings(later_phases=(later,))

    assert ours.phase_at(999).sequence_length_tokens == 16
    assert ours.phase_at(1000) == later
    assert ours.window_tokens == 32
    assert later.tokens_per_step == 128


def test_the_learning_rate_warms_up_and_falls_to_its_floor() -> None:
    ours = settings(learning_rate=1.0, warmup_steps=10, num_steps=110, final_learning_rate_ratio=0.1)

    assert ours.learning_rate_at(1) == pytest.approx(0.1)
    assert ours.learning_rate_at(10) == pytest.approx(1.0)
    assert ours.learning_rate_at(60) == pytest.approx(0.55)
    assert ours.learning_rate_at(110) == pytest.approx(0.1)


def test_a_constant_learning_rate_stays_at_its_peak_after_warmup() -> None:
    ours = settings(learning_rate=1.0, warmup_steps=0, schedule=LearningRateSchedule.CONSTANT)

    assert [ours.learning_rate_at(step) for step in (1, 50, 100)] == [1.0, 1.0, 1.0]
