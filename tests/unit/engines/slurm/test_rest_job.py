from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.engines.slurm.rest_job import minor_of, submission
from airflow_llmsched.errors import LaunchError

PART: dict[str, str | None] = {
    "job-name": "ls-x-g1-a1",
    "comment": "llmsched:1:abc=",
    "output": "/shared/x.%j.log",
    "open-mode": "append",
    "chdir": "/shared",
    "export": "NONE",
    "dependency": "singleton",
    "no-requeue": None,
    "time": "1441",
    "nodes": "2",
    "ntasks-per-node": "1",
    "partition": "low",
    "constraint": "h100&ib",
    "gres": "gpu:h100:8",
    "exclusive": None,
    "cpus-per-task": "96",
    "mem": "1024M",
    "nodelist": "n[1-2]",
    "exclude": "n[7,9]",
}


def job(version: str, **more: str | None) -> dict[str, Any]:
    return dict(submission("#!/bin/bash\n", [{**PART, **more}], version=version)["job"])


def test_every_option_is_asked_for_in_the_old_dialect() -> None:
    assert submission("#!/bin/bash\n", [PART], version="v0.0.38") == {
        "script": "#!/bin/bash\n",
        "job": {
            "name": "ls-x-g1-a1",
            "comment": "llmsched:1:abc=",
            "standard_output": "/shared/x.%j.log",
            "open_mode": "append",
            "current_working_directory": "/shared",
            "environment": {"SLURM_GET_USER_ENV": "1"},
            "dependency": "singleton",
            "requeue": False,
            "time_limit": 1441,
            "nodes": "2-2",
            "tasks": 2,
            "tasks_per_node": 1,
            "partition": "low",
            "constraints": "h100&ib",
            "gres": "gpu:h100:8",
            "exclusive": "exclusive",
            "cpus_per_task": 96,
            "memory_per_node": 1024,
            "nodelist": "n[1-2]",
            "exclude_nodes": "n[7,9]",
        },
    }


def test_every_option_is_asked_for_in_the_typed_dialect() -> None:
    asked = job("v0.0.42", signal="B:USR1@600", switches="1@5", segment="4", requeue=None)
    assert asked["environment"] == ["SLURM_GET_USER_ENV=1"]
    assert asked["time_limit"] == {"set": True, "infinite": False, "number": 1441}
    assert (asked["tres_per_node"], asked["shared"], asked["open_mode"]) == ("gres/gpu:h100:8", ["none"], ["APPEND"])
    assert (asked["required_nodes"], asked["excluded_nodes"]) == (["n1", "n2"], ["n7", "n9"])
    assert (asked["kill_warning_signal"], asked["kill_warning_flags"]) == ("USR1", ["BATCH_JOB"])
    assert asked["kill_warning_delay"]["number"] == 600
    assert (asked["required_switches"]["number"], asked["wait_for_switch"], asked["segment_size"]) == (1, 300, 4)
    assert asked["requeue"] is True
    assert asked["script"] == "#!/bin/bash\n"


def test_words_changed_between_typed_versions() -> None:
    assert (job("v0.0.39")["tres_per_node"], job("v0.0.40")["tres_per_node"]) == ("gres:gpu:h100:8", "gres/gpu:h100:8")
    assert (job("v0.0.40")["exclusive"], job("v0.0.41")["shared"]) == (["true"], ["none"])


@pytest.mark.parametrize(
    ("version", "option", "value"),
    [
        ("v0.0.38", "signal", "B:USR1@600"),
        ("v0.0.38", "switches", "1"),
        ("v0.0.38", "segment", "4"),
        ("v0.0.41", "segment", "4"),
        ("v0.0.42", "colour", "red"),
    ],
)
def test_what_a_version_cannot_ask_for_is_refused_not_left_out(version: str, option: str, value: str) -> None:
    with pytest.raises(LaunchError, match=f"{version} cannot ask for --{option}"):
        job(version, **{option: value})


@pytest.mark.parametrize(("version", "has_script"), [("v0.0.38", False), ("v0.0.42", True)])
def test_parts_of_a_heterogeneous_job_have_what_sbatch_takes_from_the_first(version: str, has_script: bool) -> None:
    body = submission("#!/bin/bash\n", [PART, {"nodes": "1", "nodelist": "m1"}], version=version)
    first, second = body["jobs"]
    assert second["name"] == first["name"] == "ls-x-g1-a1"
    taken_over = ("environment", "comment", "requeue", "time_limit", "current_working_directory")
    assert [second[name] for name in taken_over] == [first[name] for name in taken_over]
    assert "partition" not in second
    assert ("script" in first, "script" in body, "script" in second) == (has_script, not has_script, False)


@pytest.mark.parametrize("version", ["", "38", "v0.0.38/../..", "v1.0.0"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="no version"):
        minor_of(version)
