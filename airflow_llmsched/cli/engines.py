"""Opens engines for commands: adapters by name, or clusters of a fleet file. Airflow's connections are out of reach."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control import open_engines
from airflow_llmsched.control.measured_links import MeasuredLinks, open_measured_links
from airflow_llmsched.domain.fleet import Fleet
from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import Engine
from airflow_llmsched.specs import fleet_file
from airflow_llmsched.telemetry.channel import open_witness


def json_object(text: str, *, option: str, example: str) -> dict[str, Any]:
    """Return the options of an engine or of clouds that ``option`` of a command was given as JSON.

    Raises ``SpecError`` for anything but an object, with an ``example`` of one.
    """
    try:
        given: Any = codec.parse_json(text)
    except ValueError as error:
        raise SpecError(path=option, value=text, hint=f"must be a JSON object: {error}") from error
    if not isinstance(given, dict):
        raise SpecError(path=option, value=text, hint=f"must be a JSON object such as {example}")
    return given


def read_fleet_file(path: Path | None) -> Fleet | None:
    """Return what a fleet file lists, None without one. Raises ``SpecError``."""
    return None if path is None else fleet_file.load(path)


def open_engine(name: str, options: Mapping[str, Any], *, state_root: Path, fleet: Fleet | None) -> Engine:
    """Return the engine ``name`` as a task would have it: an adapter, a cluster of ``fleet``, or all of them.

    Raises ``SpecError``, also for an Airflow connection, which is out of reach here.
    """
    root = str(state_root.expanduser().resolve())
    return open_engines.open_engine(
        name,
        options,
        fleet,
        root=f"{root}/engines",
        open_store=lambda: open_store(root),
        open_witness=open_witness,
        sign_in=_without_airflow,
        path="--engine-options",
    )


def open_links(
    engine: Engine, name: str, options: Mapping[str, Any], *, state_root: Path, fleet: Fleet | None
) -> MeasuredLinks:
    """Return what is kept of what checks of nodes measured on the machines of ``engine``, opened as above.

    Raises ``StoreError``.
    """
    store = open_store(str(state_root.expanduser().resolve()))
    return open_measured_links(engine, name, options, fleet, store=store, clock=SystemClock())


def _without_airflow(_engine: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    if fleet_file.CONNECTION in options:
        hint = "is for Airflow: give the command credentials in the engine's own way, such as a key's path"
        raise SpecError(path=fleet_file.CONNECTION, value=options[fleet_file.CONNECTION], hint=hint)
    return options
