"""What a looker makes of a queue and folders that a test wrote: graces, lost submitters, and what it need not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.agent.shelf import Shelf
from airflow_llmsched.agent.spool import write_json
from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.engines.slurm.looking import Looker
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.records import JobRecord
from airflow_llmsched.engines.slurm.states import state_of
from airflow_llmsched.errors import CouldNotLookError

NAME = "ls-run-g1-a1"
SUBMIT = {"channel_root": "/c", "origin": None, "wanted": {"n1": 2}}


@dataclass
class Queue:
    """Slurm as far as a looker asks it."""

    listed: list[JobRecord] = field(default_factory=list)
    kept: list[JobRecord] = field(default_factory=list)
    num_calls: int = 0
    noted: list[JobRecord] = field(default_factory=list)
    silence: str = ""

    def jobs(self) -> list[JobRecord]:
        self.num_calls += 1
        return list(self.listed)

    def accounting(self, job_ids: Sequence[str]) -> list[JobRecord]:
        if self.silence:
            raise CouldNotLookError(self.silence)
        return [job for job in self.kept if job.job_id in job_ids]

    def completion(self, job_ids: Sequence[str]) -> list[JobRecord]:
        return [job for job in self.noted if job.job_id in job_ids]


def job(word: str, *, job_id: str = "17", name: str = NAME, **more: object) -> JobRecord:
    return JobRecord(job_id=job_id, name=name, state=state_of(word), **more)  # type: ignore[arg-type]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.claim(name=NAME, submit=SUBMIT, environment={})
    return shelf


def looker_of(queue: Queue, shelf: Shelf) -> Looker:
    options = SlurmOptions(root="/shared", python="/usr/bin/python3", slots_per_node=8, vanish_grace_s=30.0)
    return Looker(options=options, client=queue, shelf=shelf)  # type: ignore[arg-type]


def see(looker: Looker, *, now_s: float, name: str = NAME) -> GangStatus:
    return looker.status_of(looker.look([name])[name], now_s=now_s)


def take(shelf: Shelf, tmp_path: Path, *, job_id: str) -> None:
    write_json(tmp_path / "gangs" / NAME / "job.json", {"v": 1, "job_id": job_id, "restart": 0, "at_s": 1.0})


def test_attempt_without_a_job_is_being_submitted_until_its_submitter_must_be_dead(shelf: Shelf) -> None:
    """Field case C17: an empty answer just after the submit is no failure."""
    looker = looker_of(Queue(), shelf)
    assert see(looker, now_s=100.0).phase is GangPhase.PENDING
    assert see(looker, now_s=129.0).phase is GangPhase.PENDING
    status = see(looker, now_s=131.0)
    assert (status.phase, status.fault) == (GangPhase.LOST, FaultKind.GANG_LOST)
    assert shelf.give_up(name=NAME, reason=""), "no job will ever start what was called lost"


def test_job_that_appears_in_time_is_followed(shelf: Shelf) -> None:
    queue = Queue()
    looker = looker_of(queue, shelf)
    see(looker, now_s=100.0)
    queue.listed = [job("PENDING", reason="Resources")]
    status = see(looker, now_s=200.0)
    assert status.phase is GangPhase.PENDING
    assert "Resources" in status.reason
    assert status.queued_until_s == 200.0


def test_stopped_attempt_without_a_job_is_over_at_once(shelf: Shelf) -> None:
    shelf.stop(name=NAME, grace_s=1.0)
    assert see(looker_of(Queue(), shelf), now_s=100.0).phase is GangPhase.STOPPED


def test_refused_job_is_a_failed_start_in_slurms_words(shelf: Shelf) -> None:
    shelf.give_up(name=NAME, reason="Slurm refused the job: Invalid account")
    status = see(looker_of(Queue(), shelf), now_s=100.0)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)
    assert "Invalid account" in status.reason


def test_started_job_that_nobody_lists_is_lost_after_the_grace_and_never_a_success(
    shelf: Shelf, tmp_path: Path
) -> None:
    """Field case C18."""
    take(shelf, tmp_path, job_id="17")
    looker = looker_of(Queue(), shelf)
    assert see(looker, now_s=100.0).phase is GangPhase.PENDING
    status = see(looker, now_s=131.0)
    assert status.phase is GangPhase.LOST
    assert "none of Slurm's lists" in status.reason


def test_end_that_only_accounting_knows_counts(shelf: Shelf, tmp_path: Path) -> None:
    take(shelf, tmp_path, job_id="17")
    queue = Queue(kept=[job("TIMEOUT", ended_at_s=90.0)])
    assert see(looker_of(queue, shelf), now_s=100.0).phase is GangPhase.PREEMPTED


def test_end_that_only_a_silent_database_knows_is_awaited_however_long_it_takes(shelf: Shelf, tmp_path: Path) -> None:
    take(shelf, tmp_path, job_id="17")
    queue = Queue(silence="sacct: Problem talking to the database: Connection refused")
    looker = looker_of(queue, shelf)
    for now_s in (100.0, 1000.0):
        with pytest.raises(CouldNotLookError, match="talking to the database"):
            see(looker, now_s=now_s)
    queue.silence, queue.kept = "", [job("NODE_FAIL", ended_at_s=90.0)]
    assert see(looker, now_s=1001.0).fault is FaultKind.NODE_LOST


def test_end_that_the_completion_file_knows_needs_no_database(shelf: Shelf, tmp_path: Path) -> None:
    take(shelf, tmp_path, job_id="17")
    queue = Queue(silence="sacct: Connection refused", noted=[job("TIMEOUT")])
    assert see(looker_of(queue, shelf), now_s=100.0).phase is GangPhase.PREEMPTED


def test_job_that_took_the_attempts_place_counts_whatever_others_bear_its_name(shelf: Shelf, tmp_path: Path) -> None:
    take(shelf, tmp_path, job_id="18")
    queue = Queue(listed=[job("CANCELLED", job_id="17"), job("RUNNING", job_id="18")])
    assert see(looker_of(queue, shelf), now_s=100.0).phase is GangPhase.STARTING


def test_folder_that_was_deleted_leaves_its_job_in_sight(tmp_path: Path) -> None:
    queue = Queue(listed=[job("RUNNING")])
    looker = looker_of(queue, Shelf(tmp_path))
    status = see(looker, now_s=100.0)
    assert status.phase is GangPhase.RUNNING
    assert "deleted" in status.reason
    queue.listed = [job("COMPLETED")]
    assert see(looker, now_s=101.0).phase is GangPhase.LOST


def test_gangs_that_wait_in_the_queue_are_not_read_again_and_take_their_slots(shelf: Shelf, tmp_path: Path) -> None:
    queue = Queue(listed=[job("PENDING"), job("PENDING", name="somebody-elses")])
    looker = looker_of(queue, shelf)
    see(looker, now_s=100.0)
    assert looker.waiting() == {NAME: {"n1": 2}}
    (tmp_path / "gangs" / NAME / "submit.json").write_text("damaged")
    assert see(looker, now_s=101.0).phase is GangPhase.PENDING
    queue.listed = [job("RUNNING", nodes=("n1",))]
    assert looker.waiting() == {}


def test_end_that_stands_is_not_asked_about(shelf: Shelf) -> None:
    ended = GangStatus(phase=GangPhase.FAILED, observed_at_s=90.0, ended_at_s=80.0)
    shelf.end(name=NAME, status=codec.to_plain(ended))
    queue = Queue()
    looker = looker_of(queue, shelf)
    assert looker.look([NAME])[NAME].ended == ended
    looker.remember(NAME, ended)
    assert looker.look([NAME])[NAME].ended == ended
    assert queue.num_calls == 1
