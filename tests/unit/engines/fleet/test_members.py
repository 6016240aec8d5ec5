from __future__ import annotations

import pytest

from airflow_llmsched.domain.fleet import Cluster
from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.engines.fleet.book import Book, Entry
from airflow_llmsched.engines.fleet.members import Member, Members, SilentClusterError
from airflow_llmsched.errors import CapacityError, CouldNotLookError, TransientError
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.fleet_house import FleetHouse
from tests.support.memory_store import MemoryStore

KEY = AttemptKey(run=RunKey("ls-x"), generation=1, attempt=1)


class Witness:
    """Says when agents last reported, or that nobody can tell."""

    def __init__(self, last_s: float | None, *, is_readable: bool = True) -> None:
        self._last_s = last_s
        self._is_readable = is_readable

    def last_sign_s(self) -> float | None:
        if not self._is_readable:
            raise CouldNotLookError("no way to read it")
        return self._last_s

    def lease_until_s(self) -> float | None:
        return None


class House:
    """One cluster that falls silent after 60 s, and one gang on it."""

    def __init__(self, *, lease_s: float | None = 30.0) -> None:
        self.clock = VirtualClock()
        self.book = Book(MemoryStore())
        self.witness = Witness(None)
        cluster = Cluster(name="a", engine="sim", silent_after_s=60.0)
        self.member = Member(cluster=cluster, engine=FleetHouse().clusters["a"])
        self.members = Members([self.member], book=self.book, clock=self.clock, open_witness=lambda _root: self.witness)
        self.entry = Entry(key=KEY, cluster="a", at_s=0.0, nodes=(NodeId("n0"),), num_slots=1, lease_s=lease_s)

    def fail(self) -> SilentClusterError:
        """Ask in vain."""

        def call() -> None:
            raise TransientError("no route")

        with pytest.raises(SilentClusterError) as caught:
            self.members.ask(self.member, call)
        return caught.value

    def silent_for(self, duration_s: float) -> SilentClusterError:
        self.fail()
        self.clock.sleep(duration_s)
        return self.fail()


def test_a_cluster_that_does_not_answer_is_named_with_how_long_it_has_not() -> None:
    house = House()
    silence = house.silent_for(20.0)
    assert "cluster a does not answer: no route" in str(silence)
    assert silence.since_s == house.clock.now_s() - 20.0


def test_seeing_a_live_gang_ends_a_silence_and_an_answer_from_records_does_not() -> None:
    house = House()
    since_s = house.silent_for(20.0).since_s
    assert house.members.ask(house.member, lambda: 7) == 7
    assert house.fail().since_s == since_s
    house.members.heard(house.member)
    assert house.fail().since_s == house.clock.now_s()


def test_a_refusal_is_no_silence() -> None:
    house = House()

    def refuse() -> None:
        raise CapacityError("full")

    with pytest.raises(CapacityError):
        house.members.ask(house.member, refuse)


def test_nothing_is_believed_of_a_gang_before_its_cluster_has_been_silent_for_long() -> None:
    house = House()
    assert house.members.believed(house.entry, house.silent_for(59.0)) is None


def test_a_gang_is_lost_once_cluster_and_agents_have_been_silent_for_long() -> None:
    house = House()
    house.witness = Witness(house.clock.now_s() - 1.0)
    status = house.members.believed(house.entry, house.silent_for(60.0))
    assert status is not None
    assert status.phase is GangPhase.LOST
    assert status.unconfirmed_nodes == ("a/n0",)
    house.clock.sleep(1000.0)
    again = house.members.believed(house.entry, house.fail())
    assert again == status, "what was given up stays so for as long as nobody sees better"


def test_a_gang_whose_agents_report_runs_however_long_its_cluster_is_silent() -> None:
    house = House()
    silence = house.silent_for(100.0)
    house.witness = Witness(house.clock.now_s() - 59.0)
    status = house.members.believed(house.entry, silence)
    assert status is not None
    assert status.phase is GangPhase.RUNNING
    assert "agents report" in status.reason


def test_a_gang_whose_agents_nobody_can_hear_is_lost_by_its_clusters_silence_alone() -> None:
    house = House()
    house.witness = Witness(None, is_readable=False)
    status = house.members.believed(house.entry, house.silent_for(60.0))
    assert status is not None
    assert status.phase is GangPhase.LOST


def test_a_gang_without_a_lease_is_never_lost_with_its_cluster_because_nothing_would_end_it() -> None:
    house = House(lease_s=None)
    for _ in range(10):
        silence = house.silent_for(100.0)
    assert house.members.believed(house.entry, silence) is None


def test_an_end_that_somebody_saw_is_believed_at_once() -> None:
    house = House()
    end = GangStatus(phase=GangPhase.SUCCEEDED, observed_at_s=1.0)
    house.book.note_end(KEY, end)
    assert house.members.believed(house.entry, house.fail()) == end


def test_a_gang_of_a_cluster_that_was_taken_out_of_the_file_is_lost() -> None:
    house = House()
    status = house.members.believed(house.entry, None)
    assert status is not None
    assert status.phase is GangPhase.LOST
    assert "not in the fleet's file any more" in status.reason
