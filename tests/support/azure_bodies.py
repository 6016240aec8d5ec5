"""Checks request bodies against the models of Azure's own SDK: names, kinds, words, what is required or read-only.

The SDK itself does not: a model takes whatever it is given.
"""

from __future__ import annotations

import datetime
import enum
import functools
import types
import typing
from typing import Any

from azure.mgmt.compute import models
from azure.mgmt.compute._utils.model_base import Model


class BodyError(Exception):
    """A body that Azure would refuse, and where."""


def check(model: type[Model], body: Any, *, for_update: bool = False, path: str = "body") -> None:
    """Raise ``BodyError`` unless ``body`` is a ``model`` that a request may hold."""
    if not isinstance(body, dict):
        raise BodyError(f"{path}: needs an object, not {body!r}")
    fields = _fields(model)
    for name, value in body.items():
        if name not in fields:
            raise BodyError(f"{path}.{name}: {model.__name__} has no such field, only {', '.join(sorted(fields))}")
        kind, visibility, _ = fields[name]
        if visibility and not set(visibility) & {"create", "update"}:
            raise BodyError(f"{path}.{name}: is read-only")
        _check(kind, value, for_update=for_update, path=f"{path}.{name}")
    if not for_update:
        missing = [name for name, (_, _, is_required) in fields.items() if is_required and name not in body]
        if missing:
            raise BodyError(f"{path}: {model.__name__} needs {', '.join(missing)}")


@functools.cache
def _fields(model: type[Model]) -> dict[str, tuple[Any, Any, bool]]:
    hints: dict[str, Any] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, Model) and each is not Model:
            hints |= typing.get_type_hints(each, localns={**vars(models), "_models": models})
    return {
        field._rest_name: (hints[name], field._visibility, not _is_optional(hints[name]) and not _is_read(field))
        for name, field in model({})._attr_to_rest_field.items()  # known from the first instance on
    }


def _is_read(field: Any) -> bool:
    return bool(field._visibility) and set(field._visibility) == {"read"}


def _is_optional(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _check(kind: Any, value: Any, *, for_update: bool, path: str) -> None:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = [each for each in arguments if each is not type(None)]
        words = [each for each in kinds if isinstance(each, type) and issubclass(each, enum.Enum)]
        _check((words or kinds)[0], value, for_update=for_update, path=path)
    elif origin in (list, dict):
        if not isinstance(value, origin):
            raise BodyError(f"{path}: needs a {origin.__name__}, not {value!r}")
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            _check(arguments[-1], each, for_update=for_update, path=f"{path}[{name!r}]")
    elif kind is not Any:
        _check_one(kind, value, for_update=for_update, path=path)


def _check_one(kind: type, value: Any, *, for_update: bool, path: str) -> None:
    if issubclass(kind, Model):
        check(kind, value, for_update=for_update, path=path)
    elif issubclass(kind, enum.Enum):
        if value not in {each.value for each in kind}:
            raise BodyError(f"{path}: {value!r} is no {kind.__name__}, only {', '.join(each.value for each in kind)}")
    else:
        _check_scalar(kind, value, path)


def _check_scalar(kind: type, value: Any, path: str) -> None:
    accepted: tuple[type, ...] = {float: (int, float), datetime.datetime: (str,), bytes: (str,)}.get(kind, (kind,))
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise BodyError(f"{path}: needs a {kind.__name__}, not {value!r}")
