"""What a DAG file pays for our operators: no SDK, and next to no time. Each measurement is a process of its own.

Time is that of the processor, so that whatever else runs on the machine does not count.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import textwrap

import pytest

from tests.support.source import ROOT, dotted, modules

HEAVY = ("kubernetes", "boto3", "botocore", "google", "azure", "torch", "ortools", "sklearn", "plotly", "obstore")
MAX_ADDED_S = 0.060
NUM_RUNS = 5

PROGRAM = textwrap.dedent("""
    import importlib, json, sys, time
    import airflow.sdk
    loaded, start_s = {}, time.process_time()
    for name in json.loads(sys.argv[1]):
        before = set(sys.modules)
        importlib.import_module(name)
        loaded[name] = sorted(set(sys.modules) - before)
    print(json.dumps({"added_s": time.process_time() - start_s, "loaded": loaded}))
""")


def _parse_time_modules() -> list[str]:
    """What a DAG file imports: operators, sensors, hooks and the task group that wires them."""
    folders = ("operators", "sensors", "hooks", "task_group.py")
    return [
        dotted(module)
        for module in modules()
        if any(module.is_relative_to(f"airflow_llmsched/provider/{folder}") for folder in folders)
    ]


def _measure(names: list[str]) -> dict:
    argv = [sys.executable, "-c", PROGRAM, json.dumps(names)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_what_a_dag_file_needs_loads_no_sdk():
    names = _parse_time_modules()
    assert "airflow_llmsched.provider.operators" in names
    heavy = {
        name: sorted({each.split(".")[0] for each in loaded} & set(HEAVY))
        for name, loaded in _measure(names)["loaded"].items()
    }
    assert {name: found for name, found in heavy.items() if found} == {}


@pytest.mark.timeout(300)
def test_the_operators_add_less_than_60_ms_to_airflow_sdk():
    names = [name for name in _parse_time_modules() if name.startswith("airflow_llmsched.provider.operators")]
    _measure(names)  # writes the bytecode, should it be missing
    runs = [_measure(names) for _ in range(NUM_RUNS)]
    median_s = statistics.median(run["added_s"] for run in runs)
    assert median_s < MAX_ADDED_S, f"{median_s * 1000:.0f} ms; loads {runs[0]['loaded']}"
