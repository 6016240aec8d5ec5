from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from airflow_llmsched.agent import launch
from tests.support.launching import starts


@pytest.mark.parametrize("launcher", ["plain", "torchrun"])
def test_nothing_of_the_environment_is_in_an_argument_list(launcher: str) -> None:
    for start in starts("n0", {"SECRET": "tell-no-one"}, launcher=launcher, environment={"OTHER": "tell-no-one"}):
        assert not [part for part in start.argv if "tell-no-one" in part]


def test_spawned_process_has_a_group_of_its_own_and_its_output_in_the_log(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getpgid(0) == os.getpid(), sys.stdin.read() == ''); sys.stderr.write('err')"
    log = tmp_path / "launcher.log"
    pid = launch.spawn(launch.Start([sys.executable, "-S", "-c", program], {}), log=log)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sorted(log.read_text().split()) == ["True", "True", "err"] or "True True" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
