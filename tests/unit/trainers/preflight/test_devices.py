"""The tools are stood in for by scripts that print what the real ones do: no machine here has such devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.trainers.preflight.devices import check_devices, run_tool

GOOD = ("0, 4, 0, Not Active, Not Active", "1, 4, 0, Not Active, Not Active")
LINKS = (
    *("GPU 0: NVIDIA H100 (UUID: GPU-1)", "\t Link 0: 26.562 GB/s", "\t Link 1: 26.562 GB/s"),
    *("GPU 1: NVIDIA H100 (UUID: GPU-2)", "\t Link 0: 26.562 GB/s", "\t Link 1: 26.562 GB/s"),
)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a script under a tool's name where it is found first."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return put


def nvidia(tool, *, rows=GOOD, links=LINKS) -> None:
    said = "\n".join(rows)
    linked = "\n".join(links)
    tool("nvidia-smi", f"if [ \"$1\" = nvlink ]; then cat <<'END'\n{linked}\nEND\nelse cat <<'END'\n{said}\nEND\nfi")


def outcomes(slots=(0, 1), vendor="nvidia"):
    return {check["name"]: (check["outcome"], check["detail"]) for check in check_devices(vendor=vendor, slots=slots)}


def test_healthy_gpus_pass(tool) -> None:
    nvidia(tool)
    assert outcomes() == {"accelerators": ("ok", "2 GPUs"), "accelerator_links": ("ok", "")}


def test_a_gpu_that_has_fallen_off_the_bus_is_named(tool) -> None:
    nvidia(tool, rows=GOOD[:1])
    assert outcomes()["accelerators"] == ("bad", "nvidia-smi shows 1 GPUs; [1] of those wanted are not among them")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1, 40000, 0, Not Active, Not Active", "40000 MiB in use by somebody else"),
        ("1, 4, 3, Not Active, Not Active", "3 uncorrected memory errors"),
        ("1, 4, 0, Active, Not Active", "slowed down by its own heat"),
        ("1, 4, 0, Not Active, Active", "slowed down by its power supply"),
    ],
)
def test_a_gpu_in_trouble_speaks_against_its_node(tool, row: str, words: str) -> None:
    nvidia(tool, rows=(GOOD[0], row))
    outcome, detail = outcomes()["accelerators"]
    assert outcome == "bad"
    assert detail.startswith("GPU 1 ")
    assert words in detail


def test_a_gpu_without_error_counters_is_no_trouble(tool) -> None:
    nvidia(tool, rows=(GOOD[0], "1, 4, [N/A], [N/A], [N/A]"))
    assert outcomes()["accelerators"][0] == "ok"


def test_a_gpu_with_a_link_down_speaks_against_its_node(tool) -> None:
    nvidia(tool, links=(*LINKS[:-1], "\t Link 1: <inactive>"))
    assert outcomes()["accelerator_links"] == ("bad", "GPU 1 has 1 of 2 NVLinks up")


def test_gpus_without_nvlink_are_not_held_to_it(tool) -> None:
    nvidia(tool, links=())
    assert outcomes()["accelerator_links"] == ("skipped", "the GPUs have no NVLink")


def test_a_missing_or_failing_tool_is_said(tool) -> None:
    assert outcomes()["accelerators"] == ("bad", "nvidia-smi is not installed")
    tool("nvidia-smi", "echo no devices were found >&2; exit 6")
    assert outcomes()["accelerators"] == ("bad", "nvidia-smi failed with code 6: no devices were found")


def test_a_driver_that_hangs_is_not_waited_for(tool) -> None:
    tool("nvidia-smi", "exec sleep 60")
    assert run_tool(["nvidia-smi"], limit_s=0.1) == "nvidia-smi did not answer within 0 s"


def test_amd_devices_are_counted(tool) -> None:
    tool("rocm-smi", "printf 'GPU[0]\\t\\t: Unique ID: 0x1\\nGPU[1]\\t\\t: Unique ID: 0x2\\n'")
    assert outcomes(vendor="amd") == {"accelerators": ("ok", "2 GPUs")}
    assert outcomes(vendor="amd", slots=range(3))["accelerators"][0] == "bad"


def test_without_a_known_tool_nothing_is_held_against_a_node() -> None:
    assert outcomes(vendor="")["accelerators"][0] == "skipped"
