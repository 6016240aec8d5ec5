"""Checks of a node's accelerators and of the links between them, by what its own tools say."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from airflow_llmsched.trainers.preflight.words import bad, ok, skipped

TOOL_LIMIT_S = 30.0
"""How long a tool may take. A driver that hangs is as good as a broken device."""

BUSY_BYTES = 2 * 1024**3
"""Memory in use beyond which somebody else is on the device: a driver by itself holds less."""

_FIELDS = (
    "index",
    "memory.used",
    "ecc.errors.uncorrected.volatile.total",
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
)
"""Names of ``nvidia-smi --help-query-gpu``."""


def check_devices(*, vendor: str, slots: Sequence[int]) -> list[dict[str, Any]]:
    """Check the accelerators that this node's ranks are to have, and the links between them."""
    if vendor == "nvidia":
        return [_nvidia(slots), _nvlink(slots)]
    if vendor == "amd":
        return [_amd(slots)]
    return [skipped("accelerators", f"no tool is known for accelerators of {vendor or 'no vendor'}")]


def _nvidia(slots: Sequence[int]) -> dict[str, Any]:
    name = "accelerators"
    answer = run_tool(["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"])
    if isinstance(answer, str):
        return bad(name, answer)
    rows = {}
    for text in answer.stdout.splitlines():
        fields = [field.strip() for field in text.split(",")]
        if len(fields) == len(_FIELDS) and fields[0].isdigit():
            rows[int(fields[0])] = fields
    missing = sorted(set(slots) - set(rows))
    if missing:
        return bad(name, f"nvidia-smi shows {len(rows)} GPUs; {missing} of those wanted are not among them")
    troubles = [trouble for slot in slots for trouble in _nvidia_troubles(slot, rows[slot])]
    return bad(name, "; ".join(troubles)) if troubles else ok(name, f"{len(slots)} GPUs")


def _nvidia_troubles(slot: int, fields: Sequence[str]) -> list[str]:
    _, used_mib, ecc, thermal, brake = fields
    troubles = []
    if used_mib.isdigit() and int(used_mib) * 1024**2 > BUSY_BYTES:
        troubles.append(f"GPU {slot} has {used_mib} MiB in use by somebody else")
    if ecc.isdigit() and int(ecc) > 0:
        troubles.append(f"GPU {slot} had {ecc} uncorrected memory errors since its driver was loaded")
    if thermal == "Active":
        troubles.append(f"GPU {slot} is slowed down by its own heat")
    if brake == "Active":
        troubles.append(f"GPU {slot} is slowed down by its power supply")
    return troubles


def _nvlink(slots: Sequence[int]) -> dict[str, Any]:
    name = "accelerator_links"
    answer = run_tool(["nvidia-smi", "nvlink", "--status"])
    if isinstance(answer, str):
        return skipped(name, answer)
    num_active: dict[int, int] = {}
    gpu = None
    for text in answer.stdout.splitlines():
        heading = re.match(r"GPU (\d+):", text)
        if heading:
            gpu = int(heading[1])
            num_active[gpu] = 0
        elif gpu is not None and re.match(r"\s*Link \d+:\s*[\d.]+ GB/s", text):
            num_active[gpu] += 1
    links = {slot: num_active.get(slot, 0) for slot in slots}
    most = max(links.values(), default=0)
    if not most:
        return skipped(name, "the GPUs have no NVLink")
    short = [f"GPU {slot} has {count}" for slot, count in links.items() if count < most]
    if short:
        return bad(name, f"{', '.join(short)} of {most} NVLinks up", value=min(links.values()), unit="links")
    return ok(name, value=most, unit="links")


def _amd(slots: Sequence[int]) -> dict[str, Any]:
    name = "accelerators"
    answer = run_tool(["rocm-smi", "--showuniqueid"])
    if isinstance(answer, str):
        return bad(name, answer)
    seen = {int(number) for number in re.findall(r"^GPU\[(\d+)\]", answer.stdout, re.MULTILINE)}
    missing = sorted(set(slots) - seen)
    if missing:
        return bad(name, f"rocm-smi shows {len(seen)} GPUs; {missing} of those wanted are not among them")
    return ok(name, f"{len(slots)} GPUs")


def run_tool(argv: Sequence[str], *, limit_s: float = TOOL_LIMIT_S) -> subprocess.CompletedProcess[str] | str:
    """Run a tool of the node's own; return why not, in words, where it is absent, fails or hangs."""
    if shutil.which(argv[0]) is None:
        return f"{argv[0]} is not installed"
    try:
        answer = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"{argv[0]} did not answer within {limit_s:.0f} s"
    except OSError as error:
        return f"{argv[0]} cannot be run: {error}"
    if answer.returncode != 0:
        words = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
        return f"{argv[0]} failed with code {answer.returncode}: {words[-1] if words else 'no word'}"
    return answer
