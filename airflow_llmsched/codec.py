"""JSON for frozen values: one way in and out for journal, XCom, trigger arguments and reports.

Every stored union of dataclasses carries a ``kind: Literal[...]`` field, so that reading is exact. Unknown keys are
ignored; whoever stores records for long (the journal) puts a format version beside them and checks that first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


def _build(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(_build)


def prepare(type_: Any) -> None:
    """Build now what reading and writing a ``type_`` takes: the first time costs far more than all others."""
    _adapter(type_)


def to_plain(value: Any, type_: Any = None) -> Any:
    """Return ``value`` as JSON-safe dicts, lists and scalars. Give ``type_`` when it is a union or a generic."""
    return _adapter(type_ or type(value)).dump_python(value, mode="json")


def from_plain(type_: type[T], plain: Any) -> T:
    """Rebuild a ``type_`` from :func:`to_plain` output. Raises ``pydantic.ValidationError`` on a mismatch."""
    result: T = _adapter(type_).validate_python(plain)
    return result


def to_json(value: Any, type_: Any = None) -> bytes:
    """Return ``value`` as compact UTF-8 JSON."""
    data: bytes = _adapter(type_ or type(value)).dump_json(value)
    return data


def from_json(type_: type[T], data: bytes | str) -> T:
    """Rebuild a ``type_`` from :func:`to_json` output. Raises ``pydantic.ValidationError`` on a mismatch."""
    result: T = _adapter(type_).validate_json(data)
    return result


def parse_json(data: bytes | str) -> Any:
    """Return what JSON of somebody else says. Raises ``ValueError``, also where it is nested too deep to be read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep to be read") from None
