"""Read a model's published file: nothing guessed.

A key of the file is placed by its dialect, or known to change neither shape nor work, or an error. A new architecture
is a new row of ``dialects`` or ``older``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs.hf_config.dialect import Dialect, read_fields
from airflow_llmsched.specs.hf_config.dialects import DIALECTS
from airflow_llmsched.specs.hf_config.keys import Keys
from airflow_llmsched.specs.problems import nearest
from airflow_llmsched.specs.shapes import shape_problems

MAX_BYTES = 1024**2


def read(path: Path) -> ModelShape:
    """Read a ``config.json``; the shape is named after its folder.

    Raises:
        SpecError: the file cannot be read, is no JSON object, is of an unknown architecture, or has structural keys
            that no field of ``ModelShape`` stands for.
    """
    file = str(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(path="(file)", hint=f"cannot be read: {reason}; name a config.json", file=file) from None
    if len(data) > MAX_BYTES:
        raise SpecError(path="(file)", hint=f"is larger than {MAX_BYTES} bytes, which no config.json is", file=file)
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SpecError(path="(file)", hint=f"is not valid JSON: {error}", file=file) from None
    if not isinstance(config, dict):
        raise SpecError(path="(file)", hint="must hold one JSON object", file=file)
    return to_shape(config, name=path.resolve().parent.name or "model", file=file)


def to_shape(config: Mapping[str, Any], *, name: str, file: str) -> ModelShape:
    """Place every key of ``config``. Raises ``SpecError`` (see :func:`read`)."""
    dialect = _dialect(config, file)
    keys = Keys({dialect.aliases.get(key, key): value for key, value in config.items()}, file=file)
    shape = ModelShape(name=name, **read_fields(keys, dialect))
    _refuse_left_over(keys, file)
    _refuse_contradictions(shape, dialect, file)
    return shape


def _dialect(config: Mapping[str, Any], file: str) -> Dialect:
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in DIALECTS:
        return DIALECTS[kind]
    near = nearest(kind, DIALECTS) if isinstance(kind, str) else None
    guess = f" (the nearest known is {near!r}, which is not the same)" if near else ""
    hint = f"is an architecture not known here{guess}; known: {', '.join(sorted(DIALECTS))}. Give model.shape instead"
    structural = [key for key in Keys(config, file=file).left_over() if not isinstance(config[key], (dict, str))]
    if structural:
        hint += f". Keys that could not be placed: {', '.join(map(repr, structural))}"
    raise SpecError(path="model_type", value=kind, hint=hint, file=file)


def _refuse_left_over(keys: Keys, file: str) -> None:
    unplaced = keys.left_over()
    if unplaced:
        hint = (
            f"could not place {', '.join(map(repr, unplaced))}: take out what changes neither shape nor work, "
            "or give model.shape instead"
        )
        raise SpecError(path=unplaced[0], hint=hint, file=file)


def _refuse_contradictions(shape: ModelShape, dialect: Dialect, file: str) -> None:
    for problem in shape_problems(shape, ()):
        key = dialect.key_of(str(problem.path[-1]))
        raise SpecError(path=key, value=problem.value, hint=problem.hint, file=file)
