"""Opens what a task or a command calls an engine: an adapter by its name, a cluster of a fleet file, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.open_fleet import clusters_of, names_cluster, open_fleet
from airflow_llmsched.domain.fleet import Fleet
from airflow_llmsched.errors import SpecError
from airflow_llmsched.ports import ChannelWitness, Engine, ObjectStore
from airflow_llmsched.registry import MISFITS, AdapterGroup, load, misfit

SignIn = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Takes an adapter's name and options; returns the options with the way in that the adapter needs beside them."""


def open_engine(
    name: str,
    options: Mapping[str, Any],
    fleet: Fleet | None,
    *,
    root: str,
    open_store: Callable[[], ObjectStore],
    open_witness: Callable[[str], ChannelWitness],
    sign_in: SignIn,
    path: str,
) -> Engine:
    """Return the engine ``name``.

    An adapter's ``root`` defaults to a folder of its own below ``root``. ``path`` is what the caller calls the options.
    Raises ``SpecError`` for an option that the engine does not take, an unknown engine, or options beside those of a
    fleet file; and as ``sign_in`` does.
    """

    def open_adapter(adapter: str, given: Mapping[str, Any]) -> Engine:
        kind = load(AdapterGroup.ENGINES, adapter)
        try:
            engine: Engine = kind(**{"root": f"{root}/{adapter}", **sign_in(adapter, given)})
        except MISFITS as error:
            raise SpecError(path=f"{path} of {adapter!r}", value=dict(given), hint=misfit(error)) from error
        return engine

    if not names_cluster(name, fleet):
        return open_adapter(name, options)
    clusters_of(name, fleet)
    if options or fleet is None:
        raise SpecError(path=path, value=dict(options), hint=f"are in the fleet file for engine {name!r}")
    return open_fleet(
        name,
        fleet,
        store=open_store(),
        clock=SystemClock(),
        open_engine=open_adapter,
        open_witness=open_witness,
        root=root,
    )
