"""What the host itself says of its GPUs. Runs on the host, standard library only."""

from __future__ import annotations

import subprocess
from typing import Any

_PROGRAM = "nvidia-smi"
_QUERY = "index,uuid,ecc.errors.uncorrected.volatile.total"
_LIMIT_S = 15.0


def look(*, program: str = _PROGRAM) -> dict[str, Any]:
    """Return how many GPUs are healthy (``num_healthy``) and what is wrong (``trouble``, empty when nothing is).

    A host without the driver's program says so: that is not the same as a host without GPUs.
    """
    try:
        done = subprocess.run(
            [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        return {"num_healthy": 0, "trouble": f"{program} is not there: no driver, or not on the PATH"}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"num_healthy": 0, "trouble": f"{program} gave no answer: {error}"}
    if done.returncode != 0:
        return {"num_healthy": 0, "trouble": f"{program} ended with code {done.returncode}: {_first(done)}"}
    return judge(done.stdout)


def judge(text: str) -> dict[str, Any]:
    """Return the same from what the program wrote: a line ``index, uuid, uncorrected ECC errors`` for each GPU. Pure.

    A GPU without ECC has ``[N/A]`` there.
    """
    healthy, ill = 0, []
    for line in text.splitlines():
        index, _, rest = line.partition(",")
        errors = rest.rpartition(",")[2].strip()
        if errors.isdigit() and int(errors) > 0:
            ill.append(f"GPU {index.strip()} has {errors} uncorrected memory errors")
        elif line.strip():
            healthy += 1
    return {"num_healthy": healthy, "trouble": "; ".join(ill)}


def _first(done: subprocess.CompletedProcess[str]) -> str:
    return next(iter((done.stdout + done.stderr).strip().splitlines()), "no word")[:200]
