"""The whole pipeline on a real Slurm cluster: one line of the DAG is another, and a preempted run goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.engines.slurm.opening import open_slurm
from airflow_llmsched.reports import files
from tests.support.dag_runs import run_dags
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_engine import SlurmHarness
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]


@pytest.fixture
def harness(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(slurm)
    options = {**harness.options, "slurm_conf": str(slurm.conf), "node_shape": "local-cpu"}
    assert open_slurm(**options).topology().num_usable_slots == 8
    monkeypatch.setenv("TEST_SLURM", json.dumps(options))
    yield harness
    harness.close()


def _run_in_background(folder: Path, conf: dict[str, Any]) -> tuple[threading.Thread, list[dict[str, Any]]]:
    outcomes: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: outcomes.extend(run_dags(folder, [("plain_on_slurm", conf)], limit_s=360)))
    thread.start()
    return thread, outcomes


def _steps_saved(folder: Path) -> set[int]:
    seals = folder.glob("state/**/step-*/llmsched-seal.json")
    return {int(seal.parent.name.removeprefix("step-")) for seal in seals}


def test_preempted_run_saves_at_the_notice_and_goes_on_from_there(
    harness: SlurmHarness, slurm: SlurmCluster, tmp_path: Path
) -> None:
    slurm.call("scontrol", "update", "partition=small", "gracetime=3")
    hold = tmp_path / "hold"
    arguments = ["--step-s=0.02", "--hears-notices", "--hold-at=8", f"--hold={hold}"]
    conf = {"arguments": ", ".join(json.dumps(each) for each in arguments), "max_ranks": 4}
    thread, outcomes = _run_in_background(tmp_path, conf)
    try:
        wait_until(lambda: 5 in _steps_saved(tmp_path) or not thread.is_alive(), 240, poll_s=0.2)
        (name,) = (path.name for path in (harness.root / "gangs").iterdir())
        job_id = json.loads(harness.gang(name).job.read_text())["job_id"]
        taken = slurm.call("squeue", "--noheader", f"--jobs={job_id}", "--format=%B").strip()
        argv = [
            "sbatch",
            "--parsable",
            "--output=/dev/null",
            "--partition=small-high",
            f"--nodelist={taken}",
            "--gres=gpu:2",
        ]
        slurm.call(*argv, stdin="#!/bin/bash\nsleep 600\n")
        wait_until(lambda: len(list((harness.root / "gangs").iterdir())) > 1 or not thread.is_alive(), 240, poll_s=0.2)
        hold.touch()
    finally:
        hold.touch()
        thread.join()
    (outcome,) = outcomes
    assert outcome["state"] == "success", outcome["failures"]
    (report_file,) = tmp_path.glob("state/runs/*/report.json")
    report = files.read(report_file)
    assert report.outcome == "succeeded"
    first, second = report.attempts
    assert first.fault is not None
    assert first.fault.kind == "preempted"
    assert (first.num_steps_kept, second.num_steps_kept) == (8, 4)
    assert second.resumed_from_step == 8
