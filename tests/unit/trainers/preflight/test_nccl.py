"""nccl-tests are stood in for by a script that prints their summary: they need GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.trainers.preflight.nccl import check_nccl

SUMMARY = "# Out of bounds values : {wrong} OK\n# Avg bus bandwidth    : {rate}\n#"


@pytest.fixture
def program(tmp_path: Path):
    def make(output: str, code: int = 0) -> str:
        path = tmp_path / "all_reduce_perf"
        path.write_text(f"#!/bin/sh\necho \"$*\" > {tmp_path}/asked\ncat <<'END'\n{output}\nEND\nexit {code}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_the_mean_bus_bandwidth_is_what_was_measured(program, tmp_path: Path) -> None:
    found = check_nccl(program(SUMMARY.format(wrong=0, rate="361.42")), num_gpus=8)
    assert (found["outcome"], found["value"], found["unit"]) == ("ok", 361.42e9, "bytes/s")
    assert "-g 8" in (tmp_path / "asked").read_text()


def test_wrong_values_speak_against_the_node(program) -> None:
    found = check_nccl(program(SUMMARY.format(wrong=12, rate="300")), num_gpus=8)
    assert (found["outcome"], found["detail"]) == ("bad", "12 values are wrong")


def test_a_run_that_fails_or_says_nothing_is_bad(program) -> None:
    assert check_nccl(program("unhandled cuda error", 3), num_gpus=2)["detail"].endswith("code 3: unhandled cuda error")
    assert "printed no result" in check_nccl(program("nothing"), num_gpus=2)["detail"]
