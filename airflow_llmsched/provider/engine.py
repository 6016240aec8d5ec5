"""Opens engine adapters by name, in workers and triggerers alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.errors import SpecError
from airflow_llmsched.ports import Engine
from airflow_llmsched.provider.config import state_root
from airflow_llmsched.registry import AdapterGroup, load


def open_engine(name: str, options: Mapping[str, Any]) -> Engine:
    """Return the engine ``name`` with ``options``; ``root`` defaults to a folder of its own below the state root.

    Raises ``SpecError`` naming the engine for options it does not take, or an engine that is not installed.
    """
    adapter = load(AdapterGroup.ENGINES, name)
    given = {"root": str(Path(state_root()) / "engines" / name), **options}
    try:
        engine: Engine = adapter(**given)
    except TypeError as error:
        raise SpecError(path=f"engine_options of {name!r}", value=dict(options), hint=str(error)) from error
    return engine
