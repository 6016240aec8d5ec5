"""Outcomes travel between workers and triggers."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.poller import WatchState
from tests.support.sim_house import SimHouse


@pytest.mark.parametrize(
    "outcome",
    [
        Watch(state=WatchState(handle=None, wake_at_s=3.0)),
        Succeeded(checkpoint=None, last_step=4, num_attempts=2),
        Failed(reason="enough", cancelled=True),
    ],
)
def test_outcome_survives_json(outcome: Outcome) -> None:
    assert codec.from_json(Outcome, codec.to_json(outcome, Outcome)) == outcome  # type: ignore[arg-type]


def test_context_cannot_be_changed_while_a_driver_uses_it() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SimHouse().context.generation = 2  # type: ignore[misc]
