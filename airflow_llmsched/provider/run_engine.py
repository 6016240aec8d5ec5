"""Opens the engine of a run: one by name, or the engine of hosts on the machines that the run has rented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.journal import run_keys
from airflow_llmsched.control.lease_book import LeaseBook
from airflow_llmsched.control.rented_engine import RentedEngine
from airflow_llmsched.control.rented_nodes import HOST_LEVELS
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.ports import Engine
from airflow_llmsched.provider.clouds import open_cloud
from airflow_llmsched.provider.config import state_root
from airflow_llmsched.provider.engine import check_plain, open_engine
from airflow_llmsched.provider.shape_arguments import only

HOSTS = "hosts"
"""The engine whose machines may be rented, and the option of it that lists them, or says that they are."""

_KNOWN = ("slots", "port", "run")


def open_run_engine(name: str, options: Mapping[str, Any]) -> Engine:
    """Return the engine ``name`` with ``options``, as ``open_engine``.

    Where option ``hosts`` of engine ``hosts`` is no list but a mapping, its machines are those that the run has rented:
    ``slots`` says how many accelerators a node of each shape has (default: as the planner knows the shape), ``port``
    where sshd listens (22), and ``run`` whose leases count (:func:`options_of_run`; without it, every run's).
    """
    rented = options.get(HOSTS)
    if name != HOSTS or not isinstance(rented, Mapping):
        return open_engine(name, options)
    check_plain(options, path="engine_options")
    only(rented, _KNOWN, path="engine_options.hosts")
    known = {each: shape.num_accelerators for each, shape in node_shapes().items()}
    return RentedEngine(
        lambda: _books(rented.get("run")),
        open_hosts=lambda hosts: open_engine(name, {"levels": list(HOST_LEVELS), **options, HOSTS: list(hosts)}),
        open_cloud=open_cloud,
        clock=SystemClock(),
        slots={**known, **_slots(rented.get("slots", {}))},
        port=_count(rented.get("port", 22), path="engine_options.hosts.port"),
    )


def options_of_run(options: Mapping[str, Any], run: RunKey) -> dict[str, Any]:
    """Return an engine's options as they are for one run: they name it, where its rented machines are meant."""
    rented = options.get(HOSTS)
    return {**options, HOSTS: {**rented, "run": str(run)}} if isinstance(rented, Mapping) else dict(options)


def renting_run(options: Mapping[str, Any]) -> RunKey | None:
    """Return the run whose rented machines an engine with these options has, None where it has others."""
    rented = options.get(HOSTS)
    run = rented.get("run") if isinstance(rented, Mapping) else None
    return RunKey(run) if run else None


def _books(run: str | None) -> Sequence[LeaseBook]:
    store = open_store(state_root())
    return [LeaseBook(store, key) for key in ([RunKey(run)] if run else run_keys(store))]


def _slots(told: Any) -> Mapping[str, int]:
    if not isinstance(told, Mapping):
        raise SpecError(path="engine_options.hosts.slots", value=told, hint="must map node shapes to numbers")
    return {name: _count(each, path=f"engine_options.hosts.slots.{name}") for name, each in told.items()}


def _count(value: Any, *, path: str) -> int:
    if type(value) is not int or value < 1:
        raise SpecError(path=path, value=value, hint="must be a whole number, 1 or more")
    return value
