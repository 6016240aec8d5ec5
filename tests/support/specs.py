"""A small sound spec that tests change one thing at a time."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import settings

from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs import loader

steady = settings(deadline=None, derandomize=True)
"""For properties: the same examples every time, however busy the machine is."""

SMALL: dict[str, Any] = {
    "version": 1,
    "name": "small",
    "model": "byte-gpt-1m",
    "data": {"kind": "python_stdlib"},
    "batch": {"sequence_length": 128, "global_batch": "32 sequences"},
    "budget": {"steps": 10},
}

_DROP = object()
DROP: Any = _DROP


def small(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the small spec with values set (or, with ``DROP``, removed) by dotted path."""
    spec = copy.deepcopy(SMALL)
    for dotted, value in (changes or {}).items():
        *parents, last = dotted.split(".")
        block = spec
        for part in parents:
            block = block.setdefault(part, {})
        if value is _DROP:
            block.pop(last, None)
        else:
            block[last] = value
    return spec


def load_small(changes: dict[str, Any] | None = None) -> WorkloadSpec:
    return loader.from_mapping(small(changes))


def errors_of(changes: dict[str, Any]) -> dict[str, SpecError]:
    """Return the errors of the changed small spec by path; empty when it loads."""
    try:
        load_small(changes)
    except SpecError as error:
        return {each.path: each for each in error.errors}
    return {}
