"""Reservations of a fleet's nodes, by whoever shares its store: compare-and-swap on every kind of store.

A change is a numbered, create-only record. Whoever makes one reads the fleet, decides, and creates the next number; if
somebody else was first, it reads and decides again. Decisions look for what they want first, so that one whose answer
was lost is made once.

Every so often the fleet is written down whole, create-only too, and the records before that are deleted. That frees
their numbers in the store but not in the fleet: whoever creates a record looks afterwards whether a snapshot already
speaks for its number, and takes the record back if so. Then the snapshot may hold it, which the next reading tells.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

from airflow_llmsched.clouds.onprem import fleet as fleets
from airflow_llmsched.clouds.onprem.fleet import AnyChange, Extended, Fleet, Freed, Reservation, Reserved
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import (
    AbandonedError,
    DataError,
    InternalError,
    LeaseGoneError,
    ObjectExistsError,
    ObjectMissingError,
    SpecError,
    StoreError,
    TransientError,
)
from airflow_llmsched.ports import Clock, ObjectStore

_APPEND = EffectPoint("reservations.append")
_TAKE_BACK = EffectPoint("reservations.take_back")
_SNAPSHOT = EffectPoint("reservations.snapshot")
_TIDY = EffectPoint("reservations.tidy")

SNAPSHOT_EVERY = 64
"""Records from one snapshot to the next."""

REMEMBER_S = 7 * 86_400.0
"""For how long after it was freed a name cannot be reserved under again, whoever comes late; or until it expires."""

NUM_RACES = 200
"""How often one change may lose to others: each loss is another's success."""

NUM_STORE_TRIES = 4
FIRST_PAUSE_S = 0.2
NUM_LOOKS = 10

_NAME = re.compile(r"(\d{8})\.json")
_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class Reservations:
    """The reservations of one fleet. Remembers records that it has read, and looks for new ones every time."""

    def __init__(self, store: ObjectStore, *, fleet: str, clock: Clock, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        if not _FLEET.fullmatch(fleet):
            raise SpecError(path="fleet", value=fleet, hint="must be letters, digits, - and _, at most 63")
        self._store = store
        self._clock = clock
        self._snapshot_every = snapshot_every
        self._records = f"fleets/{fleet}/records/"
        self._snapshots = f"fleets/{fleet}/snapshots/"
        self._known: dict[int, AnyChange] = {}

    def fleet(self) -> Fleet:
        """Return who has reserved what. Raises ``StoreError``, ``DataError``."""
        return self._read()[0]

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

        return self._change(decide).reserved[name]

    def extend(self, name: str, *, until_s: float) -> Reservation:
        """Have a reservation expire no sooner than ``until_s``. Raises ``LeaseGoneError``, ``StoreError``."""

        def decide(fleet: Fleet) -> Extended | None:
            if name not in fleet.reserved:
                raise LeaseGoneError(f"lease {name} has ended and cannot be renewed: rent anew")
            return None if fleet.reserved[name].until_s >= until_s else Extended(name=name, until_s=until_s)

        return self._change(decide).reserved[name]

    def free(self, name: str) -> None:
        """Free what is reserved under ``name``, and use the name up. Idempotent. Raises ``StoreError``."""

        def decide(fleet: Fleet) -> Freed | None:
            if name in fleet.used_up:
                return None
            until_s = fleet.reserved[name].until_s if name in fleet.reserved else 0.0
            return Freed(name=name, remember_until_s=max(until_s, self._clock.now_s() + REMEMBER_S))

        self._change(decide)

    def compact(self) -> None:
        """Write the fleet down, and delete what that replaces. Safe to repeat, to race and to die in.

        Raises ``StoreError``, ``DataError``.
        """
        fleet, number, covered = self._read()
        if number - covered >= self._snapshot_every:
            data = fleets.encode_fleet(fleets.forget(fleet, now_s=self._clock.now_s()), number=number)
            with contextlib.suppress(ObjectExistsError), _SNAPSHOT:
                self._store.create(self._key(self._snapshots, number), data)
        covered = self._covered()
        if covered:
            self._snapshot(covered)  # before anything is deleted
        stale = [(self._records, number) for number in self._numbers(self._records) if number <= covered]
        stale += [(self._snapshots, number) for number in self._numbers(self._snapshots) if number < covered]
        for prefix, number in stale:
            with _TIDY:
                self._store.delete(self._key(prefix, number))

    # Below

    def _change(self, decide: Callable[[Fleet], AnyChange | None]) -> Fleet:
        """Append what ``decide`` makes of the fleet, None: nothing; and return the fleet after it."""
        num_failed = 0
        for _ in range(NUM_RACES):
            fleet, number, covered = self._read()
            change = decide(fleet)
            if change is None:
                return fleet
            try:
                won = self._append(change, number + 1)
            except StoreError:  # whether it was written is unknown: the next reading tells
                num_failed += 1
                if num_failed == NUM_STORE_TRIES:
                    raise
                self._clock.sleep(FIRST_PAUSE_S * 2.0**num_failed)
                continue
            if won:
                if number + 1 - covered >= self._snapshot_every:
                    with contextlib.suppress(TransientError, DataError):  # the record is safe, and tidying can wait
                        self.compact()
                return fleets.apply(fleet, change)
        raise TransientError(f"others changed {self._where(self._records)} first, {NUM_RACES} times: try again")

    def _append(self, change: AnyChange, number: int) -> bool:
        """Create a record; False when somebody else has that number."""
        key = self._key(self._records, number)
        try:
            with _APPEND:
                self._store.create(key, fleets.encode_change(change, number=number))
        except ObjectExistsError:
            return False
        if number <= self._covered():
            with _TAKE_BACK:
                self._store.delete(key)  # nobody reads it: a snapshot speaks for this number
            return False
        self._known[number] = change
        return True

    def _read(self) -> tuple[Fleet, int, int]:
        """Return the fleet, the number of its last record, and up to which number a snapshot holds them."""
        missing: object = None
        for _ in range(NUM_LOOKS):
            # Snapshots are listed after the records: what was replaced in between is then seen twice, not missed.
            numbers = self._numbers(self._records)
            covered = self._covered()
            last = max([number for number in numbers if number > covered], default=covered)
            try:
                fleet = self._snapshot(covered) if covered else Fleet()
                # A list is no moment: a record may have come behind it, and the next one before it. So each is read.
                for number in range(covered + 1, last + 1):
                    fleet = fleets.apply(fleet, self._record(number))
            except ObjectMissingError as error:  # or it has been replaced by a snapshot since
                missing = error
                continue
            self._known = {number: change for number, change in self._known.items() if number > covered}
            return fleet, last, covered
        raise DataError(f"a record is missing although later ones exist: restore it from a backup ({missing})")

    def _record(self, number: int) -> AnyChange:
        if number not in self._known:
            key = self._key(self._records, number)
            self._known[number] = fleets.decode_change(self._store.get(key), number=number, where=self._where(key))
        return self._known[number]

    def _snapshot(self, number: int) -> Fleet:
        key = self._key(self._snapshots, number)
        return fleets.decode_fleet(self._store.get(key), number=number, where=self._where(key))

    def _covered(self) -> int:
        return max(self._numbers(self._snapshots), default=0)

    def _numbers(self, prefix: str) -> list[int]:
        names = [(info.key, _NAME.fullmatch(info.key.removeprefix(prefix))) for info in self._store.list(prefix)]
        for key, match in names:
            if match is None:
                raise DataError(f"{self._where(key)} is no record of a fleet: move it away")
        return [int(match[1]) for _, match in names if match is not None]

    @staticmethod
    def _key(prefix: str, number: int) -> str:
        return f"{prefix}{number:08d}.json"

    def _where(self, key: str) -> str:
        return f"{self._store.uri}/{key}"
