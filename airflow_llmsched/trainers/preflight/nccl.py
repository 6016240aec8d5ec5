"""The links inside a node as nccl-tests measure them, where its ``all_reduce_perf`` is installed."""

from __future__ import annotations

import re
from typing import Any

from airflow_llmsched.trainers.preflight.devices import run_tool
from airflow_llmsched.trainers.preflight.words import bad, ok

_LIMIT_S = 120.0


def check_nccl(program: str, *, num_gpus: int) -> dict[str, Any]:
    """Run it over the node's GPUs and check its sums. The value is the mean bus bandwidth in bytes/s."""
    name = "nccl_tests"
    argv = [program, "-b", "1M", "-e", "256M", "-f", "4", "-g", str(num_gpus), "-c", "1"]
    answer = run_tool(argv, limit_s=_LIMIT_S)
    if isinstance(answer, str):
        return bad(name, answer)
    wrong = re.search(r"# Out of bounds values\s*:\s*(\d+)", answer.stdout)
    mean = re.search(r"# Avg bus bandwidth\s*:\s*([\d.]+)", answer.stdout)
    if wrong is None or mean is None:
        return bad(name, f"{program} printed no result")
    rate = float(mean[1]) * 1e9
    if int(wrong[1]):
        return bad(name, f"{wrong[1]} values are wrong", value=rate, unit="bytes/s")
    return ok(name, value=rate, unit="bytes/s")
