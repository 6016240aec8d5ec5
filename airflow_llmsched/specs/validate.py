"""Checks plain values against the schema, block by block, so that one bad block hides nothing about the others."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_llmsched.specs.problems import Problem, nearest
from airflow_llmsched.specs.schema import SpecModel
from airflow_llmsched.specs.tree import Path

_TYPE_HINTS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text; put it in quotes if it looks like something else",
    "string_unicode": "must be valid Unicode text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a block of keys",
    "model_type": "must be a block of keys",
}


def validate(plain: Mapping[str, Any]) -> tuple[SpecModel, list[Problem]]:
    """Return the spec with every sound block in place, and what is wrong with the others.

    A block named by a problem (the first part of its path) holds a stand-in: do not read it.
    """
    problems = list(unknown_keys(plain, SpecModel))
    known = without_unknown(plain, SpecModel)
    spec = SpecModel.model_validate(_STAND_INS)
    validator = SpecModel.__pydantic_validator__
    values: dict[str, Any] = {}
    for name, info in SpecModel.model_fields.items():
        if name not in known:
            if info.is_required():
                problems.append(_missing((name,), info))
            continue
        try:
            values[name] = validator.validate_python({**_STAND_INS, name: known[name]}).__dict__[name]
        except ValidationError as error:
            details = error.errors(include_url=False)
            problems += [to_problem(each, SpecModel) for each in details]
    return spec.model_copy(update=values), problems


_STAND_INS: dict[str, Any] = {
    "version": 1,
    "name": "stand-in",
    "data": {"kind": "python_stdlib"},
    "batch": {},
    "budget": {},
}
"""Least values of the required blocks, so that each block can be validated on its own."""


def block_of(annotation: Any) -> type[BaseModel] | None:
    """Return the block class within an annotation (optional, annotated or a list), if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin = typing.get_origin(annotation)
    if origin in {typing.Union, types.UnionType, list, typing.Annotated}:
        found = (block_of(argument) for argument in typing.get_args(annotation))
        return next((each for each in found if each is not None), None)
    return None


def fields_of(block: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a block by the key that a spec writes."""
    return {info.alias or name: info for name, info in block.model_fields.items()}


def unknown_keys(value: Any, block: type[BaseModel], path: Path = ()) -> Iterator[Problem]:
    """Yield unknown keys with the nearest known one, in this block and all blocks below it."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_keys(item, block, (*path, index))
    if not isinstance(value, Mapping):
        return
    fields = fields_of(block)
    for key, child in value.items():
        if key not in fields:
            near = nearest(key, fields)
            guess = f"did you mean {near!r}? Known here" if near else "known here"
            yield Problem(
                path=(*path, key), hint=f"is an unknown key; {guess}: {', '.join(fields)}", value=_scalar(child)
            )
        elif (inner := block_of(fields[key].annotation)) is not None:
            yield from unknown_keys(child, inner, (*path, key))


def without_unknown(value: Any, block: type[BaseModel]) -> Any:
    """Return ``value`` without the keys that ``unknown_keys`` complains of."""
    if isinstance(value, list):
        return [without_unknown(item, block) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, info in fields_of(block).items():
        if key in value:
            inner = block_of(info.annotation)
            kept[key] = without_unknown(value[key], inner) if inner else value[key]
    return kept


def to_problem(error: ErrorDetails, root: type[BaseModel]) -> Problem:
    """Return pydantic's finding about a ``root`` block in our words."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    kind, value, context = error["type"], _scalar(error["input"]), error.get("ctx", {})
    if kind == "missing":
        return _missing(path, _field_at(path, root))
    if kind == "value_error":
        return Problem(path=path, value=value, hint=str(context["error"]))
    if kind == "literal_error":
        near = nearest(value, _literals(path, root)) if isinstance(value, str) else None
        guess = f"did you mean {near!r}? " if near else ""
        return Problem(path=path, value=value, hint=f"{guess}must be {context['expected']}")
    if kind in {"too_short", "too_long"}:
        limit = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        return Problem(path=path, value=value, hint=f"must have {limit}, and has {context['actual_length']}")
    if kind in _TYPE_HINTS:
        return Problem(path=path, value=value, hint=_TYPE_HINTS[kind])
    return Problem(path=path, value=value, hint=error["msg"].replace("Input should be", "must be"))


def _missing(path: Path, info: FieldInfo | None) -> Problem:
    meaning = f": {info.description}" if info is not None and info.description else ""
    return Problem(path=path, hint=f"is required{meaning}")


def _field_at(path: Path, root: type[BaseModel]) -> FieldInfo | None:
    block: type[BaseModel] | None = root
    info: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        info = fields_of(block).get(part) if block else None
        block = block_of(info.annotation) if info else None
    return info


def _literals(path: Path, root: type[BaseModel]) -> list[str]:
    info = _field_at(path, root)
    return [str(each) for each in typing.get_args(info.annotation)] if info else []


def _scalar(value: object) -> object:
    """Return what a message can show: a whole block would drown its hint."""
    return value if value is None or isinstance(value, (str, int, float, bool)) else None
