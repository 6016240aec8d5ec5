"""The reaper against real processes: the orphan goes, and whoever is healthy, speaks, or is another's stays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.deployment import deployment_id
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.reaper import AirflowWord, Reap, ReaperLimits, Spare
from airflow_llmsched.control.reaping import Finding, Reaper
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.domain.identity import RunKey, RunOrigin
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.ports import Clock
from airflow_llmsched.telemetry.channel import DirectoryChannel
from airflow_llmsched.testing.engine_contract import HANGS, gang_of, running, submit
from airflow_llmsched.units import HOUR_S
from tests.support.local_engine import LocalHarness
from tests.support.orphans import hung_agents
from tests.support.sim_house import plan_of
from tests.support.waiting import wait_until

LIMITS = ReaperLimits(skew_s=0.0, silence_s=1.5, unleased_s=0.0)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "state"))


class LaterClock(SystemClock):
    """The machine's clock, an hour on: what outlasts an hour is over by then."""

    def now_s(self) -> float:
        return super().now_s() + HOUR_S


def reaper(
    harness: LocalHarness,
    store: LocalStore,
    word: AirflowWord = AirflowWord.UNKNOWN,
    *,
    clock: Clock = SystemClock(),  # noqa: B008  (it has no state)
) -> Reaper:
    return Reaper(
        store=store,
        deployment_id=deployment_id(store),
        engine=harness.reopened(),
        open_witness=DirectoryChannel,
        ask=lambda _dag_id, _run_id: word,
        clock=clock,
        limits=LIMITS,
    )


def launch(harness: LocalHarness, store: LocalStore, *, skip: int = 0, lease_s: float | None = None) -> GangHandle:
    """A gang of one run of this deployment, whose ranks would run for ever."""
    gang = gang_of(harness, [HANGS], skip=skip)
    origin = RunOrigin(deployment_id=deployment_id(store), run=gang.key.run, dag_id="gone", run_id="manual")
    handle = submit(harness, replace(gang, origin=origin, lease_s=lease_s))
    running(harness, handle)
    return handle


def wait_for_verdict(reaper: Reaper, handle: GangHandle, kind: type) -> Finding:
    def found() -> Finding | None:
        mine = [finding for finding in reaper.look() if handle in finding.handles]
        return mine[0] if mine and isinstance(mine[0].verdict, kind) else None

    finding = wait_until(found, limit_s=60)
    assert finding is not None
    return finding


def test_orphan_without_a_journal_is_reaped_and_its_healthy_neighbour_is_not(
    harness: LocalHarness, store: LocalStore
) -> None:
    orphan, healthy = launch(harness, store), launch(harness, store, skip=1)
    with hung_agents(harness.client, orphan):
        finding = wait_for_verdict(reaper(harness, store), orphan, Reap)
        reaped = reaper(harness, store).reap(finding)
    assert (reaped.stopped, reaped.trouble) == ((orphan.key.name,), "")
    assert harness.num_live_ranks(orphan) == 0
    assert harness.engine.poll([orphan])[orphan].phase.ended
    assert harness.engine.poll([healthy])[healthy].phase is GangPhase.RUNNING
    assert harness.num_live_ranks(healthy) == 1
    assert [each.handles for each in reaper(harness, store).look()] == [(healthy,)]


def test_gang_whose_agents_speak_is_spared_though_airflow_does_not_know_it(
    harness: LocalHarness, store: LocalStore
) -> None:
    handle = launch(harness, store)
    spoken_s = DirectoryChannel(harness.channel_root(handle.key)).last_sign_s()
    assert spoken_s is not None
    # It goes on speaking: longer than it takes to count as silent, measured by what it said.
    wait_until(
        lambda: (DirectoryChannel(harness.channel_root(handle.key)).last_sign_s() or 0.0) > spoken_s + LIMITS.silence_s,
        limit_s=60,
    )
    (finding,) = reaper(harness, store).look()
    assert isinstance(finding.verdict, Spare)
    assert finding.verdict.reason.startswith("its agents speak")
    assert harness.num_live_ranks(handle) == 1


def test_silence_of_a_deleted_channel_is_no_silence_of_its_agents(harness: LocalHarness, store: LocalStore) -> None:
    """The engine saw them alive: somebody deleted their letterbox."""
    handle = launch(harness, store)
    with hung_agents(harness.client, handle):
        up = Path(harness.channel_root(handle.key)) / "up"
        for path in up.iterdir():
            path.unlink()
        (gang,) = harness.engine.find_all()
        assert gang.agents_seen_at_s is not None
        assert abs(gang.agents_seen_at_s - time.time()) < 30.0
        assert DirectoryChannel(harness.channel_root(handle.key)).last_sign_s() is None


def test_lease_that_control_renewed_spares_even_hung_agents(harness: LocalHarness, store: LocalStore) -> None:
    handle = launch(harness, store, lease_s=600.0)
    DirectoryChannel(harness.channel_root(handle.key)).renew(until_s=time.time() + 600.0)
    with hung_agents(harness.client, handle):
        wait_until(
            lambda: "its lease holds" in wait_for_verdict(reaper(harness, store), handle, Spare).verdict.reason,
            limit_s=60,
        )
        later = reaper(harness, store, clock=LaterClock())
        assert later.reap(wait_for_verdict(later, handle, Reap)).stopped
    assert harness.num_live_ranks(handle) == 0


def test_orphan_with_a_journal_is_recorded_before_it_is_stopped(harness: LocalHarness, store: LocalStore) -> None:
    handle = launch(harness, store)
    journal = Journal(store, handle.key.run)
    at_s = time.time() - 100.0
    journal.append(
        [
            ev.Opened(at_s=at_s, generation=1, asked_generation=0),
            ev.OthersStopped(at_s=at_s),
            ev.PlanChosen(at_s=at_s, plan=plan_of(("n0", 1))),
            ev.CheckpointChosen(at_s=at_s, checkpoint=None),
            ev.LaunchIntended(at_s=at_s, key=handle.key, channel_root=harness.channel_root(handle.key)),
            ev.Launched(at_s=at_s, handle=handle),
        ],
        number=1,
    )
    with hung_agents(harness.client, handle):
        finding = wait_for_verdict(reaper(harness, store, AirflowWord.FINISHED), handle, Reap)
        for word in (AirflowWord.RUNNING, AirflowWord.COULD_NOT_ASK):
            assert "spared after all" in reaper(harness, store, word).reap(finding).trouble
        assert harness.num_live_ranks(handle) == 1
        assert reaper(harness, store, AirflowWord.FINISHED).reap(finding).stopped == (handle.key.name,)
    assert [event.kind for event in journal.read()][-3:] == ["cancel_requested", "run_cancelled", "released"]
    assert harness.num_live_ranks(handle) == 0


def test_gang_of_another_deployment_on_the_same_engine_is_left_alone(
    harness: LocalHarness, store: LocalStore, tmp_path: Path
) -> None:
    theirs = launch(harness, LocalStore(str(tmp_path / "their state")))
    with hung_agents(harness.client, theirs):
        wait_for_verdict(reaper(harness, LocalStore(str(tmp_path / "their state"))), theirs, Reap)
        (finding,) = reaper(harness, store).look()
        assert isinstance(finding.verdict, Spare)
        assert "belongs to deployment" in finding.verdict.reason
        assert reaper(harness, store).reap(finding).stopped == ()
    assert harness.num_live_ranks(theirs) == 1
    assert RunKey(finding.facts.run_key) == theirs.key.run
