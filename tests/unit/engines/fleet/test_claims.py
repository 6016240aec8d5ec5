"""What of a limited cluster is held from when until when, whoever dies or stands still in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.fleet import ClusterLimits
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.effect_points import Side
from airflow_llmsched.engines.fleet.allotments import Allotments
from airflow_llmsched.engines.fleet.claims import FORGOTTEN_S
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError
from airflow_llmsched.testing.engine_contract import HANGS, ended, gang_of, nodes_of, poll, running, submit
from tests.support.crashing import Gun, Shot, WorkerDied, listening
from tests.support.fleet_house import FleetHouse, FleetSimHarness


class Limited(FleetSimHarness):
    """A fleet each of whose clusters may have one run of ours."""

    def __init__(self) -> None:
        self.house = FleetHouse(start_delay_s=0.5, limits=ClusterLimits(max_runs=1))
        self.engine = self.house.fleet  # type: ignore[assignment]  # a fleet stands for the engine

    def held(self, cluster: str = "a") -> list[str]:
        found = Allotments(self.house.store, clock=self.house.clock).held(cluster)
        return [each.key.name for each in found]


@pytest.fixture
def harness() -> Limited:
    return Limited()


def node(harness: Limited, name: str) -> TopologyNode:
    return next(each for each in nodes_of(harness) if each.id == name)


def gang(harness: Limited, on: str = "a/n0") -> GangSpec:
    return gang_of(harness, [HANGS], on=node(harness, on))


def again(harness: Limited, spec: GangSpec) -> GangHandle:
    """Submit as another worker would."""
    engine = harness.reopened()
    return engine.submit(engine.render(spec), key=spec.key)


def die() -> None:
    raise WorkerDied


@pytest.mark.parametrize("side", list(Side))
def test_two_that_both_saw_room_do_not_both_get_it(harness: Limited, side: Side) -> None:
    first, second = gang(harness), gang(harness, "a/n1")
    with listening(Gun(Shot("numbered.append", side, 1), lambda: told.append(_outcome(harness, second)))):
        told: list[object] = []
        mine = _outcome(harness, first)
    outcomes = [mine, *told]
    assert sorted(isinstance(each, GangHandle) for each in outcomes) == [False, True]
    assert sorted(isinstance(each, CapacityError) for each in outcomes) == [False, True]
    assert len(harness.house.clusters["a"].find_all()) == 1


def _outcome(harness: Limited, spec: GangSpec) -> object:
    try:
        return again(harness, spec)
    except CapacityError as error:
        return error


def test_part_is_free_once_the_gang_has_ended(harness: Limited) -> None:
    first, second = gang(harness), gang(harness, "a/n1")
    handle = submit(harness, first)
    with pytest.raises(CapacityError, match="max_runs is 1"):
        submit(harness, second)
    harness.engine.stop(handle, grace_s=0.0)
    assert ended(harness, handle).phase is GangPhase.STOPPED
    assert harness.held() == []
    running(harness, submit(harness, second))
    assert harness.held() == [second.key.name]


def test_part_of_a_gang_whose_end_nobody_saw_is_freed_by_whoever_needs_it(harness: Limited) -> None:
    first, second = gang(harness), gang(harness, "a/n1")
    handle = submit(harness, first)
    harness.house.clusters["a"].stop(GangHandle(engine="sim", key=first.key, native_id=first.key.name), grace_s=0.0)
    assert harness.held() == [first.key.name]
    assert node(harness, "a/n1").unusable_reason is None
    again(harness, second)
    assert harness.held() == [second.key.name]
    assert poll(harness, handle).phase.ended


@pytest.mark.parametrize("point", ["numbered.append", "fleet.claim", "sim.submit", "fleet.submitted"])
@pytest.mark.parametrize("side", list(Side))
def test_worker_dies_on_the_way_and_its_run_goes_on_while_nobody_else_fits(
    harness: Limited, point: str, side: Side
) -> None:
    first, second = gang(harness), gang(harness, "a/n1")
    with listening(Gun(Shot(point, side, 1), die)), pytest.raises(WorkerDied):
        again(harness, first)
    if (point, side) == ("numbered.append", Side.BEFORE):
        assert harness.held() == []
    else:
        with pytest.raises(CapacityError):
            again(harness, second)
    running(harness, again(harness, first))
    with pytest.raises(CapacityError):
        again(harness, second)
    assert harness.held() == [first.key.name]


@pytest.mark.parametrize("point", ["numbered.append", "fleet.claim"])
def test_attempt_that_is_given_up_holds_nothing_and_its_late_submitter_gets_nothing(
    harness: Limited, point: str
) -> None:
    first, second = gang(harness), gang(harness, "a/n1")
    taken: list[GangHandle] = []

    def meanwhile() -> None:
        assert harness.reopened().abandon(first.key)
        taken.append(again(harness, second))

    with listening(Gun(Shot(point, Side.AFTER, 1), meanwhile)), pytest.raises(AbandonedError):
        again(harness, first)
    running(harness, taken[0])
    assert harness.held() == [second.key.name]
    assert len(harness.house.clusters["a"].find_all()) == 1


def test_attempt_that_nobody_submits_is_given_up_after_a_while(harness: Limited) -> None:
    first, second = gang(harness), gang(harness, "a/n1")
    with listening(Gun(Shot("fleet.claim", Side.AFTER, 1), die)), pytest.raises(WorkerDied):
        again(harness, first)
    harness.house.clock.sleep(FORGOTTEN_S - 60.0)
    with pytest.raises(CapacityError):
        again(harness, second)
    harness.house.clock.sleep(60.0)
    again(harness, second)
    with pytest.raises((AbandonedError, CapacityError)):
        again(harness, first)
    assert harness.held() == [second.key.name]


def test_attempt_that_its_cluster_refuses_holds_nothing_while_it_waits(harness: Limited) -> None:
    first = gang(harness)
    harness.house.clusters["a"].lose_node(first.placement.nodes[0].partition("/")[2])  # type: ignore[arg-type]
    with pytest.raises(CapacityError, match="cannot be used"):
        again(harness, first)
    assert harness.held() == []
    again(harness, gang(harness, "a/n1"))


def test_gang_from_before_there_was_a_limit_is_found_by_who_submits_it_again(harness: Limited) -> None:
    unlimited = {name: replace(each, limits=ClusterLimits()) for name, each in harness.house.terms.items()}
    limited, harness.house.terms = harness.house.terms, unlimited
    first, second = gang(harness), gang(harness, "a/n1")
    handles = [again(harness, each) for each in (first, second)]
    harness.house.terms = limited
    assert [again(harness, each) for each in (first, second)] == handles
    with pytest.raises(CapacityError):
        again(harness, gang_of(harness, [HANGS], on=replace(node(harness, "a/n0"), num_free_slots=1)))


def test_silent_cluster_refuses_nobody_who_is_there_already(harness: Limited) -> None:
    first = gang(harness)
    again(harness, first)
    harness.house.clusters["a"].blind(for_s=10_000.0)
    with pytest.raises(CouldNotLookError):
        again(harness, first)
    other = replace(first, key=replace(first.key, run=RunKey("ls-bbbbbbbbbbbbbbbbbbbb")))
    with pytest.raises(CouldNotLookError):
        again(harness, other)
