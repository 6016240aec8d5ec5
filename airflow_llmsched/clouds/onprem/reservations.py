"""Reservations of a fleet's nodes, by whoever shares its store: ``numbered`` records, so that none is made twice."""

from __future__ import annotations

import re
from collections.abc import Callable

from airflow_llmsched.clouds.onprem.fleet import FORM, Extended, Fleet, Freed, Reservation, Reserved
from airflow_llmsched.errors import AbandonedError, InternalError, LeaseGoneError, SpecError
from airflow_llmsched.numbered import SNAPSHOT_EVERY, Numbered
from airflow_llmsched.ports import Clock, ObjectStore

REMEMBER_S = 7 * 86_400.0
"""For how long after it was freed a name cannot be reserved under again, whoever comes late; or until it expires."""

_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class Reservations:
    """The reservations of one fleet."""

    def __init__(self, store: ObjectStore, *, fleet: str, clock: Clock, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        if not _FLEET.fullmatch(fleet):
            raise SpecError(path="fleet", value=fleet, hint="must be letters, digits, - and _, at most 63")
        self._clock = clock
        self._numbered = Numbered(store, f"fleets/{fleet}", FORM, clock=clock, snapshot_every=snapshot_every)

    def fleet(self) -> Fleet:
        """Return who has reserved what. Raises ``StoreError``, ``DataError``."""
        return self._numbered.read()

    def reserve(self, name: str, choose: Callable[[Fleet], Reservation]) -> Reservation:
        """Reserve what ``choose`` makes of the fleet, or return what is reserved under ``name``.

        ``choose`` is asked again whenever somebody else was first, and may raise what it likes; so may the store.
        Raises ``AbandonedError`` when the name was freed, or the reservation would have expired by now.
        """

        def decide(fleet: Fleet) -> Reserved | None:
            if name in fleet.reserved:
                return None
            if name in fleet.used_up:
                raise AbandonedError(f"lease {name} was released: nothing is reserved under its name again")
            wanted = choose(fleet)
            if wanted.name != name:
                raise InternalError(f"{wanted.name} was to be reserved under {name}")
            if wanted.until_s <= self._clock.now_s():
                raise AbandonedError(f"lease {name} was to end before it began: nothing was reserved")
            return Reserved(reservation=wanted)

        return self._numbered.change(decide).reserved[name]

    def extend(self, name: str, *, until_s: float) -> Reservation:
        """Have a reservation expire no sooner than ``until_s``. Raises ``LeaseGoneError``, ``StoreError``."""

        def decide(fleet: Fleet) -> Extended | None:
            if name not in fleet.reserved:
                raise LeaseGoneError(f"lease {name} has ended and cannot be renewed: rent anew")
            return None if fleet.reserved[name].until_s >= until_s else Extended(name=name, until_s=until_s)

        return self._numbered.change(decide).reserved[name]

    def free(self, name: str) -> None:
        """Free what is reserved under ``name``, and use the name up. Idempotent. Raises ``StoreError``."""

        def decide(fleet: Fleet) -> Freed | None:
            if name in fleet.used_up:
                return None
            until_s = fleet.reserved[name].until_s if name in fleet.reserved else 0.0
            return Freed(name=name, remember_until_s=max(until_s, self._clock.now_s() + REMEMBER_S))

        self._numbered.change(decide)

    def compact(self) -> None:
        """Write the fleet down, and delete what that replaces. Raises ``StoreError``, ``DataError``."""
        self._numbered.compact()
