"""Read a model's published file: nothing guessed.

A key of the file is placed by its dialect, or known to change neither shape nor work, or an error. A new architecture
is a new row of ``dialects`` or ``older``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs.hf_config.dialect import Dialect, read_fields
from airflow_llmsched.specs.hf_config.dialects import DIALECTS
from airflow_llmsched.specs.hf_config.keys import Keys
from airflow_llmsched.specs.hf_config.multimodal import MULTIMODAL, take_apart
from airflow_llmsched.specs.hf_config.native import NATIVE, is_native
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
        config = codec.parse_json(data)
    except ValueError as error:
        raise SpecError(path="(file)", hint=f"is not valid JSON: {error}", file=file) from None
    if not isinstance(config, dict):
        raise SpecError(path="(file)", hint="must hold one JSON object", file=file)
    return to_shape(config, name=path.resolve().parent.name or "model", file=file)


def to_shape(config: Mapping[str, Any], *, name: str, file: str) -> ModelShape:
    """Place every key of ``config``. Raises ``SpecError`` (see :func:`read`)."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in MULTIMODAL:
        return _text_shape(config, name=name, file=file, path="")
    parts = take_apart(config, MULTIMODAL[kind], file=file)
    return replace(_text_shape(parts.text, name=name, file=file, path=parts.path), encoder=parts.encoder)


def _text_shape(config: Mapping[str, Any], *, name: str, file: str, path: str) -> ModelShape:
    dialect = _dialect(config, file, path)
    keys = Keys(_renamed(config, dialect, file, path), file=file, path=path)
    shape = ModelShape(name=name, **read_fields(keys, dialect))
    keys.require_all_placed()
    for problem in shape_problems(shape, ()):
        key = path + dialect.key_of(str(problem.path[-1]))
        raise SpecError(path=key, value=problem.value, hint=problem.hint, file=file)
    return shape


def _renamed(config: Mapping[str, Any], dialect: Dialect, file: str, path: str) -> Mapping[str, Any]:
    """Give keys the dialect's spelling. Two spellings of one key must agree."""
    renamed: dict[str, Any] = {}
    for key, value in config.items():
        known = dialect.aliases.get(key, key)
        if renamed.setdefault(known, value) != value:
            hint = f"contradicts {known!r}, which means the same; take one of them out"
            raise SpecError(path=path + key, value=value, hint=hint, file=file)
    return renamed


def _dialect(config: Mapping[str, Any], file: str, path: str) -> Dialect:
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in DIALECTS:
        return DIALECTS[kind]
    if is_native(config):
        return NATIVE
    known = {*DIALECTS, *MULTIMODAL}
    near = nearest(kind, known) if isinstance(kind, str) else None
    guess = f" (the nearest known is {near!r}, which is not the same)" if near else ""
    hint = f"is an architecture not known here{guess}; known: {', '.join(sorted(known))}. Give model.shape instead"
    structural = [key for key in Keys(config, file=file).left_over() if not isinstance(config[key], (dict, str))]
    if structural:
        hint += f". Keys that could not be placed: {', '.join(map(repr, structural))}"
    raise SpecError(path=path + "model_type", value=kind, hint=hint, file=file)
