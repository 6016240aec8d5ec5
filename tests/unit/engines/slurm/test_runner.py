from __future__ import annotations

import json
import sys
import time

import pytest

from airflow_llmsched.engines.slurm.runner import LocalRunner
from airflow_llmsched.errors import CouldNotLookError

_TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], sys.stdin.read(), dict(os.environ)]))"


def test_command_gets_its_arguments_and_its_input_as_they_are() -> None:
    arguments = ["a b", "", "$(false)", 'it\'s "q"', "line\nline", "ü"]
    done = LocalRunner().run([sys.executable, "-S", "-c", _TELL, *arguments], stdin="#!/bin/sh\nü", limit_s=60.0)
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)[:2] == [arguments, "#!/bin/sh\nü"]


def test_workers_secrets_and_settings_do_not_reach_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AIRFLOW__CORE__FERNET_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "SBATCH_PARTITION",
        "SQUEUE_FORMAT",
        "SLURM_JOB_ID",
    ):
        monkeypatch.setenv(name, "not for you")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("SLURM_CONF", "/etc/of/mine")
    runner = LocalRunner(environment={"SLURM_TIME_FORMAT": "%s"})
    said = json.loads(runner.run([sys.executable, "-S", "-c", _TELL], limit_s=60.0).stdout)[2]
    assert "not for you" not in said.values()
    assert (said["LC_ALL"], said["SLURM_CONF"], said["SLURM_TIME_FORMAT"]) == ("C.UTF-8", "/etc/of/mine", "%s")


def test_exit_code_and_both_outputs_come_back() -> None:
    done = LocalRunner().run(["sh", "-c", "echo out; echo err >&2; exit 3"], limit_s=60.0)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_command_that_does_not_answer_in_time_is_ended_and_nothing_is_known() -> None:
    began_s = time.monotonic()
    with pytest.raises(CouldNotLookError, match=r"sleep did not answer within 0\.2 s"):
        LocalRunner().run(["sleep", "600"], limit_s=0.2)
    assert time.monotonic() - began_s < 300.0


def test_command_that_is_not_there_is_not_an_empty_answer() -> None:
    with pytest.raises(CouldNotLookError, match="is Slurm's client installed"):
        LocalRunner().run(["squeue-of-nowhere"], limit_s=60.0)
