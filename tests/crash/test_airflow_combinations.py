"""Workers and triggerers of a real Airflow, shot at effect points and followed up: one gang per run, and none left.

All combinations run side by side in one Airflow with two triggerers. ``make test-crash`` draws 60 by its seed from what
workers and triggerers were first seen to pass; ``make test`` takes the few below.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_llmsched.testing.airflow_stack import AirflowStack
from tests.support import crash_airflow, shooting
from tests.support.crash_airflow import QUOTAS, Case, House
from tests.support.crash_combos import ALL, BUDGET, ONLY, PROPERTY, Combination, seed
from tests.support.gang_runs import DAGS, GangRuns
from tests.support.processes import ProcessSampler

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(3600)]

NUM_FOR_ONE = 5
"""Of combinations on another engine, for the time that one here takes: what a budget is divided by."""

NUM_DRAWN = sum(QUOTAS.values())
SMOKE = (
    "airflow:start-kill:run.submit:after:1:retried",
    "airflow:start-stop:journal.append:before:1:cleared",
    "airflow:resume-kill:journal.append:after:1:retried",
    "airflow:watch-killall:watch.renew:before:1:moved",
    "airflow:watch-stop:watch.renew:after:1:moved",
    "airflow:release-kill:run.stop:before:1:retried",
)
SETTINGS = {
    # A worker that stands still holds a slot of the executor, but no more than these run at once.
    "AIRFLOW__CORE__PARALLELISM": "32",
    "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "6",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).parent / "plugins"),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
}


def asked() -> list[Combination] | None:
    """Return the combinations to run, None for as many as are to be drawn."""
    if os.environ.get(ONLY):
        only = Combination.parse(os.environ[ONLY])
        return [only] if only.engine == crash_airflow.ENGINE else []
    return None if os.environ.get(ALL) else [Combination.parse(name) for name in SMOKE]


def test_runs_shot_under_a_real_scheduler_with_two_triggerers(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    named = asked()
    budget = min(NUM_DRAWN, math.ceil(int(os.environ.get(BUDGET) or 1000) / NUM_FOR_ONE))
    num_gangs = budget if named is None else max(1, len(named))
    range_ = crash_airflow.range_in(tmp_path)
    settings = {
        **SETTINGS,
        shooting.RANGE: str(range_.folder),
        "LLMSCHED_TEST_NUM_GANGS": str(num_gangs),
    }
    with (
        AirflowStack(tmp_path / "home", DAGS, environment=settings, num_triggerers=2, end_gangs=True) as stack,
        ProcessSampler() as sampler,
    ):
        house = House(stack, range_, sampler)
        combinations = crash_airflow.drawn(crash_airflow.record(house), budget) if named is None else named
        cases = lay_out(house, combinations, range_.folder / "hold", num_gangs=num_gangs)
        failures = house.play(cases)
        for case in cases:
            record_property(PROPERTY, case.findings().plain())
            try:
                case.check()
            except AssertionError as error:
                failures.setdefault(case, error)
    missed = [str(case.combination) for case in cases if case.missed]
    assert len(missed) <= max(2, len(cases) // 10), f"went by without being shot: {missed}"
    story = [f"{case.combination.command}\n    {error}" for case, error in failures.items()]
    assert not failures, f"{len(failures)} of {len(cases)} with seed {seed()}; repeat one by:\n" + "\n".join(story)


def lay_out(house: House, combinations: list[Combination], hold: Path, *, num_gangs: int) -> list[Case]:
    """Give each combination a gang: those of the teardown a DAG run of their own, the others one together."""
    alone = [each for each in combinations if each.scenario.startswith("release-")]
    cases: list[Case] = []
    for number, each in enumerate(alone, start=1):
        runs = GangRuns(house.stack, hold, dag_id="shot_alone", run_id=f"alone-{number:02d}", start=False)
        cases.append(Case(house, each, runs, "gang-01"))
    together = [each for each in combinations if each not in alone]
    if together:
        runs = GangRuns(house.stack, hold, dag_id="shot", run_id="together", start=False)
        cases += [Case(house, each, runs, f"gang-{number:02d}") for number, each in enumerate(together, start=1)]
        for number in range(len(together), num_gangs):
            runs.let_go_early(f"gang-{number + 1:02d}")
        runs.start()
    for case in cases[: len(alone)]:
        case.runs.start()
    return cases
