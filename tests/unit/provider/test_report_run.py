from __future__ import annotations

import time

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.run_report import CheckpointState, RunOutcome
from airflow_llmsched.planner.perf.flops import flops_per_token
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.parameters import count_lora_parameters
from airflow_llmsched.provider.report_run import gather, write_report
from airflow_llmsched.reports import files
from airflow_llmsched.specs import presets
from tests.support.pipeline import NUM_STEPS


def _gather(pipeline):
    return gather(pipeline.scope, end_s=time.time())


def test_a_failed_run_shows_its_fault_and_what_was_trained(make_pipeline):
    pipeline = make_pipeline(arguments=("--fail-at=6",)).prepare()
    with pytest.raises(AirflowFailException):
        pipeline.run("run_gang")
    report = _gather(pipeline)
    assert report.outcome is RunOutcome.FAILED
    assert "exited with code 3" in report.reason
    (attempt,) = report.attempts
    assert attempt.fault is not None
    assert "giving up at step 6" in attempt.fault.log_tail
    assert [row.step for row in report.checkpoints if row.state is CheckpointState.VERIFIED][:1] == [5]
    assert "No evaluation result is known." in report.notes


def test_a_run_that_was_never_opened_is_reported_with_notes(pipeline):
    report = _gather(pipeline)
    assert report.outcome is RunOutcome.FAILED
    assert report.names.workload == "unknown"
    assert any("No gang was launched" in note for note in report.notes)
    assert report.usd is None or report.usd == 0


def _with_model(make_pipeline, **changes):
    pipeline = make_pipeline()
    for name in ("communication", "memory", "evaluation"):
        del pipeline.spec[name]
    pipeline.spec |= {"model": "byte-gpt-1m", "precision": {"compute": "fp32"}, **changes}
    return pipeline


def _reported_mfu_ratio(report, flop_per_token):
    kept = [row for row in report.steps if row.kept]
    assert len(kept) == NUM_STEPS
    peak_flop_per_s = node_shape(report.attempts[0].node_shape).accelerator.peak_flop_per_s[NumberFormat.FP32]
    possible_flop = sum(row.step_s for row in kept) * 2 * peak_flop_per_s
    return sum(row.num_tokens * flop_per_token(row.step) for row in kept) / possible_flop


def test_mfu_goes_by_the_sequences_of_each_step(make_pipeline):
    schedule = [{"from": 0}, {"from": "1024 tokens", "sequence_length": 256}]
    batch = {"sequence_length": 64, "global_batch": "4 sequences", "schedule": schedule}
    pipeline = _with_model(make_pipeline, batch=batch).prepare()
    pipeline.run("run_gang")
    report = _gather(pipeline)
    shape = presets.get("byte-gpt-1m").shape
    short, long = (flops_per_token(shape, sequence_length_tokens=each).training_flop for each in (64, 256))
    assert report.mfu_ratio == pytest.approx(_reported_mfu_ratio(report, lambda step: short if step <= 4 else long))


def test_mfu_of_adapters_counts_no_gradients_to_what_stays_as_it_is(make_pipeline):
    batch = {"sequence_length": 64, "global_batch": "4 sequences"}
    base = _with_model(make_pipeline, batch=batch).prepare()
    base.run("run_gang")
    weights = next(row.path for row in _gather(base).checkpoints if row.state is CheckpointState.VERIFIED)
    checkpoint = {**base.spec["checkpoint"], "init_from": weights}
    adapted = {"stage": "lora", "lora": {"rank": 2}, "batch": batch, "checkpoint": checkpoint}
    pipeline = _with_model(lambda: make_pipeline(dag_id="adapted"), **adapted).prepare()
    pipeline.run("run_gang")
    report = _gather(pipeline)
    shape = presets.get("byte-gpt-1m").shape
    flops = flops_per_token(shape, sequence_length_tokens=64)
    frozen_flop = 2 * flops.forward_without_scores_flop + 3 * flops.scores_flop
    flop = frozen_flop + 6 * count_lora_parameters(shape, rank=2)
    assert flop < 0.8 * flops.training_flop
    assert report.mfu_ratio == pytest.approx(_reported_mfu_ratio(report, lambda _: flop))


def test_a_run_under_way_is_unfinished_and_charged_up_to_now(slow):
    slow.defer("run_gang")
    report = _gather(slow)
    assert report.outcome is RunOutcome.UNFINISHED
    assert any("is not recorded" in note for note in report.notes)


def test_lost_files_leave_notes_and_no_error(pipeline):
    pipeline.prepare()
    pipeline.run("run_gang")
    for path in (pipeline.scope.directory / "channel").rglob("*.jsonl"):
        path.unlink()
    pipeline.lose("spec.json")
    report = _gather(pipeline)
    assert report.names.workload == "unknown"
    assert len(report.attempts) == 1
    assert report.steps == ()
    assert any("No training step is recorded" in note for note in report.notes)


def test_a_trained_run_whose_evaluation_is_missing_or_failed_has_not_succeeded(make_pipeline):
    pipeline = make_pipeline(evaluation={"command": ["/bin/false"], "max_loss": 5.0}).prepare()
    pipeline.run("run_gang")
    assert _gather(pipeline).outcome is RunOutcome.FAILED
    with pytest.raises(AirflowFailException):
        pipeline.run("evaluate_checkpoint")
    assert _gather(pipeline).outcome is RunOutcome.FAILED


def test_a_run_without_an_evaluation_succeeds_by_its_training(make_pipeline):
    pipeline = make_pipeline()
    del pipeline.spec["evaluation"]
    pipeline.prepare().run("run_gang")
    report = _gather(pipeline)
    assert report.outcome is RunOutcome.SUCCEEDED
    assert report.final_loss == pytest.approx(5.0 - NUM_STEPS / 100)


def test_a_cleared_run_reports_its_last_generation_and_no_older_evaluation(pipeline):
    pipeline.prepare()
    pipeline.run("run_gang")
    pipeline.run("evaluate_checkpoint")
    first = _gather(pipeline)
    assert first.outcome is RunOutcome.SUCCEEDED
    cleared_at_s = time.time()
    pipeline.clear()
    pipeline.run("run_gang")
    second = _gather(pipeline)
    assert second.names.generation > first.names.generation
    assert [row.name for row in second.attempts] != [row.name for row in first.attempts]
    assert second.ledger.start_s >= cleared_at_s
    assert (first.num_earlier_attempts, second.num_earlier_attempts) == (0, len(first.attempts))
    assert second.earlier_usd == pytest.approx(first.usd)
    assert second.usd == pytest.approx(first.usd + sum(row.usd for row in second.attempts))
    assert second.evaluation is None
    assert second.outcome is RunOutcome.FAILED
    pipeline.run("evaluate_checkpoint")
    assert _gather(pipeline).outcome is RunOutcome.SUCCEEDED


def test_what_is_written_is_what_was_gathered(pipeline):
    pipeline.run("open_run")
    end_s = time.time()
    written = write_report(pipeline.scope, end_s=end_s)
    stored = files.read(pipeline.scope.directory)
    assert written["outcome"] == stored.outcome
    assert stored.ledger == gather(pipeline.scope, end_s=end_s).ledger


def test_what_a_run_has_rented_is_on_its_report_and_goes_to_xcom(pipeline, sim_cloud):
    assert write_report(pipeline.scope, end_s=time.time())["rented_usd"] is None
    pipeline.run("provision")
    end_s = time.time() + 1800.0
    report = gather(pipeline.scope, end_s=end_s)
    assert report.rented_usd == pytest.approx(12.0, rel=0.01)
    assert (report.num_rentals, report.usd) == (1, 0.0)
    assert write_report(pipeline.scope, end_s=end_s)["rented_usd"] == report.rented_usd


def test_a_damaged_record_of_what_was_rented_leaves_a_note_and_no_error(pipeline, sim_cloud):
    pipeline.run("provision")
    (record,) = pipeline.state_root.glob("runs/*/leases/*/intended.json")
    record.write_bytes(b"{")
    assert gather(pipeline.scope, end_s=time.time()).rented_usd is not None  # by its copy
    record.with_name("copy.json").write_bytes(b"{")
    report = gather(pipeline.scope, end_s=time.time())
    assert report.rented_usd is None
    assert f"{record} is damaged" in report.notes[-1]
