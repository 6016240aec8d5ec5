"""Asks the parts of a cloud one after the other: regions, zones, lists. One that is silent hides no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from airflow_llmsched.errors import CouldNotLookError, PartlySeenError

T = TypeVar("T")


def of_each(looks: Mapping[str, Callable[[], Sequence[T]]], *, order: Callable[[T], Any] | None = None) -> list[T]:
    """Return what all parts have, asked by ``looks`` under their names, in ``order`` (None: as they were asked).

    Raises ``PartlySeenError`` with what the others have where some do not answer, or not wholly; ``CouldNotLookError``
    where none does.
    """
    found: list[T] = []
    errors: dict[str, CouldNotLookError] = {}
    unseen: list[str] = []
    for name, look in looks.items():
        try:
            found += look()
        except PartlySeenError as error:
            found += error.seen
            unseen += error.unseen
            errors[name] = error
        except CouldNotLookError as error:
            unseen.append(name)
            errors[name] = error
    if order is not None:
        found.sort(key=order)
    if not errors:
        return found
    told = "; ".join(f"{name}: {error}" for name, error in errors.items())
    first = next(iter(errors.values()))
    if len(errors) == len(looks) and not any(isinstance(error, PartlySeenError) for error in errors.values()):
        raise first if len(errors) == 1 else CouldNotLookError(told) from first
    raise PartlySeenError(told, seen=found, unseen=list(dict.fromkeys(unseen))) from first
