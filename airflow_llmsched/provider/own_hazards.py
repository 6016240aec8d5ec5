"""Hazards of spot capacity that are fitted to traces of one's own, in place of those that come with the package."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from airflow_llmsched import codec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.forecast import AvailabilityTrace, HazardModel, fit
from airflow_llmsched.units import MIB

MAX_BYTES = 64 * MIB


def fitted_hazards(file: str) -> HazardModel:
    """Return the model of the traces in a file: a JSON list of ``{"tick_s", "up", "start_s", "num_nodes"}``.

    ``up`` has a 1 for each tick at which the pool had room for ``num_nodes`` together (one, where it is left out; all
    traces are of the same count), else a 0; ``start_s`` (Unix seconds) may be left out, and the trace then says nothing
    of hours of the day. The file is fitted once as long as it stays the same.

    Raises:
        SpecError: it cannot be read, or is no such list, or nothing in it ever changes, or the counts differ.
    """
    try:
        stat = Path(file).stat()
        if stat.st_size > MAX_BYTES:
            raise SpecError(path="capacity.traces", value=file, hint=f"has more than {MAX_BYTES // MIB} MiB")
        return _fitted(file, stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError) as error:
        raise SpecError(path="capacity.traces", value=file, hint=f"cannot be read: {error}") from error


@lru_cache(maxsize=4)
def _fitted(file: str, _changed_ns: int, _num_bytes: int) -> HazardModel:
    told = codec.parse_json(Path(file).read_text(encoding="utf-8"))
    if not isinstance(told, list):
        raise SpecError(path="capacity.traces", value=file, hint="must be a list of traces")
    try:
        return fit([_trace(each, number) for number, each in enumerate(told)])
    except SpecError as error:
        raise SpecError(path="capacity.traces", value=file, hint=f"{error.path}: {error.hint}") from error


def _trace(told: Any, number: int) -> AvailabilityTrace:
    if not isinstance(told, dict) or not {"tick_s", "up"} <= set(told) <= {"tick_s", "up", "start_s", "num_nodes"}:
        raise SpecError(path=f"[{number}]", hint="must have tick_s and up, and may have start_s and num_nodes")
    up, tick_s, start_s, num_nodes = told["up"], told["tick_s"], told.get("start_s"), told.get("num_nodes", 1)
    if not isinstance(up, list) or len(up) < 2 or not set(map(str, up)) <= {"0", "1"}:
        raise SpecError(path=f"[{number}].up", hint="must be a list of 0 and 1, two at least")
    for name, value in (("tick_s", tick_s), ("start_s", start_s)):
        if (name == "tick_s" or value is not None) and not _is_positive(value):
            raise SpecError(path=f"[{number}].{name}", value=value, hint="must be seconds, above 0")
    if not isinstance(num_nodes, int) or isinstance(num_nodes, bool) or num_nodes < 1:
        raise SpecError(path=f"[{number}].num_nodes", value=num_nodes, hint="must be a count of nodes, 1 at least")
    return AvailabilityTrace(float(tick_s), np.array(up, dtype=np.bool_), start_s, num_nodes)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
