"""Clouds as rentals name them, each opened once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airflow_llmsched.control.lease_book import Rental
from airflow_llmsched.errors import SpecError
from airflow_llmsched.ports import Clock, Cloud, ObjectStore
from airflow_llmsched.registry import MISFITS, AdapterGroup, load, misfit

OpenCloud = Callable[[str, Mapping[str, Any]], Cloud]
"""Takes an adapter's name and its JSON-safe options. May raise ``SpecError``, ``CouldNotLookError``."""


class OpenClouds:
    """Opens by ``open_cloud`` what is asked for first, and remembers it. For one thread."""

    def __init__(self, open_cloud: OpenCloud) -> None:
        self._open_cloud = open_cloud
        self._opened: dict[tuple[str, str], Cloud] = {}

    def named(self, name: str, options: str) -> Cloud:
        """Return the cloud of an intent's ``cloud`` and ``cloud_options``. Raises as ``OpenCloud``."""
        if (name, options) not in self._opened:
            self._opened[name, options] = self._open_cloud(name, json.loads(options))
        return self._opened[name, options]

    def of(self, rental: Rental) -> Cloud:
        """Return the cloud of a rental. Raises as ``OpenCloud``."""
        return self.named(rental.intent.cloud, rental.intent.cloud_options)


def open_adapter(
    name: str, options: Mapping[str, Any], *, store: ObjectStore, clock: Clock, credentials: Any = None
) -> Cloud:
    """Return the adapter registered as ``name``. One that keeps records of its own (``needs_store``) gets ``store``.

    ``credentials`` None: the cloud's SDK finds some its own way. Raises ``SpecError`` for an unknown adapter, and for
    an option that it does not take.
    """
    adapter = load(AdapterGroup.CLOUDS, name)
    given = dict(options)
    if credentials is not None:
        given["credentials"] = credentials
    if getattr(adapter, "needs_store", False):
        given["store"] = store
    try:
        cloud: Cloud = adapter(clock=clock, **given)
    except MISFITS as error:
        raise SpecError(path=f"options of cloud {name!r}", value=dict(options), hint=misfit(error)) from error
    return cloud


def by_cloud(rentals: Iterable[Rental]) -> Mapping[tuple[str, str], list[Rental]]:
    """Group rentals by cloud and options, so that each is asked once."""
    groups: dict[tuple[str, str], list[Rental]] = {}
    for rental in rentals:
        groups.setdefault((rental.intent.cloud, rental.intent.cloud_options), []).append(rental)
    return groups


def plain_options(options: Mapping[str, Any]) -> str:
    """Return options as intents hold them: equal options are equal text."""
    return json.dumps(dict(options), sort_keys=True)
