"""Attempts that were taken for dead train and save on: nobody ever goes on from what they save too late."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.control.context import Outcome, Succeeded
from airflow_llmsched.domain.checkpoint import CheckpointRef, SavedBy
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.sim.scripts import RankFails, SimTraining
from tests.support.sim_house import ROOT, SimHouse, tree_of, workload_of

N0 = NodeId("n0")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch as the journal tells it: what it went on from, and when that was decided."""

    by: SavedBy
    chosen_at_s: float
    resumed_from: CheckpointRef | None

    @property
    def step(self) -> int:
        return self.resumed_from.step if self.resumed_from else 0


def launches(house: SimHouse) -> list[Launch]:
    found: list[Launch] = []
    chosen: ev.CheckpointChosen | None = None
    for event in house.journal.read():
        if isinstance(event, ev.CheckpointChosen):
            chosen = event
        elif isinstance(event, ev.LaunchIntended):
            assert chosen is not None
            by = SavedBy.of_key(event.key)
            found.append(Launch(by=by, chosen_at_s=chosen.at_s, resumed_from=chosen.checkpoint))
    return found


def in_line(ref: CheckpointRef, before: list[Launch]) -> bool:
    """The rule by the simulation's one true clock: saved before any successor chose, and not above what it chose."""
    assert ref.saved_by is not None
    assert ref.saved_at_s is not None
    since = [each for each in before if each.by > ref.saved_by]
    return all(ref.saved_at_s <= each.chosen_at_s and ref.step <= each.step for each in since)


def assert_one_line(house: SimHouse, saved: list[CheckpointRef]) -> None:
    """Every launch went on from the newest checkpoint of the line that was sound when it was chosen."""
    all_launches = launches(house)
    for number, launch in enumerate(all_launches):
        before = all_launches[:number]
        if launch.resumed_from is not None:
            assert in_line(launch.resumed_from, before), f"{launch} went on from a late save"
        better = [
            ref
            for ref in saved
            if ref.saved_at_s is not None
            and ref.saved_at_s < launch.chosen_at_s
            and ref.step > launch.step
            and house.checkpoints.step_of(ref.path) is not None
            and in_line(ref, before)
        ]
        assert better == [], f"{launch} passed over {better}"


def house_of(num_nodes: int = 5, **changes: object) -> SimHouse:
    house = SimHouse(
        training=SimTraining(num_steps=80, checkpoint_interval_steps=5),
        tree=tree_of(num_nodes),
        workload=workload_of(
            retries=RetrySpec(max_code_failures=99, max_infrastructure_failures=99, max_attempts_without_progress=99)
        ),
    )
    house.context = replace(house.context, capacity_wait_s=2000.0, **changes)  # type: ignore[arg-type]
    return house


def zombie_beside_a_crash(house: SimHouse) -> Outcome:
    """The first attempt lives on unseen and overtakes the second, which then fails: the third has to choose."""
    house.engine.faults = [RankFails(at_step=999)]
    cut_off = house.when_step(7, lambda: house.engine.partition(N0))
    crash_due: list[float] = []

    def look() -> None:
        cut_off()
        if len(house.driver().attempts()) == 2 and not crash_due:
            crash_due.append(house.clock.now_s() + 25.0)
        if crash_due and 0.0 < crash_due[0] <= house.clock.now_s():
            crash_due[0] = -1.0
            house.engine.lose_node(house.driver().attempts()[-1].plan.placement.nodes[-1])

    return house.run(before_look=look)


def test_zombie_that_is_further_on_is_not_followed() -> None:
    house = house_of(lease_s=None)
    outcome = zombie_beside_a_crash(house)
    assert isinstance(outcome, Succeeded)
    first, second, third = launches(house)
    by_first = [ref for ref in house.checkpoints.scan(ROOT) if ref.saved_by == first.by]
    late = [ref for ref in by_first if third.chosen_at_s >= (ref.saved_at_s or 0.0) > second.chosen_at_s]
    assert max(ref.step for ref in late) > third.step
    assert third.resumed_from is not None
    assert third.resumed_from.saved_by == second.by
    chosen = [event for event in house.journal.read() if isinstance(event, ev.CheckpointChosen)][-1]
    assert "took over" in chosen.note


def test_without_the_line_the_zombie_would_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointLine, "why_not", lambda _self, _ref: None)
    house = house_of(lease_s=None)
    zombie_beside_a_crash(house)
    first, _, third = launches(house)
    assert third.resumed_from is not None
    assert third.resumed_from.saved_by == first.by


def test_with_one_path_for_all_a_zombie_overwrites_its_successors_checkpoints() -> None:
    """Which is why separate paths are the default."""
    begun: dict[bool, list[str]] = {}
    for separate in (True, False):
        house = house_of(lease_s=None)
        spec = house.context.workload
        own = replace(spec, checkpoint=replace(spec.checkpoint, separate_paths=separate))
        house.context = replace(house.context, workload=own)
        begun[separate] = record_saves(house)
        zombie_beside_a_crash(house)
    assert len(begun[True]) == len(set(begun[True]))
    assert len(begun[False]) > len(set(begun[False]))


def record_saves(house: SimHouse) -> list[str]:
    """Return the list to which the path of each save will be added."""
    paths: list[str] = []
    begin = house.checkpoints.begin_save

    def noted(root: str, *, step: int, world_size: int) -> str:
        path = begin(root, step=step, world_size=world_size)
        paths.append(path)
        return path

    house.checkpoints.begin_save = noted  # type: ignore[method-assign]
    return paths


TROUBLES = st.lists(
    st.tuples(
        st.integers(2, 78),  # once the newest attempt has reported this step
        st.sampled_from(["partition", "partition", "lose", "preempt", "damage"]),
        st.one_of(st.none(), st.floats(0.5, 60.0)),  # the node is back after
    ),
    max_size=6,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    troubles=TROUBLES,
    fails=st.lists(st.integers(2, 79), max_size=3),
    lease_s=st.sampled_from([None, None, 30.0]),
    handoff_s=st.floats(0.0, 60.0),
    crashes=st.sets(st.integers(1, 10), max_size=3),
    clears=st.sets(st.integers(1, 8), max_size=2),
)
def test_every_launch_goes_on_in_one_line_and_loses_nothing_of_it(
    *,
    troubles: list[tuple[int, str, float | None]],
    fails: list[int],
    lease_s: float | None,
    handoff_s: float,
    crashes: set[int],
    clears: set[int],
) -> None:
    house = house_of(lease_s=lease_s, handoff_limit_s=200.0)
    house.engine.faults = [RankFails(at_step=each, rank=each % 3, exit_code=each) for each in fails]
    begun = record_saves(house)
    due = sorted(troubles, key=lambda each: each[0])

    def look() -> None:
        attempts = house.driver().attempts()
        reached = max(house.steps_of(attempts[-1].channel_root), default=0) if attempts else 0
        while due and reached >= due[0][0]:
            _, what, back_after_s = due.pop(0)
            befall(house, what, attempts[-1].plan.placement.nodes[0], back_after_s)

    house.run_through(before_look=look, handoff_s=handoff_s, crashes=crashes, clears=clears)
    assert_one_line(house, list(house.checkpoints.scan(ROOT)))
    assert len(begun) == len(set(begun)), "two saves under one path"


def befall(house: SimHouse, what: str, node: NodeId, back_after_s: float | None) -> None:
    if what == "partition":
        house.engine.partition(node, heals_after_s=back_after_s)
    elif what == "lose":
        house.engine.lose_node(node, return_after_s=back_after_s)
    elif what == "preempt":
        house.engine.preempt(node, grace_s=4.0, return_after_s=back_after_s)
    else:
        newest = next((ref for ref in house.checkpoints.scan(ROOT) if ref.complete and ref.step < 75), None)
        if newest is not None:
            house.checkpoints.damage(newest.path)
