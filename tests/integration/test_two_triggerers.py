"""Two triggerers, one of which stands still, or a pool that is full: no gang notices. Against a real scheduler.

Whatever stands still does so with its whole process tree. Gangs hold at a step until they are let go, so that what a
test sees "meanwhile" is the same gang at the same step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_llmsched.testing.airflow_stack import AirflowStack
from tests.support.gang_runs import DAGS, NUM_STEPS, GangRuns, Processes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(600)]

log = logging.getLogger(__name__)

STOPPED_S = 40.0
HANDOFF_LIMIT_S = 300.0

# Each triggerer judges the other by its own limit: "triggerer" takes over what "triggerer-2" has let be for 6 s, and
# "triggerer-2" never takes anything over. Airflow's defaults are a heartbeat each 5 s and a limit of 30 s.
SETTINGS = {
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__LLMSCHED__HANDOFF_LIMIT": str(HANDOFF_LIMIT_S),
}
LIMIT = "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD"
OWN_SETTINGS = {"triggerer": {LIMIT: "6"}, "triggerer-2": {LIMIT: "3600"}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStack]:
    """An Airflow with two triggerers."""
    home = tmp_path_factory.mktemp("airflow")
    with AirflowStack(
        home, DAGS, environment=SETTINGS, num_triggerers=2, component_environment=OWN_SETTINGS, end_gangs=True
    ) as stack:
        yield stack


@contextmanager
def frozen(pair: AirflowStack, name: str) -> Iterator[None]:
    """Stop a triggerer by SIGSTOP for as long as the block runs."""
    pair.pause(name)
    try:
        yield
    finally:
        pair.resume(name)


def held_by(name: str, runs: GangRuns) -> Processes:
    """Wait until all gangs stand still, watched by that triggerer alone, and return their processes."""
    before = runs.wait_until_held()
    assert runs.holders() == {name}
    assert all(len(attempts) == 1 for attempts in before.values())
    return before


def stand_still(runs: GangRuns, before: Processes, *, until_s: float) -> float:
    """Check all gangs each second until then (monotonic). Returns the least time that was left of a lease, seconds."""
    least_s = float("inf")
    while time.monotonic() < until_s:
        assert runs.processes() == before
        now_s = time.time()
        least_s = min([least_s, *(until - now_s for gang in runs.gangs.values() for until in gang.leases_s())])
        time.sleep(1.0)
    return least_s


def assert_untouched(runs: GangRuns, before: Processes) -> None:
    """Let all go: each ends well in the one launch it ever had, having trained every step once."""
    assert runs.processes() == before
    runs.let_go()
    assert runs.wait_for_end() == "success", runs.tasks()
    for gang in runs.gangs.values():
        assert gang.attempts() == [(1, 1)]
        assert gang.state().last_step == NUM_STEPS
        assert gang.trained() == list(range(1, NUM_STEPS + 1))
        assert [gang.num(kind) for kind in ("launched", "cancel_requested", "adopted", "reopened")] == [1, 0, 0, 0]
    assert all(not attempts for attempts in runs.processes().values())


def test_a_triggerer_that_stands_still_for_40_s_with_nobody_to_take_over_costs_no_gang(
    pair: AirflowStack, tmp_path: Path
) -> None:
    with frozen(pair, "triggerer-2"):
        runs = GangRuns(pair, tmp_path, dag_id="gangs", run_id="nobody-takes-over")
        before = held_by("triggerer", runs)
    with frozen(pair, "triggerer"):
        least_s = stand_still(runs, before, until_s=time.monotonic() + STOPPED_S)
        assert runs.holders() == {"triggerer"}
    assert least_s > 0
    assert_untouched(runs, before)
    log.info("%d of 20 gangs untouched; the shortest lease had %.0f s left", len(before), least_s)


def test_a_triggerer_that_stands_still_while_another_takes_over_does_no_harm_when_it_goes_on(
    pair: AirflowStack, tmp_path: Path
) -> None:
    with frozen(pair, "triggerer"):
        runs = GangRuns(pair, tmp_path, dag_id="gangs_on_a_short_lease", run_id="taken-over")
        before = held_by("triggerer-2", runs)
    with frozen(pair, "triggerer-2"):
        until_s = time.monotonic() + STOPPED_S
        runs.wait_for(lambda: runs.holders() == {"triggerer"})
        least_s = stand_still(runs, before, until_s=until_s)
    assert least_s > 0  # a lease is as long as the stop, and at most half of it was left: the other has renewed it
    wait_until(lambda: runs.let_be() == set(runs.gangs), limit_s=60)
    assert_untouched(runs, before)
    log.info("%d of 20 gangs untouched; the shortest lease had %.0f s left", len(before), least_s)


def test_a_full_pool_during_a_hand_over_costs_no_lease_and_a_triggerer_that_comes_late_no_gang(
    pair: AirflowStack, tmp_path: Path
) -> None:
    pair.client.set_pool("gangs", num_slots=1)
    with frozen(pair, "triggerer"):
        runs = GangRuns(pair, tmp_path, dag_id="gangs_in_a_pool", run_id="full-pool")
        before = held_by("triggerer-2", runs)
    (gang,) = runs.gangs.values()
    with frozen(pair, "triggerer-2"):
        runs.wait_for(lambda: runs.holders() == {"triggerer"})
        pair.client.set_pool("gangs", num_slots=0)
        gang.blind()  # whoever watches hands over: the engine cannot be asked
        runs.wait_for(lambda: runs.tasks()[gang.task_id] == "scheduled")
        gang.unblind()
    # The thawed triggerer finds its trigger gone, and the task on its way to a worker.
    wait_until(lambda: runs.let_be() == {gang.task_id}, limit_s=60)
    least_s = stand_still(runs, before, until_s=time.monotonic() + 1.5 * 40.0)
    assert runs.tasks()[gang.task_id] == "scheduled"
    assert least_s > HANDOFF_LIMIT_S - STOPPED_S - 60.0
    pair.client.set_pool("gangs", num_slots=1)
    runs.wait_for(lambda: gang.num("resumed") == 1 and runs.tasks()[gang.task_id] == "deferred")
    assert_untouched(runs, before)
