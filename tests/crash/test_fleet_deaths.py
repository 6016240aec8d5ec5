"""Workers die at every note of a fleet, and stand still where it claims an attempt: there is one gang, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from airflow_llmsched.domain.gang import GangPhase, GangSpec
from airflow_llmsched.effect_points import Side
from airflow_llmsched.engines.fleet.engine import FleetEngine
from airflow_llmsched.errors import AbandonedError, LlmschedError
from airflow_llmsched.testing.engine_contract import RankScript, gang_of
from tests.support.crashing import Gun, Shot, WorkerDied, listening
from tests.support.fleet_house import FleetSimHarness

POINTS = ("fleet.claim", "fleet.submitted", "fleet.end", "fleet.silent", "fleet.heard", "fleet.remember")
SHOTS = [Shot(point, side, 1) for point in POINTS for side in Side]


def die() -> None:
    raise WorkerDied


@pytest.fixture
def harness() -> Iterator[FleetSimHarness]:
    return FleetSimHarness()


def work(harness: FleetSimHarness, engine: FleetEngine, gang: GangSpec) -> GangPhase:
    """Do all that a fleet notes anything about: look, submit, watch, find a cluster silent, hear it again."""
    engine.topology()
    handle = engine.submit(engine.render(gang), key=gang.key)
    harness.house.clusters["a"].blind(for_s=0.1)
    engine.topology()
    harness.house.clock.sleep(0.2)
    harness.advance_until(lambda: engine.poll([handle])[handle].phase.ended, 30.0)
    return engine.poll([handle])[handle].phase


@pytest.mark.parametrize("shot", SHOTS, ids=str)
def test_worker_dies_at_a_note_and_the_next_one_finds_one_gang(harness: FleetSimHarness, shot: Shot) -> None:
    gang = gang_of(harness, [RankScript(lasts_s=3.0)] * 2)
    harness.house.store.delete("fleet/clusters/a/topology.json")  # which the gang's own look for nodes had noted
    gun = Gun(shot, die)
    with listening(gun), pytest.raises(WorkerDied):
        work(harness, harness.reopened(), gang)
    assert gun.fired
    harness.house.clock.sleep(1.0)  # by then everything answers again
    assert work(harness, harness.reopened(), gang) is GangPhase.SUCCEEDED
    assert [handle.key for handle in harness.reopened().find(gang.key.run)] == [gang.key]
    clusters = harness.house.clusters.values()
    assert sum(len(each.find(gang.key.run)) for each in clusters) == 1


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("point", ["fleet.claim", "fleet.submitted"])
def test_submitter_stands_still_while_its_attempt_is_given_up_and_another_goes_elsewhere(
    harness: FleetSimHarness, point: str, side: Side
) -> None:
    nodes = {node.id: node for node in harness.engine.topology().nodes}
    gang = gang_of(harness, [RankScript(lasts_s=None)], on=nodes["a/n0"])
    later = gang_of(harness, [RankScript(lasts_s=None)], on=nodes["b/n0"], key=replace(gang.key, attempt=2))
    told: dict[str, object] = {}

    def meanwhile() -> None:
        other = harness.reopened()
        told["given up"] = other.abandon(gang.key)
        for handle in other.find(gang.key.run):
            other.stop(handle, grace_s=0.0)
        told["later"] = other.submit(other.render(later), key=later.key)

    outcome = _outcome(Gun(Shot(point, side, 1), meanwhile), harness.reopened, gang)
    assert told["given up"] is isinstance(outcome, AbandonedError)
    live = [each.handle for each in harness.reopened().find_all()]
    assert live == [told["later"]]
    assert [each.key for each in harness.reopened().find(gang.key.run)] == [gang.key, later.key]


def _outcome(gun: Gun, opened: Callable[[], FleetEngine], gang: GangSpec) -> object:
    engine = opened()
    request = engine.render(gang)
    with listening(gun):
        try:
            return engine.submit(request, key=gang.key)
        except LlmschedError as error:
            return error
