"""Workers that die, platforms that misbehave, and both at once: at most one gang, and every run ends."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_llmsched.control.context import Failed, Succeeded
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.sim.scripts import Hangs, RankFails, SimTraining, TrainingFault
from tests.support.crashing import CrashPoints, WorkerDied, listening
from tests.support.sim_house import ROOT, SimHouse, workload_of

N1 = NodeId("n1")


def run_with_crashes(points: CrashPoints, *, faults: list[TrainingFault], preempt_at_step: int | None) -> SimHouse:
    """Run to the end; a worker that dies is followed by another try of the task."""
    house = SimHouse(training=SimTraining(num_steps=40, checkpoint_interval_steps=5))
    house.engine.faults = faults
    trouble = (
        house.when_step(preempt_at_step, lambda: house.engine.preempt(N1, grace_s=5.0))
        if preempt_at_step
        else (lambda: None)
    )
    for number in range(50):
        try:
            with listening(points):
                outcome = house.run(owner=f"try-{number}", before_look=trouble)
        except WorkerDied:
            house.live()
            house.clock.sleep(30.0)
            continue
        assert isinstance(outcome, Succeeded), outcome
        return house
    raise AssertionError("the run never ended")


def count_points() -> int:
    points = CrashPoints()
    run_with_crashes(points, faults=[RankFails(at_step=22, rank=1)], preempt_at_step=12)
    return len(points.passed)


NUM_POINTS = count_points()


def test_run_passes_effect_points_on_both_sides_of_journal_and_engine() -> None:
    points = CrashPoints()
    run_with_crashes(points, faults=[RankFails(at_step=22, rank=1)], preempt_at_step=12)
    for name in ("journal.append", "journal.summary", "run.submit", "run.stop", "sim.submit"):
        assert {f"before {name}", f"after {name}"} <= set(points.passed)
    assert NUM_POINTS > 20


@pytest.mark.parametrize("point", range(1, NUM_POINTS + 1))
def test_worker_shot_at_any_effect_point_leaves_one_gang_and_loses_no_checkpoint(point: int) -> None:
    house = run_with_crashes(CrashPoints(point), faults=[RankFails(at_step=22, rank=1)], preempt_at_step=12)
    assert house.max_live == 1
    assert_nothing_lost(house)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    crashes=st.lists(st.integers(min_value=1, max_value=150), max_size=4),
    fails=st.lists(
        st.tuples(st.integers(min_value=1, max_value=40), st.integers(min_value=0, max_value=3)), max_size=2
    ),
    platform=st.lists(
        st.tuples(
            st.floats(min_value=0.0, max_value=120.0),
            st.sampled_from(["preempt", "lose", "blind", "mute", "damage", "second worker"]),
            st.sampled_from(["n0", "n1"]),
        ),
        max_size=6,
    ),
    hang_at=st.none() | st.integers(min_value=1, max_value=40),
)
def test_whatever_happens_there_is_at_most_one_gang_and_the_run_ends(
    crashes: list[int],
    fails: list[tuple[int, int]],
    platform: list[tuple[float, str, str]],
    hang_at: int | None,
) -> None:
    points = CrashPoints(*crashes)
    house = SimHouse(
        training=SimTraining(num_steps=40, checkpoint_interval_steps=5, jitter_ratio=0.2),
        workload=workload_of(
            hang_limit_s=25.0, retries=RetrySpec(max_code_failures=4, max_attempts_without_progress=8)
        ),
    )
    house.engine.faults = [RankFails(at_step=step, rank=rank, exit_code=step) for step, rank in fails]
    house.engine.faults += [Hangs(at_step=hang_at)] if hang_at else []
    start_s = house.clock.now_s()
    due = sorted((start_s + at_s, what, NodeId(node)) for at_s, what, node in platform)

    def trouble() -> None:
        while due and due[0][0] <= house.clock.now_s():
            _, what, node = due.pop(0)
            befall(house, what, node)

    outcome = None
    for number in range(60):
        try:
            with listening(points):
                outcome = house.run(owner=f"try-{number}", before_look=trouble)
            break
        except (WorkerDied, CouldNotLookError):
            house.live()
            house.clock.sleep(40.0)
    assert isinstance(outcome, Succeeded | Failed)
    assert house.max_live <= 1
    assert house.live() == ()
    assert house.driver().state().phase in (RunPhase.SUCCEEDED, RunPhase.FAILED)
    assert_nothing_lost(house)
    house.clock.sleep(100.0)
    house.driver().release()
    assert house.driver().state().released
    assert house.engine.topology().num_usable_slots == 4


def befall(house: SimHouse, what: str, node: NodeId) -> None:
    if what == "preempt":
        house.engine.preempt(node, grace_s=4.0, return_after_s=20.0)
    elif what == "lose":
        house.engine.lose_node(node, return_after_s=20.0)
    elif what == "blind":
        house.engine.blind(for_s=15.0)
    elif what == "mute":
        house.hub.blind(for_s=15.0)
    elif what == "damage":
        newest = next((ref for ref in house.checkpoints.scan(ROOT) if ref.complete and ref.step < 40), None)
        older = [ref for ref in house.checkpoints.scan(ROOT) if ref.complete]
        if newest is not None and len(older) > 1:
            house.checkpoints.damage(newest.path)
    else:
        house.driver(owner="").start()


def assert_nothing_lost(house: SimHouse) -> None:
    """Every launch resumed from the newest checkpoint that was sound at the time, and went on from its next step."""
    for attempt in house.driver().attempts():
        done = house.steps_of(attempt.channel_root)
        first = attempt.resumed_from.step + 1 if attempt.resumed_from else 1
        assert done == list(range(first, first + len(done)))
        better = [
            ref
            for ref in house.checkpoints.scan(ROOT)
            if ref.saved_at_s is not None
            and ref.saved_at_s < attempt.intended_at_s
            and ref.step >= first
            and house.checkpoints.step_of(ref.path) is not None
        ]
        assert better == [], f"{attempt.key.name} passed over {better}"
