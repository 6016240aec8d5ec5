"""Keeps what checks of nodes measured of links, for whoever plans on the same cluster next: one object for each.

Where runs claim a cluster's nodes, that is their ground's; elsewhere that of all who open the engine alike. Whoever
keeps something reads what is there first, and of two at once one is lost: that costs a measurement, which the next
checks make again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.control.fencing import CLOCK_SKEW_S
from airflow_llmsched.control.open_arbiter import open_grounds
from airflow_llmsched.control.open_fleet import names_cluster
from airflow_llmsched.domain.fleet import FLEET, Fleet
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import ObjectMissingError
from airflow_llmsched.ports import Clock, Engine, ObjectStore
from airflow_llmsched.topology.link_records import COUNTS_FOR_S, LinkRecord, kept_with

log = logging.getLogger(__name__)

_KEEP = EffectPoint("links.keep")

FOLDER = "measured-links"
FILE = f"{FOLDER}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLinks:
    """What is kept of one cluster, oldest first."""

    records: tuple[LinkRecord, ...] = ()


class MeasuredLinks:
    """What is kept of the cluster whose objects are ``keys``; it is written to the first of them."""

    def __init__(self, store: ObjectStore, keys: Sequence[str], *, clock: Clock, limit_s: float = COUNTS_FOR_S) -> None:
        """``limit_s`` is the age from which on a measurement counts no more; 0: none ever does."""
        self._store = store
        self._keys = tuple(keys)
        self._clock = clock
        self._limit_s = limit_s

    def keep(self, record: LinkRecord) -> None:
        """Keep a measurement, in place of older ones of the same nodes. Raises ``StoreError``."""
        known = self._read(self._keys[0]) or KeptLinks()
        with _KEEP:
            self._store.put(self._keys[0], codec.to_json(KeptLinks(records=kept_with(known.records, record))))

    def counted(self) -> tuple[LinkRecord, ...]:
        """Return what counts now. What is damaged is told in the log, and counts as nothing. Raises ``StoreError``."""
        found = [self._read(key) for key in self._keys]
        damaged = found.count(None)
        if damaged:
            log.warning("%d x damaged object of measured links, passed over: the next checks of nodes repair", damaged)
        now_s = self._clock.now_s()
        return tuple(
            record
            for kept in found
            if kept is not None
            for record in kept.records
            if now_s - self._limit_s < record.at_s <= now_s + CLOCK_SKEW_S
        )

    def _read(self, key: str) -> KeptLinks | None:
        """Return what an object holds, None if it is damaged."""
        try:
            return codec.from_json(KeptLinks, self._store.get(key))
        except ObjectMissingError:
            return KeptLinks()
        except ValidationError:
            return None


def open_measured_links(
    engine: Engine,
    name: str,
    options: Mapping[str, Any],
    fleet: Fleet | None,
    *,
    store: ObjectStore,
    clock: Clock,
    run: RunKey | None = None,
    limit_s: float = COUNTS_FOR_S,
) -> MeasuredLinks:
    """Return what is kept of the cluster of ``engine``, which a task calls ``name`` and opens with ``options``.

    ``run`` is the run whose rented machines are all that the engine has: what was measured of them is its own. Raises
    ``StoreError``.
    """
    if run is not None:
        keys = [f"runs/{run}/{FILE}"]
    else:
        grounds = [ground.name for ground in open_grounds(engine, name, fleet, store=store, clock=clock)]
        keys = [f"{FOLDER}/{each}.json" for each in grounds or [_opened_as(name, options, fleet)]]
    return MeasuredLinks(store, keys, clock=clock, limit_s=limit_s)


def _opened_as(name: str, options: Mapping[str, Any], fleet: Fleet | None) -> str:
    """Return what stands for a cluster whose nodes nobody claims: what its engine is opened with."""
    if names_cluster(name, fleet):
        return FLEET
    words = json.dumps(options, sort_keys=True)
    return f"{name}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
