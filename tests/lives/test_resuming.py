"""Runs that resume: from which checkpoint, and when they must not."""

from __future__ import annotations

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Succeeded, Watch
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.sim.scripts import RankFails
from tests.support.sim_house import ROOT, SimHouse, workload_of

N1 = NodeId("n1")


def test_corrupt_newest_checkpoint_is_passed_over_with_a_note() -> None:
    house = SimHouse()

    def spoil() -> None:
        house.checkpoints.damage(house.saved(20))
        house.engine.lose_node(N1)

    outcome = house.run(before_look=house.when_step(23, spoil))
    assert isinstance(outcome, Succeeded)
    second = house.driver().attempts()[1]
    assert second.resumed_from is not None
    assert second.resumed_from.step == 10
    chosen = [event for event in house.journal.read() if isinstance(event, ev.CheckpointChosen)][1]
    assert [(skipped.step, "checksum" in skipped.reason) for skipped in chosen.skipped] == [(20, True)]
    assert "resumes at step 10" in chosen.note


def test_run_that_lost_every_checkpoint_fails_rather_than_start_again_at_step_0() -> None:
    house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=5)))
    house.engine.faults = [RankFails(at_step=12, rank=0), RankFails(at_step=23, rank=1)]
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)

    def spoil_after_first_relaunch() -> None:
        if len(house.driver().attempts()) == 2:
            for ref in house.checkpoints.scan(ROOT):
                house.checkpoints.damage(ref.path)

    result = house.finish(outcome, before_look=spoil_after_first_relaunch)
    assert isinstance(result, Failed)
    assert "a checkpoint of step 10 had been saved" in result.reason
    assert len(house.driver().attempts()) == 2


def test_required_resume_with_nothing_to_resume_from_is_a_clear_failure() -> None:
    house = SimHouse(workload=workload_of(require_resume=True))
    outcome = house.run()
    assert isinstance(outcome, Failed)
    assert "checkpoint.require_resume" in outcome.reason
    assert house.driver().attempts() == ()


def test_checkpoint_of_another_world_size_is_refused_before_the_launch() -> None:
    house = SimHouse(resharding=False)
    outcome = house.run(before_look=house.when_step(13, lambda: house.engine.lose_node(N1)))
    assert isinstance(outcome, Failed)
    assert "saved by 4 ranks, cannot be loaded by 2" in outcome.reason
    assert len(house.driver().attempts()) == 1
