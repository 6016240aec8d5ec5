from __future__ import annotations

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.journal import Journal, JournalRaceError
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.control.session import Session
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import RUN


def opened(generation: int = 1) -> ev.Opened:
    return ev.Opened(at_s=1.0, generation=generation, asked_generation=generation)


def test_what_is_recorded_shows_at_once_and_is_durable_once_it_is_flushed() -> None:
    journal = Journal(MemoryStore(), RUN)
    session = Session(journal)
    session.record(opened(), ev.OthersStopped(at_s=2.0))
    assert session.state.phase is RunPhase.PLANNING
    assert (session.num_records, journal.num_records()) == (0, 0)
    session.flush()
    assert (session.num_records, journal.num_records()) == (1, 1)
    assert session.events() == (opened(), ev.OthersStopped(at_s=2.0))
    session.flush()
    assert journal.num_records() == 1


def test_of_two_sessions_the_second_to_flush_is_told() -> None:
    journal = Journal(MemoryStore(), RUN)
    one, two = Session(journal), Session(journal)
    one.record(opened())
    two.record(opened())
    one.flush()
    with pytest.raises(JournalRaceError):
        two.flush()
