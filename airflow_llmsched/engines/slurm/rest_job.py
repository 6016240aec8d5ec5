"""From sbatch's options to what slurmrestd takes: it reads no ``#SBATCH`` lines. Pure.

Two dialects. Up to v0.0.38 (Slurm 22.05) most values are texts. Some of what is taken is in no documentation
(``nodelist``, ``exclude_nodes``, ``exclusive`` as the word ``exclusive``), and an array as ``nodes``, which is
documented, asks for one node: all tried on 22.05.8. From v0.0.39 on values are typed, as the OpenAPI documents of 23.02
to 25.05 have them; those were read, not tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_llmsched.errors import LaunchError
from airflow_llmsched.topology.nodelist import expand

JsonDict = dict[str, Any]

_VERSION = re.compile(r"v0\.0\.([0-9]{2})")
_FIRST_TYPED = 39
_FIRST_WITH_SHARED = 41
_FIRST_WITH_SEGMENTS = 42
_FIRST_WITH_SCRIPT_INSIDE = 40

_OF_THE_WHOLE = ("name", "environment", "current_working_directory", "comment", "requeue", "time_limit")
"""What sbatch has all parts of a job take over from the first one."""

_LOGIN_ENVIRONMENT = "SLURM_GET_USER_ENV=1"
"""What sbatch sets for ``--export=NONE``: the node then makes the environment that the user would log in to."""


def minor_of(version: str) -> int:
    """Return the last number of an API version. Raises ``ValueError`` for what is none."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"{version!r} is no version of slurmrestd's API: they look like v0.0.38")
    return int(found[1])


def submission(script: str, parts: Sequence[Mapping[str, str | None]], *, version: str) -> JsonDict:
    """Return the body that submits a job of these parts. Raises ``LaunchError`` for what the version cannot ask for."""
    minor = minor_of(version)
    jobs = [_job(part, minor, version) for part in parts]
    jobs[1:] = [{**{name: jobs[0][name] for name in _OF_THE_WHOLE if name in jobs[0]}, **job} for job in jobs[1:]]
    if minor >= _FIRST_WITH_SCRIPT_INSIDE:
        jobs[0]["script"] = script
        return {"job": jobs[0]} if len(jobs) == 1 else {"jobs": jobs}
    return {"script": script, "job": jobs[0]} if len(jobs) == 1 else {"script": script, "jobs": jobs}


def _job(options: Mapping[str, str | None], minor: int, version: str) -> JsonDict:
    job: JsonDict = {}
    for option, value in options.items():
        table = _TYPED if minor >= _FIRST_TYPED else _TEXTS
        if option not in table or (option == "segment" and minor < _FIRST_WITH_SEGMENTS):
            raise LaunchError(
                f"slurmrestd's API {version} cannot ask for --{option}: leave that option of the engine out, "
                "or have it use sbatch, on this machine or over SSH"
            )
        job |= table[option](value or "", minor)
    return job


Ask = Callable[[str, int], JsonDict]


def _as(name: str) -> Ask:
    return lambda value, _: {name: value}


def _number(name: str) -> Ask:
    return lambda value, _: {name: int(value)}


def _maybe_number(name: str) -> Ask:
    return lambda value, _: {name: _set(int(value))}


def _set(number: int) -> JsonDict:
    return {"set": True, "infinite": False, "number": number}


def _gres(value: str, minor: int) -> JsonDict:
    between = "/" if minor >= _FIRST_WITH_SCRIPT_INSIDE else ":"
    return {"tres_per_node": f"gres{between}{value}"}


def _exclusive(_value: str, minor: int) -> JsonDict:
    return {"shared": ["none"]} if minor >= _FIRST_WITH_SHARED else {"exclusive": ["true"]}


def _signal(value: str, _minor: int) -> JsonDict:
    whom, _, rest = value.rpartition(":")
    signal, _, seconds = rest.partition("@")
    flags = {"kill_warning_flags": ["BATCH_JOB"]} if whom == "B" else {}
    return {"kill_warning_signal": signal, "kill_warning_delay": _set(int(seconds)), **flags}


def _switches(value: str, _minor: int) -> JsonDict:
    count, _, minutes = value.partition("@")
    wait = {"wait_for_switch": int(minutes) * 60} if minutes else {}
    return {"required_switches": _set(int(count)), **wait}


_BOTH: dict[str, Ask] = {
    "job-name": _as("name"),
    "comment": _as("comment"),
    "output": _as("standard_output"),
    "chdir": _as("current_working_directory"),
    "dependency": _as("dependency"),
    "requeue": lambda _value, _minor: {"requeue": True},
    "no-requeue": lambda _value, _minor: {"requeue": False},
    "ntasks-per-node": _number("tasks_per_node"),
    "partition": _as("partition"),
    "account": _as("account"),
    "qos": _as("qos"),
    "reservation": _as("reservation"),
    "constraint": _as("constraints"),
    "cpus-per-task": _number("cpus_per_task"),
}
_TEXTS: dict[str, Ask] = {
    **_BOTH,
    "open-mode": _as("open_mode"),
    "export": lambda _value, _minor: {"environment": dict([_LOGIN_ENVIRONMENT.split("=")])},
    "time": _number("time_limit"),
    "nodes": lambda value, _minor: {"nodes": f"{value}-{value}", "tasks": int(value)},
    "gres": _as("gres"),
    "exclusive": lambda _value, _minor: {"exclusive": "exclusive"},
    "mem": lambda value, _minor: {"memory_per_node": int(value.removesuffix("M"))},
    "nodelist": _as("nodelist"),
    "exclude": _as("exclude_nodes"),
}
_TYPED: dict[str, Ask] = {
    **_BOTH,
    "open-mode": lambda value, _minor: {"open_mode": [value.upper()]},
    "export": lambda _value, _minor: {"environment": [_LOGIN_ENVIRONMENT]},
    "time": _maybe_number("time_limit"),
    "signal": _signal,
    "nodes": lambda value, _minor: {"nodes": value, "tasks": int(value)},
    "gres": _gres,
    "exclusive": _exclusive,
    "mem": lambda value, _minor: {"memory_per_node": _set(int(value.removesuffix("M")))},
    "nodelist": lambda value, _minor: {"required_nodes": list(expand(value))},
    "exclude": lambda value, _minor: {"excluded_nodes": list(expand(value))},
    "switches": _switches,
    "segment": _number("segment_size"),
}
