"""The reaper on the simulated house: what it stops, in which order, and all that it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control import reaping
from airflow_llmsched.control.context import Watch
from airflow_llmsched.control.intents import evaluation_intents, side_intents
from airflow_llmsched.control.journal import Journal, list_runs
from airflow_llmsched.control.reaper import AirflowWord, Reap, Spare
from airflow_llmsched.control.reaping import Finding
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.domain.identity import AttemptKey, RunKey, RunOrigin
from airflow_llmsched.errors import CouldNotLookError, StoreError
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.reaping import DEPLOYMENT, ReapedHouse
from tests.support.sim_house import RUN

LONG = SimTraining(num_steps=10_000_000, work_s=400.0)  # steps of minutes, as days are simulated


@pytest.fixture
def house() -> ReapedHouse:
    return ReapedHouse(training=LONG)


def only(house: ReapedHouse) -> Finding:
    (finding,) = house.reaper().look()
    return finding


def why_spared(house: ReapedHouse) -> str:
    verdict = only(house).verdict
    assert isinstance(verdict, Spare), verdict
    return verdict.reason


def phase_of(house: ReapedHouse, handle: GangHandle) -> GangPhase:
    return house.engine.poll([handle])[handle].phase


def test_orphan_is_reaped_through_its_journal(house: ReapedHouse) -> None:
    handle = house.orphan()
    finding = only(house)
    assert isinstance(finding.verdict, Reap)
    reaped = house.reaper().reap(finding)
    assert (reaped.stopped, reaped.trouble) == ((handle.key.name,), "")
    assert phase_of(house, handle) is GangPhase.STOPPED
    assert house.kinds()[-3:] == ["cancel_requested", "run_cancelled", "released"]
    (request,) = [event for event in house.journal.read() if isinstance(event, ev.CancelRequested)]
    assert request.reason.startswith("reaped: expired ")
    (summary,) = list_runs(house.store)
    assert (summary.dag_id, summary.run_id, summary.phase, summary.released) == (
        "pretrain",
        "manual",
        "cancelled",
        True,
    )


def test_end_is_recorded_before_anything_is_stopped(house: ReapedHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = house.orphan()
    kinds_at_stop: list[str] = []
    stop = house.engine.stop

    def watched(handle: GangHandle, *, grace_s: float) -> None:
        kinds_at_stop.append(house.kinds()[-1])
        stop(handle, grace_s=grace_s)

    monkeypatch.setattr(house.engine, "stop", watched)
    house.reaper().reap(only(house))
    assert kinds_at_stop[0] == "cancel_requested"
    assert phase_of(house, handle).ended


def test_looking_stops_and_records_nothing(house: ReapedHouse) -> None:
    handle = house.orphan()
    before = dict(house.store.objects)  # type: ignore[attr-defined]
    house.reaper().look()
    assert house.store.objects == before  # type: ignore[attr-defined]
    assert not phase_of(house, handle).ended


def test_reaping_twice_is_reaping_once(house: ReapedHouse) -> None:
    house.orphan()
    finding = only(house)
    house.reaper().reap(finding)
    kinds = house.kinds()
    again = house.reaper().reap(finding)
    assert (again.stopped, again.trouble) == ((), "")
    assert house.kinds() == kinds
    assert house.reaper().look() == ()


def test_orphan_whose_journal_is_gone_is_reaped_by_what_it_says_itself(house: ReapedHouse) -> None:
    handle = house.orphan()
    house.forget()
    reaped = house.reaper().reap(only(house))
    assert reaped.stopped == (handle.key.name,)
    assert phase_of(house, handle) is GangPhase.STOPPED
    assert house.asked == [("pretrain", "manual")] * 2
    assert list(house.store.list("")) == []


def test_gang_without_origin_is_known_by_its_journal_and_summary() -> None:
    house = ReapedHouse(training=LONG, origin=False)
    house.orphan()
    assert isinstance(only(house).verdict, Reap)
    assert house.asked == [("pretrain", "manual")]
    house.forget()
    assert why_spared(house).startswith("says not whose it is")


def test_healthy_gang_is_spared_and_airflow_is_not_bothered(house: ReapedHouse) -> None:
    handle = house.launch()
    assert why_spared(house).startswith("not expired")
    assert house.asked == []
    assert not phase_of(house, handle).ended


def test_gang_whose_agents_speak_is_spared_though_airflow_does_not_know_it() -> None:
    house = ReapedHouse(training=LONG, lease_s=None)
    house.launch()
    house.forget()
    house.clock.sleep(2 * 86_400.0)
    assert why_spared(house).startswith("its agents speak")


@pytest.mark.parametrize("word", [AirflowWord.RUNNING, AirflowWord.COULD_NOT_ASK])
def test_airflow_may_object(house: ReapedHouse, word: AirflowWord) -> None:
    handle = house.orphan()
    house.word = word
    assert "Airflow" in why_spared(house)
    assert not phase_of(house, handle).ended


def test_another_deployments_gang_is_never_touched(house: ReapedHouse) -> None:
    handle = house.orphan()
    house.forget()
    (finding,) = house.reaper(deployment_id="deployment-b").look()
    assert finding.verdict == Spare(
        reason=f"belongs to deployment {DEPLOYMENT}: run its own reaper, with its state root"
    )
    house.reaper(deployment_id="deployment-b").reap(finding)
    assert not phase_of(house, handle).ended


def test_channel_that_cannot_be_read_spares(house: ReapedHouse) -> None:
    house.orphan()
    house.hub.blind(for_s=60.0)
    assert why_spared(house).startswith("its agents could not be heard")


def test_journal_that_cannot_be_read_spares(house: ReapedHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    house.orphan()

    def refuse(_prefix: str) -> object:
        raise StoreError("the share is gone")

    monkeypatch.setattr(house.store, "list", refuse)
    assert "the share is gone" in why_spared(house)


def test_damaged_journal_spares(house: ReapedHouse) -> None:
    house.orphan()
    house.store.put(f"runs/{RUN}/journal/00000001.json", b"x")
    assert "is not JSON" in why_spared(house)


def test_engine_that_cannot_be_asked_is_an_error_not_an_empty_list(house: ReapedHouse) -> None:
    house.orphan()
    finding = only(house)
    house.engine.blind(for_s=60.0)
    with pytest.raises(CouldNotLookError):
        house.reaper().look()
    assert "does not answer" in house.reaper().reap(finding).trouble


def test_run_that_is_cleared_between_look_and_reap_goes_on(house: ReapedHouse) -> None:
    handle = house.orphan()
    finding = only(house)
    outcome = house.driver(generation=1).start()
    assert isinstance(outcome, Watch)
    house.reaper().reap(finding)
    assert phase_of(house, handle).ended  # the new generation stopped the old gang itself
    assert house.driver().state().phase is RunPhase.WATCHING
    assert outcome.state.handle is not None
    assert not phase_of(house, outcome.state.handle).ended


def test_run_that_moves_on_while_it_is_reaped_goes_on(house: ReapedHouse) -> None:
    """The clear comes after the second look and before the record: the record then loses its race."""
    house.orphan()
    finding = only(house)
    reaper = house.reaper()
    release = reaper._release

    def release_after_a_clear(*arguments: object) -> tuple[str, ...]:
        house.driver(generation=1).start()
        return release(*arguments)  # type: ignore[arg-type]

    reaper._release = release_after_a_clear  # type: ignore[method-assign]
    reaped = reaper.reap(finding)
    assert reaped.stopped == ()
    assert reaped.trouble.startswith(f"spared after all: run {RUN} has moved on")
    assert house.driver().state().phase is RunPhase.WATCHING
    assert len(house.live()) == 1


def test_leftover_of_a_closed_run_is_reaped_and_recorded(house: ReapedHouse) -> None:
    handle = house.launch()
    house.driver().release()
    # A submitter that stood still comes back: its gang starts under the old attempt's name, beside a closed journal.
    late = AttemptKey(run=RUN, generation=1, attempt=2)
    spec = replace(house.engine._gangs[handle.key.name].spec, key=late, channel_root="mem/late")
    zombie = house.engine.submit(house.engine.render(spec), key=late)
    house.clock.sleep(3.0)
    house.engine.freeze_agents(zombie)
    house.clock.sleep(2 * 86_400.0)
    reaped = house.reaper().reap(only(house))
    assert reaped.stopped == (late.name,)
    assert phase_of(house, zombie).ended


def test_evaluation_gang_is_judged_with_the_run_it_serves(house: ReapedHouse) -> None:
    training = house.orphan()
    key = AttemptKey(run=RunKey("ls-evaluationevaluation"), generation=0, attempt=1)
    spec = replace(
        house.engine._gangs[training.key.name].spec,
        key=key,
        channel_root="mem/evaluation",
        origin=RunOrigin(deployment_id=DEPLOYMENT, run=RUN, dag_id="pretrain", run_id="manual"),
    )
    house.engine.stop(training, grace_s=0.0)
    evaluation = house.engine.submit(house.engine.render(spec), key=key)
    house.clock.sleep(3.0)
    assert not isinstance(only(house).verdict, Reap)
    house.engine.freeze_agents(evaluation)
    house.clock.sleep(2 * 86_400.0)
    finding = only(house)
    assert (finding.facts.run_key, finding.handles) == (RUN, (evaluation,))
    assert house.reaper().reap(finding).stopped == (key.name,)


def test_gang_that_does_not_end_is_reported(house: ReapedHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = house.orphan()
    house.forget()
    finding = only(house)
    monkeypatch.setattr(house.engine, "stop", lambda _handle, grace_s: None)
    reaped = house.reaper().reap(finding)
    assert reaped.stopped == ()
    assert f"still alive: {handle.key.name}" in reaped.trouble


def test_a_journal_that_is_damaged_while_its_run_is_reaped_is_a_trouble_of_that_run_alone(
    house: ReapedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = house.orphan()
    finding = only(house)
    abandon, key = side_intents, f"runs/{RUN}/journal/00000001.json"

    def damage(*arguments: Any) -> tuple[AttemptKey, ...]:
        house.store.put(key, b"x")
        return abandon(*arguments)

    monkeypatch.setattr(reaping, "side_intents", damage)
    reaped = house.reaper().reap(finding)
    assert (reaped.stopped, phase_of(house, handle)) == ((), GangPhase.RUNNING)
    assert reaped.trouble.startswith("not known to be gone: ")
    assert "is not JSON" in reaped.trouble


def test_reaper_that_died_half_way_is_finished_by_the_next(house: ReapedHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = house.orphan()
    finding = only(house)

    def die(_handle: GangHandle, *, grace_s: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(house.engine, "stop", die)
        with pytest.raises(KeyboardInterrupt):
            house.reaper().reap(finding)
    assert house.driver().state().phase is RunPhase.CANCELLING
    assert Journal(house.store, RUN).num_records() == house.journal.num_records()
    house.reaper().reap(only(house))
    assert phase_of(house, handle).ended
    assert house.kinds().count("cancel_requested") == 1
    assert house.kinds()[-1] == "released"


def test_reaping_gives_up_an_evaluation_that_a_frozen_worker_may_yet_submit(house: ReapedHouse) -> None:
    house.orphan()
    evaluation = AttemptKey(run=RunKey("ls-evaluationaaaaaaaaaa"), generation=0, attempt=1)
    evaluation_intents(house.store, RUN).note(evaluation, at_s=1.0)
    house.reaper().reap(only(house))
    (handle,) = house.engine.find(evaluation.run)
    assert phase_of(house, handle) is GangPhase.STOPPED
