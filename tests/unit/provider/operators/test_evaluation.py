from __future__ import annotations

import json
import sys

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.events import Woke
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.ledger import Bucket
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.run_report import EvaluationResult
from airflow_llmsched.domain.slots import slice_slots
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.handover import handed_over
from airflow_llmsched.provider.operators.evaluation import EvaluationGateError
from airflow_llmsched.provider.operators.gang_base import GangFailedError
from tests.support.pipeline import NUM_STEPS, TRAINER, Pipeline, plain_spec, python_sleeping

LOSS = 5.0 - NUM_STEPS / 100


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A pipeline that has trained."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(folder / "state"))
        made = Pipeline(folder).prepare()
        made.run("run_gang")
        yield made
        made.close()


@pytest.fixture
def evaluating(trained):
    """Returns the trained pipeline with another evaluation in its spec, in a generation of its own."""

    def change(**evaluation):
        trained.clear()
        trained.spec = plain_spec(evaluation={"command": [*TRAINER, "--evaluate"], "max_loss": 5.0, **evaluation})
        trained.run("open_run")
        return trained

    yield change
    trained.close()


def _evaluate(pipeline, *, deferrable=False):
    if deferrable:
        return pipeline.defer("evaluate_checkpoint").finish()
    return pipeline.run("evaluate_checkpoint")


def _launched(pipeline):
    """The evaluation gangs of this generation."""
    found = pipeline.engine.find(pipeline.scope.evaluation_key)
    return [handle for handle in found if handle.key.generation == pipeline.generation]


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_checkpoint_below_the_gate_passes_and_is_kept_for_the_report(evaluating, deferrable):
    pipeline = evaluating()
    result = _evaluate(pipeline, deferrable=deferrable)
    assert result["loss"] == pytest.approx(LOSS)
    assert result["passed"] is True
    assert result["checkpoint_step"] == NUM_STEPS
    json.dumps(result, allow_nan=False)
    kept = run_files.read(pipeline.scope, run_files.EVALUATION_FILE, EvaluationResult, made_by="x")
    assert kept.loss == result["loss"]
    assert not pipeline.live(pipeline.scope.evaluation_key)


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"max_loss": 1.0}, rf"held-out loss {LOSS:.4f} at step {NUM_STEPS} is above the gate 1\.0"),
        ({"command": [*TRAINER, "--evaluate", "--loss=nan"]}, "not a finite number"),
        ({"command": [*TRAINER, "--evaluate", "--loss=inf"], "max_loss": None}, "not a finite number"),
    ],
)
def test_a_checkpoint_that_is_not_good_enough_fails_but_is_reported(evaluating, deferrable, evaluation, message):
    pipeline = evaluating(**evaluation)
    with pytest.raises(EvaluationGateError, match=message):
        _evaluate(pipeline, deferrable=deferrable)
    kept = run_files.read(pipeline.scope, run_files.EVALUATION_FILE, EvaluationResult, made_by="x")
    assert kept.passed is False
    assert pipeline.run("report")["outcome"] == "failed"


@pytest.mark.parametrize(
    "program",
    [
        "pass",
        "import os; open(os.environ['LLMSCHED_OUTPUT'], 'w').write('loss: 3')",
        "import os; open(os.environ['LLMSCHED_OUTPUT'], 'w').write('[1, 2]')",
        "import os; open(os.environ['LLMSCHED_OUTPUT'], 'w').write('{\"loss\": \"low\", \"checkpoint_step\": 1}')",
        "import os; open(os.environ['LLMSCHED_OUTPUT'], 'w').write('{\"loss\": 3.0}')",
    ],
    ids=["nothing", "text", "list", "word", "no step"],
)
def test_an_evaluator_that_writes_no_result_fails_and_names_the_file(evaluating, program):
    pipeline = evaluating(command=python(program))
    with pytest.raises(AirflowFailException, match="is no evaluation result") as failed:
        _evaluate(pipeline)
    assert str(pipeline.scope.directory / "evaluation" / f"generation-{pipeline.generation}-attempt-1.json") in str(
        failed.value
    )


@pytest.mark.parametrize("deferrable", [True, False])
def test_an_evaluator_that_fails_shows_its_last_lines_and_is_not_tried_again(evaluating, deferrable):
    pipeline = evaluating(command=python("import sys; print('out of memory'); sys.exit(4)"))
    with pytest.raises(GangFailedError, match=r"(?s)launch 1 of 3: .*exited with code 4.*out of memory"):
        _evaluate(pipeline, deferrable=deferrable)
    assert [handle.key.attempt for handle in _launched(pipeline)] == [1]


def test_another_checkpoint_than_the_last_can_be_evaluated(evaluating):
    pipeline = evaluating()
    other = str(pipeline.scope.directory / "checkpoints" / "step-00000005")
    assert pipeline.run("evaluate_checkpoint", checkpoint=other)["checkpoint_step"] == 5


def test_an_evaluation_beyond_its_limit_is_stopped(evaluating):
    pipeline = evaluating(command=python_sleeping(), limit="1s")
    with pytest.raises(GangFailedError, match="not done by its deadline"):
        _evaluate(pipeline)
    assert not pipeline.live(pipeline.scope.evaluation_key)


def test_before_training_there_is_nothing_to_evaluate(pipeline):
    pipeline.prepare()
    with pytest.raises(AirflowFailException, match="let RunGangOperator finish first"):
        _evaluate(pipeline)


def test_without_a_free_slot_the_task_waits_deferred_until_there_is_one(slow):
    slow.defer("run_gang")
    waiting = slow.defer("evaluate_checkpoint", checkpoint="/checkpoints/step-00000006")
    assert waiting.trigger.watch["handle"] is None
    assert waiting.trigger.watch["wake_at_s"] is not None
    (training,) = slow.live()
    slow.engine.stop(training, grace_s=0.0)
    ground = open_ground(slow.engine, "local", None, store=slow.scope.store(), clock=SystemClock())
    assert ground is not None
    ground.free(slow.scope.run_key, num_records=1_000)  # as the run itself does at its end
    waiting.again(waiting.resume, handed_over(Woke(at_s=0.0)))
    (launched,) = slow.live(slow.scope.evaluation_key)
    assert waiting.trigger.watch["handle"]["native_id"] == launched.native_id
    held = ground.state().claims[slow.scope.evaluation_key].held
    assert sum(map(len, held.values())) == 1
    waiting.task.on_kill()
    assert slow.scope.evaluation_key not in ground.state().claims


@pytest.mark.parametrize("deferrable", [True, False])
def test_an_evaluation_that_never_gets_its_slot_says_how_long_it_waited(slow, deferrable):
    slow.defer("run_gang")
    with pytest.raises(GangFailedError, match="waited 0 s for capacity: no slot for the evaluation"):
        slow.run("evaluate_checkpoint", checkpoint="/c/step-6", capacity_wait_s=0.0, deferrable=deferrable)


def test_a_retry_takes_the_result_of_the_try_before(evaluating):
    pipeline = evaluating()
    first = _evaluate(pipeline)
    again = _evaluate(pipeline)
    assert {**again, "evaluated_at_s": None} == {**first, "evaluated_at_s": None}
    assert len(_launched(pipeline)) == 1


def test_a_clear_evaluates_anew(evaluating):
    pipeline = evaluating()
    _evaluate(pipeline)
    pipeline.clear()
    _evaluate(pipeline)
    assert [handle.key.attempt for handle in _launched(pipeline)] == [1]


def test_killing_the_worker_stops_the_evaluation_and_a_newer_one_is_spared(evaluating):
    pipeline = evaluating(command=python_sleeping())
    first = pipeline.defer("evaluate_checkpoint")
    first.task.on_kill()
    assert not pipeline.live(pipeline.scope.evaluation_key)
    pipeline.clear()
    pipeline.defer("evaluate_checkpoint")
    first.task.on_kill()
    assert len(pipeline.live(pipeline.scope.evaluation_key)) == 1


def test_the_time_it_took_is_on_the_ledger(evaluating):
    pipeline = evaluating()
    _evaluate(pipeline)
    spans = [event.span for event in pipeline.journal() if event.kind == "span_noted"]
    evaluated = [span for span in spans if span.bucket is Bucket.EVALUATE][-1]
    waited = max((span for span in spans if span.bucket is Bucket.QUEUE), key=lambda span: span.end_s)
    assert evaluated.start_s == waited.end_s
    assert evaluated.end_s > evaluated.start_s


def test_a_trainer_of_its_own_without_an_evaluation_is_not_evaluated(trained):
    trained.clear()
    trained.spec = plain_spec()
    del trained.spec["evaluation"]
    trained.run("open_run")
    assert trained.run("evaluate_checkpoint") == {}
    assert _launched(trained) == []


@pytest.mark.parametrize("queue", [None, {"priority": "low"}])
def test_an_evaluation_on_a_slice_needs_no_whole_accelerator(tmp_path, monkeypatch, queue):
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path / "state"))
    evaluation = {"command": [*TRAINER, "--evaluate"], "max_loss": 5.0, "slice": "time"}
    changes = {} if queue is None else {"queue": queue}
    made = Pipeline(tmp_path, spec=plain_spec(evaluation=evaluation, **changes))
    made.options = {"num_nodes": 1, "slots_per_node": 3, "divided": [{"slot": 2, "kind": "time", "slices": 2}]}
    made.prepare().run("run_gang")
    ground = open_ground(made.engine, "local", None, store=made.scope.store(), clock=SystemClock())
    gang = QueuedGang(key=RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), team="default", priority_class="high")
    first, second = slice_slots(2, 2)
    ground.claim(Claim(gang=gang, num_records=1, since_s=0.0, held={NodeId("n0"): (0, 1, first)}))
    waiting = made.defer("evaluate_checkpoint")
    assert dict(ground.state().claims[made.scope.evaluation_key].held) == {"n0": (second,)}
    assert ground.state().claims[made.scope.evaluation_key].part_ratio == 0.5
    assert waiting.finish()["passed"] is True
    assert made.scope.evaluation_key not in ground.state().claims


@pytest.mark.parametrize("queue", [{}, {"queue": {"priority": "low"}}])
def test_where_nothing_is_divided_an_evaluation_on_a_slice_says_so(evaluating, queue):
    pipeline = evaluating(slice="mig")
    pipeline.spec.update(queue)
    pipeline.run("open_run")
    with pytest.raises(AirflowFailException, match="no accelerator of the engine is divided by mig: leave it out"):
        _evaluate(pipeline)
