"""What a run has seen of its pools, so that its rental policy does not forget with the process.

One object below ``runs/<run key>/``, written over and over. Losing the last write costs one look at the pools.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import ObjectMissingError
from airflow_llmsched.ports import ObjectStore

_WRITE = EffectPoint("rental.remember")

FORMAT_VERSION = 1
MAX_SIGHTINGS = 500
"""Sightings that are kept: at one every ten minutes, three days and a half. Belief drifts back meanwhile anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Which pools had room for the gang at ``at_s`` (Unix seconds), by name; whether on-demand capacity was there.

    Names begin with cloud, region and zone, between slashes. ``unseen`` are the clouds that did not answer then, and
    parts of others as ``cloud/region`` or ``cloud/zone``. ``usd_per_hour`` is what a node of spot capacity then cost,
    by ``Pool.name``.
    """

    at_s: float
    up: Mapping[str, bool]
    in_stock: bool
    unseen: tuple[str, ...] = ()
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)

    def tells_of(self, name: str) -> bool:
        """Whether a pool that is not in ``up`` had no room: it was asked for, and not among the choices."""
        cloud, region, zone, *_ = name.split("/")
        return name in self.up or not {cloud, f"{cloud}/{region}", f"{cloud}/{zone}"}.intersection(self.unseen)


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalMemory:
    """``deadline_s`` is the date that a budget was once found good for (Unix seconds); None: the run has its own."""

    sightings: tuple[Sighting, ...] = ()
    deadline_s: float | None = None
    v: int = FORMAT_VERSION

    @property
    def prices(self) -> Mapping[str, list[tuple[float, float]]]:
        """Return when a node of spot capacity was seen to cost what, oldest first, by ``Pool.name``."""
        prices: dict[str, list[tuple[float, float]]] = {}
        for sighting in self.sightings:
            for name, usd_per_hour in sighting.usd_per_hour.items():
                prices.setdefault(name, []).append((sighting.at_s, usd_per_hour))
        return prices

    def seen(self, sighting: Sighting) -> RentalMemory:
        """Return the memory with one more sighting."""
        return replace(self, sightings=(*self.sightings, sighting)[-MAX_SIGHTINGS:])


class MemoryFile:
    """One run's memory in a store."""

    def __init__(self, store: ObjectStore, run: RunKey) -> None:
        self._store = store
        self._key = f"runs/{run}/rental-memory.json"

    def read(self) -> RentalMemory:
        """Return what is remembered; a damaged memory, or one of another version, is none. Raises ``StoreError``."""
        with contextlib.suppress(ObjectMissingError, ValidationError):
            memory = codec.from_json(RentalMemory, self._store.get(self._key))
            if memory.v == FORMAT_VERSION:
                return memory
        return RentalMemory()

    def write(self, memory: RentalMemory) -> None:
        """Remember. Raises ``StoreError``."""
        data = codec.to_json(memory)
        with _WRITE:
            self._store.put(self._key, data)
