"""The bench about queues measures what it says, on less."""

from __future__ import annotations

import math

import pytest

from tests.bench import placement_queue


def test_rows_are_reached_on_two_small_mixes_and_say_what_simpler_rules_come_to() -> None:
    rows = placement_queue.measured_mixes(num_mixes=2, seed=0, scale=1)
    assert all(row.reached for row in rows)
    assert all(set(row.reference) == {"ours", "first come", "strict priority"} for row in rows)


def test_a_front_that_misses_a_decision_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert placement_queue.measured_fronts(2, 0).value == 0
    monkeypatch.setattr(placement_queue, "front", lambda found: [])
    assert placement_queue.measured_fronts(2, 0).value == 2


def test_a_look_is_measured_by_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_queue, "decide", lambda state, place: None)
    row = placement_queue.measured_look(seed=0)
    assert row.reached
    assert 0 <= row.value < math.inf
