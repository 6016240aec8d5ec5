"""Finds adapters by name through entry points, ours and anyone else's alike. Imports one only when asked for it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from airflow_llmsched.errors import SpecError


class AdapterGroup(StrEnum):
    """Entry-point groups in which adapters register."""

    ENGINES = "airflow_llmsched.engines"
    CLOUDS = "airflow_llmsched.clouds"
    CHECKPOINT_FORMATS = "airflow_llmsched.checkpoint_formats"
    PLACEMENT_SOLVERS = "airflow_llmsched.placement_solvers"


DEFAULT_SOLVER = "fleet"
"""The placement solver of whoever names none: within a hundredth of the best there is (``make bench-placement``)."""


def names(group: AdapterGroup) -> tuple[str, ...]:
    """Return the names registered in ``group``, sorted. Imports no adapter."""
    return tuple(sorted(_entry_points(group)))


MISFITS = (TypeError, AttributeError, ValueError)
"""What an adapter that is made with options of its own raises for one of another kind than it takes."""


def misfit(error: Exception) -> str:
    """Return in words of options why an adapter could not be made with those given; Python's own where it says else."""
    text = str(error)
    missing = re.search(r"missing \d+ required (?:keyword-only|positional) arguments?: (.+)", text)
    if missing is not None:
        return f"needs {missing[1]} as well"
    unknown = re.search(r"unexpected keyword argument ('\w+')", text)
    if unknown is not None:
        return f"there is no option {unknown[1]}"
    return text if isinstance(error, TypeError) else f"one of them is of another kind than it must be: {text}"


def load(group: AdapterGroup, name: str) -> Any:
    """Return the class or callable registered as ``name``.

    Raises:
        SpecError: nobody registered the name, two distributions registered it differently, or its module cannot be
            imported (an extra may be missing).
    """
    known = _entry_points(group)
    if name not in known:
        raise SpecError(path=_noun(group), value=name, hint=_unknown(group, name, tuple(sorted(known))))
    claims = known[name]
    if len(claims) > 1:
        raise SpecError(
            path=_noun(group),
            value=name,
            hint=f"registered more than once: {', '.join(sorted(claims))}; uninstall all but one of the packages",
        )
    (entry_point,) = claims.values()
    try:
        return entry_point.load()
    except (ImportError, AttributeError) as error:
        raise SpecError(
            path=_noun(group),
            value=name,
            hint=f"is registered as {entry_point.value}, which cannot be imported: {error}. "
            "Install the extra or the package that brings it",
        ) from error


@cache
def _entry_points(group: AdapterGroup) -> Mapping[str, Mapping[str, EntryPoint]]:
    """Entry points by name, then by target: the same distribution found twice on the path is no conflict."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry_point in entry_points(group=group.value):
        found.setdefault(entry_point.name, {})[entry_point.value] = entry_point
    return found


def _noun(group: AdapterGroup) -> str:
    return group.value.rpartition(".")[2].removesuffix("s")


def _unknown(group: AdapterGroup, name: str, known: tuple[str, ...]) -> str:
    if not known:
        return f"no adapter is registered in {group.value}; is airflow-provider-llmsched installed (pip install -e .)?"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    nearest = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown; {nearest}known: {', '.join(known)}"
