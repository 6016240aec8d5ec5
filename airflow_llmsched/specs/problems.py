"""What is wrong with a spec, before it is known where the spec came from."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_llmsched.errors import SpecError, SpecErrors
from airflow_llmsched.specs.tree import Node, Path, dotted


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake: where, which value, and what would be right."""

    path: Path
    hint: str
    value: object = None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most like ``word``, or None when none is much like it."""
    by_lower = {each.lower().replace("-", "_"): each for each in known}
    near = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def to_error(problems: Iterable[Problem], root: Node, *, file: str) -> SpecError:
    """Return one error for all ``problems`` (at least one), in the order of their lines."""
    errors = [
        SpecError(path=dotted(each.path), hint=each.hint, value=each.value, file=file, line=root.line_of(each.path))
        for each in problems
    ]
    errors.sort(key=lambda error: error.line or 0)
    return errors[0] if len(errors) == 1 else SpecErrors(errors)
