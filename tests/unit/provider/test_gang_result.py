from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.control.context import Succeeded
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import NodeReport
from airflow_llmsched.provider.gang_result import gang_result, last_loss
from airflow_llmsched.provider.gang_run import GangSettings, open_driver
from tests.support.history import attempt, step


def _attempt(folder, number, *losses):
    """An attempt whose rank 0 reported these losses, two steps a line."""
    root = folder / str(number)
    (root / "up").mkdir(parents=True)
    steps = [step(index, index, index + 1.0, loss=loss) for index, loss in enumerate(losses, start=1)]
    lines = [
        codec.to_json(NodeReport(node=NodeId("node-0"), seq=seq, at_s=0.0, steps=tuple(steps[2 * (seq - 1) : 2 * seq])))
        for seq in range(1, len(steps) // 2 + 2)
    ]
    (root / "up" / "node-0.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return replace(attempt(number), channel_root=str(root))


def test_the_loss_is_that_of_the_highest_step_of_the_last_attempt_that_trained(tmp_path):
    attempts = (_attempt(tmp_path, 1, 5.0, 4.0, 3.0), _attempt(tmp_path, 2, 2.5, 2.0, 1.5), _attempt(tmp_path, 3))
    assert last_loss(attempts) == 1.5
    assert last_loss(attempts[:1]) == 3.0
    assert last_loss(attempts[2:]) is None
    assert last_loss(()) is None


def test_a_diverged_loss_is_none_because_nan_is_no_json(tmp_path):
    # A report of NaN reads back as such only where the agent wrote it so; the codec writes null.
    attempts = (_attempt(tmp_path, 1, 5.0, 4.0),)
    path = tmp_path / "1" / "up" / "node-0.jsonl"
    path.write_text(path.read_text().replace('"loss":4.0', '"loss":NaN'))
    assert last_loss(attempts) is None


@pytest.fixture
def driver(pipeline):
    pipeline.prepare()
    pipeline.result = pipeline.run("run_gang")
    return open_driver(
        GangSettings(scope=pipeline.scope, engine="local", engine_options=pipeline.options, owner="reader")
    )


def test_the_result_is_small_json_with_the_checkpoints_digest(driver, pipeline):
    outcome = driver.start()
    result = gang_result(driver, outcome, DcpFormat())
    assert result == {name: value for name, value in pipeline.result.items() if name != "run_key"}
    assert len(json.dumps(result, allow_nan=False)) < 1024
    assert math.isfinite(result["loss"])


def test_a_checkpoint_that_is_damaged_by_now_has_no_digest(driver):
    outcome = driver.start()
    for path in Path(outcome.checkpoint.path).glob("*.distcp"):
        path.write_bytes(b"")
    assert gang_result(driver, outcome, DcpFormat())["digest"] is None


def test_a_trainer_that_saves_nothing_has_neither_checkpoint_nor_digest(driver):
    outcome = Succeeded(checkpoint=None, last_step=None, num_attempts=1)
    result = gang_result(driver, outcome, DcpFormat())
    assert (result["checkpoint"], result["checkpoint_step"], result["digest"], result["step"]) == (None,) * 4
