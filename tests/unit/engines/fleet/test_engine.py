"""What a fleet promises beyond the engine contract: silent clusters, limits, and gangs on one cluster only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Succeeded
from airflow_llmsched.domain.fleet import ClusterLimits, cluster_of
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.engines.fleet.book import Book, Entry
from airflow_llmsched.engines.fleet.engine import FleetEngine
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, SpecError
from airflow_llmsched.ports import EngineFeature
from airflow_llmsched.testing.engine_contract import (
    HANGS,
    SUCCEEDS,
    ended,
    gang_of,
    nodes_of,
    only,
    poll,
    running,
    submit,
)
from tests.support.fleet_house import SILENT_AFTER_S, FleetHouse, FleetSimHarness

LONG_S = 10_000.0


@pytest.fixture
def harness() -> FleetSimHarness:
    return FleetSimHarness()


def test_cluster_is_told_to_keep_off_its_own_nodes_alone(
    harness: FleetSimHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = gang_of(harness, [HANGS])
    (own,) = {cluster_of(each) for each in gang.placement.nodes}
    engine = next(member.engine for member in harness.engine._all if member.name == own)
    render, asked = engine.render, []
    monkeypatch.setattr(engine, "render", lambda told: (asked.append(told), render(told))[1])
    other = "b" if own == "a" else "a"
    harness.engine.render(replace(gang, excluded=(NodeId(f"{other}/n0"), NodeId(f"{own}/n9"))))
    assert [told.excluded for told in asked] == [("n9",)]


def node(harness: FleetSimHarness, name: str) -> TopologyNode:
    return next(each for each in nodes_of(harness) if each.id == name)


def silence(harness: FleetSimHarness, name: str) -> None:
    """Have a cluster fall silent with its agents, for as long as it takes to be given up."""
    harness.house.lose(name, for_s=LONG_S)
    for _ in range(4):
        harness.engine.topology()
        harness.house.clock.sleep(SILENT_AFTER_S / 3)


def test_topology_has_both_clusters_nodes_under_their_names(harness: FleetSimHarness) -> None:
    tree = harness.engine.topology()
    assert tree.levels == ("cluster", "rack")
    assert [(each.id, each.path) for each in tree.nodes] == [
        ("a/n0", ("a", "rack")),
        ("a/n1", ("a", "rack")),
        ("b/n0", ("b", "rack")),
        ("b/n1", ("b", "rack")),
    ]


def test_a_fleet_can_do_what_all_of_its_clusters_can(harness: FleetSimHarness) -> None:
    assert harness.engine.features == {EngineFeature.PREEMPT_NODE, EngineFeature.FREE_CAPACITY}
    harness.house.clusters["b"].features = frozenset({EngineFeature.FREE_CAPACITY})  # type: ignore[misc]  # of this one
    assert harness.reopened().features == {EngineFeature.FREE_CAPACITY}


def test_a_fleet_without_clusters_is_refused(harness: FleetSimHarness) -> None:
    with pytest.raises(SpecError, match="must name a cluster"):
        FleetEngine([], store=harness.house.store, clock=harness.house.clock, open_witness=harness.house.hub.open)


def test_a_gang_runs_on_one_cluster(harness: FleetSimHarness) -> None:
    both = gang_of(harness, [HANGS] * 8)
    with pytest.raises(SpecError, match="one of the fleet's clusters: a, b"):
        harness.engine.render(both)
    nowhere = replace(both.placement.slots[0], node=NodeId("n0"))
    with pytest.raises(SpecError, match="one of the fleet's clusters"):
        harness.engine.render(replace(both, placement=Placement(slots=(nowhere,))))


def test_gangs_of_one_run_are_found_on_whatever_cluster_they_were(harness: FleetSimHarness) -> None:
    first = submit(harness, gang_of(harness, [SUCCEEDS], on=node(harness, "a/n0")))
    ended(harness, first)
    second = submit(harness, gang_of(harness, [HANGS], on=node(harness, "b/n1"), key=replace(first.key, attempt=2)))
    assert list(harness.reopened().find(first.key.run)) == [first, second]
    assert {handle: status.phase.ended for handle, status in harness.engine.poll([first, second]).items()} == {
        first: True,
        second: False,
    }


def test_an_attempt_is_one_clusters_however_it_is_placed_the_second_time(harness: FleetSimHarness) -> None:
    gang = gang_of(harness, [HANGS], on=node(harness, "a/n0"))
    handle = submit(harness, gang)
    elsewhere = gang_of(harness, [HANGS], on=node(harness, "b/n0"), key=gang.key)
    assert submit(harness, elsewhere) == handle
    assert harness.house.clusters["b"].find(gang.key.run) == []


def test_a_cluster_that_is_asked_for_alone_has_no_other_nodes_and_still_knows_the_runs_other_gangs(
    harness: FleetSimHarness,
) -> None:
    handle = submit(harness, gang_of(harness, [HANGS], on=node(harness, "a/n0")))
    alone = harness.house.reopened(only="b")
    assert {cluster_of(each.id) for each in alone.topology().nodes} == {"b"}
    assert list(alone.find_all()) == []
    assert list(alone.find(handle.key.run)) == [handle]
    with pytest.raises(SpecError, match="clusters: b"):
        alone.render(gang_of(harness, [HANGS], on=node(harness, "a/n1")))


def test_a_silent_cluster_is_left_out_of_plans_with_its_nodes_as_they_were(harness: FleetSimHarness) -> None:
    harness.engine.topology()
    harness.house.clusters["a"].blind(for_s=LONG_S)
    tree = harness.reopened().topology()
    assert [each.usable_slots for each in tree.nodes] == [0, 0, 2, 2]
    assert str(tree.nodes[0].unusable_reason).startswith("cluster a: ")
    assert [each.num_slots for each in tree.nodes] == [2, 2, 2, 2]


def test_a_cluster_that_can_prove_nodes_off_does_so_for_the_fleet(harness: FleetSimHarness) -> None:
    gang = gang_of(harness, [HANGS], on=node(harness, "a/n0"))
    handle = submit(harness, gang)
    assert harness.engine.fence(handle) == frozenset(), "it cannot"
    proven: list[GangHandle] = []

    def fence(inner: GangHandle) -> frozenset[NodeId]:
        proven.append(inner)
        return frozenset({NodeId("n0")})

    harness.house.clusters["a"].fence = fence  # type: ignore[attr-defined]  # of this one
    assert harness.engine.fence(handle) == {"a/n0"}
    assert [each.key for each in proven] == [gang.key]
    assert harness.engine.fence(replace(handle, native_id="c/x")) == frozenset(), "there is no such cluster"

    def blind(inner: GangHandle) -> frozenset[NodeId]:
        raise CouldNotLookError(f"{inner.native_id}: no host answers")

    harness.house.clusters["a"].fence = blind  # type: ignore[attr-defined]
    assert harness.engine.fence(handle) == frozenset()


def test_a_fleet_of_which_no_cluster_answers_could_not_be_looked_at(harness: FleetSimHarness) -> None:
    for each in harness.house.clusters.values():
        each.blind(for_s=LONG_S)
    with pytest.raises(CouldNotLookError, match=r"cluster a: .*cluster b: "):
        harness.engine.topology()


def test_gangs_of_a_silent_cluster_are_left_out_while_the_others_are_seen(harness: FleetSimHarness) -> None:
    mine = submit(harness, gang_of(harness, [HANGS], on=node(harness, "a/n0")))
    other = submit(harness, gang_of(harness, [HANGS], on=node(harness, "b/n0")))
    running(harness, other)
    harness.house.lose("a", for_s=LONG_S)
    harness.house.clock.sleep(SILENT_AFTER_S)
    assert set(harness.engine.poll([mine, other])) == {other}
    with pytest.raises(CouldNotLookError, match="cluster a does not answer"):
        harness.engine.poll([mine])


def test_nothing_of_a_run_is_taken_for_absent_while_a_cluster_that_had_a_gang_of_it_is_silent(
    harness: FleetSimHarness,
) -> None:
    handle = submit(harness, gang_of(harness, [HANGS], on=node(harness, "a/n0"), key=None))
    harness.house.lose("a", for_s=LONG_S)
    harness.house.clock.sleep(SILENT_AFTER_S)
    for look in (
        lambda: harness.engine.find(handle.key.run),
        lambda: harness.engine.abandon(handle.key),
        lambda: harness.engine.stop(handle, grace_s=0.0),
        harness.engine.find_all,
    ):
        with pytest.raises(CouldNotLookError, match="cluster a"):
            look()


def test_a_run_that_never_was_on_a_silent_cluster_is_found_without_it(harness: FleetSimHarness) -> None:
    """Field case A23: the clusters that are asked are those of the run, however many there are."""
    handle = submit(harness, gang_of(harness, [HANGS], on=node(harness, "b/n0")))
    harness.house.clusters["a"].blind(for_s=LONG_S)
    assert list(harness.reopened().find(handle.key.run)) == [handle]
    assert list(harness.reopened().find(RunKey("ls-never"))) == []


def test_how_a_gang_ended_is_known_while_its_cluster_is_silent(harness: FleetSimHarness) -> None:
    handle = submit(harness, gang_of(harness, [SUCCEEDS], on=node(harness, "a/n0")))
    end = ended(harness, handle)
    harness.house.clusters["a"].blind(for_s=LONG_S)
    fresh = harness.reopened()
    assert list(fresh.find(handle.key.run)) == [handle]
    assert fresh.poll([handle])[handle].phase is end.phase is GangPhase.SUCCEEDED
    fresh.stop(handle, grace_s=0.0)


def test_a_gang_given_up_with_its_cluster_is_lost_to_every_process_and_may_be_alive(harness: FleetSimHarness) -> None:
    gang = replace(gang_of(harness, [HANGS] * 3), lease_s=30.0)
    handle = submit(harness, gang)
    running(harness, handle)
    silence(harness, "a")
    fresh = harness.reopened()
    status = fresh.poll([handle])[handle]
    assert status.phase is GangPhase.LOST
    assert status.unconfirmed_nodes == gang.placement.nodes
    assert list(fresh.find(handle.key.run)) == [handle]
    fresh.stop(handle, grace_s=0.0)
    assert not fresh.abandon(handle.key)
    assert submit(harness, gang) == handle


def test_a_gang_whose_submitter_died_unheard_is_lost_too_and_found_again_when_its_cluster_is_back(
    harness: FleetSimHarness,
) -> None:
    gang = replace(gang_of(harness, [HANGS] * 2), lease_s=30.0)
    request = harness.engine.render(gang)
    harness.house.clusters["a"].lose_answers(1)
    with pytest.raises(CouldNotLookError):
        harness.engine.submit(request, key=gang.key)
    silence(harness, "a")
    lost = only(harness.reopened().find(gang.key.run))
    assert poll(harness, lost).phase is GangPhase.LOST
    harness.house.clock.sleep(LONG_S)
    found = only(harness.reopened().find(gang.key.run))
    assert found.key == lost.key
    assert found.native_id == f"a/{gang.key.name}"
    assert poll(harness, lost) == poll(harness, found), "both are seen as the cluster sees the gang"


def test_an_attempt_is_given_up_without_asking_any_cluster(harness: FleetSimHarness) -> None:
    gang = gang_of(harness, [HANGS])
    for each in harness.house.clusters.values():
        each.blind(for_s=LONG_S)
    assert harness.engine.abandon(gang.key)
    with pytest.raises(AbandonedError):
        submit(harness, gang)


def test_a_gang_beyond_a_clusters_limit_is_refused_and_its_nodes_say_why() -> None:
    harness = FleetSimHarness()
    limited = FleetHouse(limits=ClusterLimits(max_nodes=1))
    harness.house, harness.engine = limited, limited.fleet  # type: ignore[assignment]  # a fleet stands for the engine
    wide = gang_of(harness, [HANGS] * 4)
    with pytest.raises(CapacityError, match="cluster a has a limit: it would make 2, and max_nodes is 1"):
        submit(harness, wide)
    submit(harness, gang_of(harness, [HANGS], on=node(harness, "a/n0")))
    usable = {each.id: each.usable_slots for each in nodes_of(harness)}
    assert usable == {"a/n0": 1, "a/n1": 0, "b/n0": 2, "b/n1": 0}
    assert "max_nodes=1" in str(node(harness, "a/n1").unusable_reason)


def test_a_run_whose_cluster_is_lost_goes_on_elsewhere_once_its_agents_must_have_ended_it() -> None:
    house = FleetHouse(num_steps=300)
    outcome = house.run(before_look=house.when_step(15, lambda: house.lose("a", for_s=LONG_S)), lease_s=30.0)
    assert isinstance(outcome, Succeeded)
    assert house.places() == ["a", "b"]
    assert house.max_live == 1
    assert "fence_awaited" in house.kinds()
    first, second = house.steps()
    assert second[0] > max(first), "it went on from what was saved while nobody saw"


def test_a_run_whose_cluster_does_not_answer_goes_on_there_while_its_agents_report() -> None:
    house = FleetHouse(num_steps=100)
    blind = house.when_step(15, lambda: house.clusters["a"].blind(for_s=70.0))
    outcome = house.run(before_look=blind, lease_s=30.0)
    assert isinstance(outcome, Succeeded)
    assert house.places() == ["a"]
    assert "look_failed" not in house.kinds()


def test_a_preempted_run_goes_on_on_the_other_cluster() -> None:
    house = FleetHouse()

    def preempt() -> None:
        for name in ("n0", "n1"):
            house.clusters["a"].preempt(NodeId(name), grace_s=2.0)

    outcome = house.run(before_look=house.when_step(15, preempt))
    assert isinstance(outcome, Succeeded)
    assert house.places() == ["a", "b"]
    first, second = house.steps()
    assert second[0] == 11, "the last checkpoint was that of step 10"
    assert max(first) >= 15


def test_a_run_that_finds_no_place_is_told_which_clusters_are_left_out_and_why() -> None:
    house = FleetHouse()
    house.engine.topology()
    house.clusters["a"].blind(for_s=20.0)
    for name in ("n0", "n1"):
        house.clusters["b"].preempt(NodeId(name), grace_s=0.0)
    house.clock.sleep(1.0)
    assert isinstance(house.run(), Succeeded)
    refused = next(event for event in house.journal.read() if isinstance(event, ev.PlanRefused))
    assert refused.retry_at_s is not None, "the silent cluster may come back"
    assert "Not usable: cluster a: " in refused.reason
    assert house.places() == ["a"]


def test_an_attempt_whose_first_submitter_stands_still_is_used_up_and_never_starts_late(
    harness: FleetSimHarness,
) -> None:
    gang = gang_of(harness, [HANGS], on=node(harness, "a/n0"))
    late = harness.engine.render(gang)
    entry = codec.from_plain(Entry, late.body["entry"])
    Book(harness.house.store).claim(entry)  # and there it stands still, before it asks its cluster
    elsewhere = gang_of(harness, [HANGS], on=node(harness, "b/n0"), key=gang.key)
    with pytest.raises(AbandonedError):
        submit(harness, elsewhere)
    with pytest.raises(AbandonedError):
        harness.reopened().submit(late, key=gang.key)
    assert harness.house.clusters["a"].live(gang.key.run) == ()
