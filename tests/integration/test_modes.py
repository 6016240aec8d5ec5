"""Deferrable or blocking, a pipeline ends in the same results and the same errors (field cases A16, A17, B8)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.reports import files
from tests.support.dag_runs import run_dags

pytestmark = [pytest.mark.timeout(400)]

CASES = {
    "good": {},
    "rank fails": {"arguments": '"--step-s=0.02", "--fail-at=7"', "name": "$(touch /tmp/never) 'x' \\" * 5},
    "gate fails": {"max_loss": 1.0},
    "nothing fits": {"steps": 0},
}
DAGS = ("plain_deferrable", "plain_blocking")
OWN = ("run_key", "checkpoint", "checkpoint_path", "digest", "html", "json", "uri", "spec_uri", "usd", "ettr_ratio")
OWN += ("evaluated_at_s",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("modes")


@pytest.fixture(scope="module")
def outcomes(folder):
    """What came of every case in both modes, by case and DAG."""
    wanted = [(case, dag) for case in CASES for dag in DAGS]
    results = run_dags(folder, [(dag, CASES[case]) for case, dag in wanted])
    return dict(zip(wanted, results, strict=True))


def _both(outcomes, case):
    return [outcomes[case, dag] for dag in DAGS]


def _run_directory(folder, outcome):
    return folder / "state" / "runs" / _value(outcome, "open_run/run_key", "open_run/return_value")["run_key"]


def _value(outcome, *keys):
    value = outcome["xcoms"][keys[-1]]
    return json.loads(value) if isinstance(value, str) else value


@pytest.mark.parametrize("dag", DAGS)
def test_a_good_run_succeeds_from_staging_to_report(outcomes, folder, dag):
    outcome = outcomes["good", dag]
    assert outcome["state"] == "success"
    assert set(outcome["tasks"].values()) == {"success"}
    report = files.read(_run_directory(folder, outcome) / "report.json")
    assert report.outcome == "succeeded"
    assert [attempt.num_steps_kept for attempt in report.attempts] == [12]
    assert report.evaluation is not None
    assert report.evaluation.passed


def test_both_modes_push_the_same_xcoms(outcomes):
    deferrable, blocking = _both(outcomes, "good")
    assert deferrable["xcoms"].keys() == blocking["xcoms"].keys()
    for key in deferrable["xcoms"]:
        task, _, name = key.partition("/")
        if name.startswith("_") or name in OWN or task == "report":
            continue
        mine, other = _value(deferrable, key), _value(blocking, key)
        if isinstance(mine, dict):
            mine, other = ({k: v for k, v in each.items() if k not in OWN} for each in (mine, other))
        assert mine == other, key


def test_multiple_outputs_are_pushed_key_by_key(outcomes):
    for outcome in _both(outcomes, "good"):
        assert _value(outcome, "run_gang/step") == 12
        assert _value(outcome, "run_gang/world_sizes") == [4]


def test_a_failed_rank_ends_both_modes_in_the_same_error(outcomes):
    (deferrable,), (blocking,) = (
        [each for each in outcome["failures"] if each["task_id"].endswith("run_gang")]
        for outcome in _both(outcomes, "rank fails")
    )
    assert deferrable["type"] == blocking["type"] == "GangFailedError"
    assert "giving up at step 7" in deferrable["message"]
    assert "rank 3" in deferrable["message"]
    assert _without_names(deferrable["message"]) == _without_names(blocking["message"])


def test_a_failed_gang_fails_the_run_and_is_released_and_reported(outcomes, folder):
    for outcome in _both(outcomes, "rank fails"):
        assert outcome["state"] == "failed"
        assert outcome["tasks"]["evaluate_checkpoint"] == "upstream_failed"
        assert outcome["tasks"]["release"] == outcome["tasks"]["report"] == "success"
        report = files.read(_run_directory(folder, outcome) / "report.json")
        assert report.outcome == "failed"
        assert "giving up at step 7" in report.attempts[0].fault.log_tail


def test_a_missed_gate_fails_the_run_in_both_modes_alike(outcomes):
    messages = []
    for outcome in _both(outcomes, "gate fails"):
        assert outcome["state"] == "failed"
        (failure,) = outcome["failures"]
        assert failure["type"] == "EvaluationGateError"
        messages.append(failure["message"])
    assert messages[0] == messages[1]
    assert "held-out loss 4.8800 at step 12 is above the gate 1.0" in messages[0]


def test_a_spec_error_fails_the_setup_and_starts_nothing(outcomes):
    for outcome in _both(outcomes, "nothing fits"):
        assert outcome["state"] == "failed"
        (failure,) = outcome["failures"]
        assert failure["task_id"].endswith("open_run")
        assert "budget.steps" in failure["message"]


def test_nothing_is_left_running(outcomes, folder):
    engine = LocalEngine(root=str(folder / "state" / "engines" / "local"))
    assert engine.topology().num_usable_slots == 4
    assert not Path("/tmp/never").exists()


def _without_names(message: str) -> str:
    return " ".join(word for word in message.split() if "ls-" not in word and "/" not in word)
