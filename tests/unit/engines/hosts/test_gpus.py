from __future__ import annotations

from pathlib import Path

from airflow_llmsched.engines.hosts import gpus


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_host_without_the_program_says_so() -> None:
    said = gpus.look(program="no-such-smi")
    assert said["num_healthy"] == 0
    assert "no-such-smi is not there" in said["trouble"]


def test_healthy_gpus_are_counted_and_ill_ones_named(tmp_path: Path) -> None:
    text = "0, GPU-1a, 0\\n1, GPU-1b, 3\\n2, GPU-1c, [N/A]\\n"
    said = gpus.look(program=script(tmp_path / "smi", f'case "$*" in *query-gpu=*) printf "{text}";; esac'))
    assert said == {"num_healthy": 2, "trouble": "GPU 1 has 3 uncorrected memory errors"}


def test_program_that_fails_is_quoted(tmp_path: Path) -> None:
    said = gpus.look(program=script(tmp_path / "smi", "echo Failed to initialize NVML; exit 9"))
    assert said["num_healthy"] == 0
    assert "code 9" in said["trouble"]
    assert "Failed to initialize NVML" in said["trouble"]
    nobody = tmp_path / "not-executable"
    nobody.write_text("")
    assert "gave no answer" in gpus.look(program=str(nobody))["trouble"]
