"""The run driver on the simulated house. What becomes of runs in trouble is in ``tests/lives``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.control.context import Failed, Succeeded
from airflow_llmsched.control.journal import list_runs
from airflow_llmsched.control.runs import run_blocking
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.sim.scripts import RankFails, SimTraining
from tests.support.sim_house import RUN, SimHouse, workload_of


def test_run_trains_every_step_once_and_returns_the_final_checkpoint() -> None:
    house = SimHouse()
    outcome = house.run()
    assert isinstance(outcome, Succeeded)
    assert outcome.checkpoint is not None
    assert (outcome.checkpoint.step, outcome.last_step, outcome.num_attempts, outcome.note) == (40, 40, 1, "")
    assert house.steps() == [list(range(1, 41))]
    assert house.max_live == 1


def test_spec_that_the_engine_cannot_express_is_the_users_to_fix() -> None:
    house = SimHouse()

    def refuse(_gang: object) -> None:
        raise SpecError(path="launcher.kind", hint="not here")

    house.engine.render = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(SpecError, match=r"launcher\.kind"):
        house.driver().start()
    assert house.live() == ()


def test_run_blocking_ends_like_the_deferred_path() -> None:
    outcomes = []
    for blocking in (True, False):
        house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=0)))
        house.engine.faults = [RankFails(at_step=7, rank=2, exit_code=9, says="bad shard")]
        if blocking:
            outcome = run_blocking(house.driver(), engine=house.engine, open_channel=house.hub.open, clock=house.clock)
        else:
            outcome = house.run()
        assert isinstance(outcome, Failed)
        outcomes.append((outcome.reason, outcome.fault and replace(outcome.fault, at_s=0.0)))
    assert outcomes[0] == outcomes[1]


def test_noted_span_is_kept_even_before_the_run_opens() -> None:
    house = SimHouse()
    span = Span(bucket=Bucket.STAGE, start_s=1.0, end_s=3.0, label="stage")
    house.note_span(span)
    assert house.driver().spans() == (span,)
    assert isinstance(house.run(), Succeeded)


def test_summary_follows_the_run() -> None:
    house = SimHouse()
    house.run()
    house.driver().release()
    (summary,) = list_runs(house.store)
    assert (summary.run_key, summary.phase, summary.last_step, summary.checkpoint_step) == (RUN, "succeeded", 40, 40)
    assert (summary.dag_id, summary.workload, summary.released) == ("pretrain", "sim", True)


def test_journal_of_90_days_of_preemptions_stays_small() -> None:
    house = SimHouse(
        training=SimTraining(num_steps=3000, work_s=1200.0, checkpoint_interval_steps=4),
        workload=workload_of(hang_limit_s=7200.0),
    )
    next_s = [house.clock.now_s() + 4 * 3600.0]

    def preempt_every_four_hours() -> None:
        if house.clock.now_s() >= next_s[0]:
            next_s[0] += 4 * 3600.0
            node = house.driver().attempts()[-1].plan.placement.nodes[-1]
            house.engine.preempt(node, grace_s=120.0, return_after_s=60.0)

    started_at_s = house.clock.now_s()
    outcome = house.run(before_look=preempt_every_four_hours, poll_interval_s=900.0)
    assert isinstance(outcome, Succeeded)
    num_days = (house.clock.now_s() - started_at_s) / 86400.0
    assert num_days > 10.0
    assert outcome.num_attempts > 5 * num_days
    assert len(house.store.objects) * 90.0 / num_days < 2000
