"""Opens engine adapters by name, in workers and triggerers alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.control import open_engines
from airflow_llmsched.control.open_fleet import clusters_of, names_cluster
from airflow_llmsched.domain.fleet import Fleet
from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import Engine
from airflow_llmsched.provider.config import fleet_file, state_root
from airflow_llmsched.provider.engine_access import with_access
from airflow_llmsched.specs import fleet_file as fleet_reader
from airflow_llmsched.telemetry.channel import open_witness


def open_engine(name: str, options: Mapping[str, Any]) -> Engine:
    """Return the engine ``name``: an adapter with ``options``, a cluster of the deployment's fleet file, or ``fleet``.

    An adapter's ``root`` defaults to a folder of its own below the state root, and its option ``conn_id`` names the
    Airflow connection to sign in with. Raises ``SpecError`` for an option that is not plain JSON, one the engine does
    not take, an unknown engine, or a fleet file with mistakes; ``CouldNotLookError`` for a connection that cannot be
    read.
    """
    check_plain(options, path="engine_options")
    return open_engines.open_engine(
        name,
        options,
        deployment_fleet(),
        root=str(Path(state_root()) / "engines"),
        open_store=lambda: open_store(state_root()),
        open_witness=open_witness,
        sign_in=with_access,
        path="engine_options",
    )


def deployment_fleet() -> Fleet | None:
    """Return what the deployment's fleet file lists, None where it has none. Raises ``SpecError``."""
    path = fleet_file()
    return fleet_reader.load(path) if path else None


def engines_of(name: str) -> tuple[str, ...]:
    """Return the engines to look at one by one where ``name`` may be a fleet. Raises ``SpecError``."""
    fleet = deployment_fleet()
    return tuple(each.name for each in clusters_of(name, fleet)) if names_cluster(name, fleet) else (name,)


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
