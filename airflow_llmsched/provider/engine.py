"""Opens engine adapters by name, in workers and triggerers alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.errors import SpecError
from airflow_llmsched.ports import Engine
from airflow_llmsched.provider.config import state_root
from airflow_llmsched.registry import AdapterGroup, load


def open_engine(name: str, options: Mapping[str, Any]) -> Engine:
    """Return the engine ``name`` with ``options``; ``root`` defaults to a folder of its own below the state root.

    Raises ``SpecError`` for an option that is not plain JSON, one the engine does not take, or an unknown engine.
    """
    check_plain(options, path="engine_options")
    adapter = load(AdapterGroup.ENGINES, name)
    given = {"root": str(Path(state_root()) / "engines" / name), **options}
    try:
        engine: Engine = adapter(**given)
    except TypeError as error:
        raise SpecError(path=f"engine_options of {name!r}", value=dict(options), hint=str(error)) from error
    return engine


def check_plain(value: Any, *, path: str) -> None:
    """Raise ``SpecError`` naming the first part of ``value`` that would not come back from JSON as it was.

    Options travel to the triggerer as JSON: whatever changes on the way would make the deferrable and the blocking path
    differ, and is refused before anything is started.
    """
    if value is None or type(value) in (bool, int, str):
        return
    if type(value) is float and math.isfinite(value):
        return
    if type(value) is list:
        for index, item in enumerate(value):
            check_plain(item, path=f"{path}[{index}]")
    elif isinstance(value, Mapping) and all(type(key) is str for key in value):
        for key, item in value.items():
            check_plain(item, path=f"{path}.{key}")
    else:
        hint = f"{type(value).__name__} does not survive JSON: give strings, numbers, lists or string-keyed dicts"
        raise SpecError(path=path, value=value, hint=hint)
