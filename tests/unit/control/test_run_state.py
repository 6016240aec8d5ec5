from __future__ import annotations

from airflow_llmsched.control.run_state import RunPhase, RunState
from tests.support.sim_house import RUN


def test_a_run_begins_new_and_its_first_attempt_is_number_one() -> None:
    state = RunState(run=RUN)
    assert (state.phase, state.key.attempt, state.next_key.attempt) == (RunPhase.NEW, 0, 1)


def test_three_phases_are_ends() -> None:
    ends = {phase for phase in RunPhase if phase.terminal}
    assert ends == {RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.CANCELLED}
