"""What a run has rented, or was about to: create-only records, written before a cloud is asked and after it is done.

Below ``runs/<run key>/leases/`` each rental has a folder with ``intended.json``, its ``copy.json``, and, once it is
over, ``ended.json``; ``closed-<milliseconds>.json`` says that whoever had set out by then rents nothing more. An intent
is written before the cloud is asked, and names all that is needed to end the lease, so that whoever comes later can do
so whatever has become of its author. Its copy is read where it is damaged: nothing else would say which cloud to ask.
Renewals are not recorded: a lease's expiry is with its machines.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.lease import LeaseId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import AbandonedError, InternalError, ObjectExistsError, ObjectMissingError, StoreError
from airflow_llmsched.ports import ObjectStore
from airflow_llmsched.units import HOUR_S

log = logging.getLogger(__name__)

_INTEND = EffectPoint("leases.intend")
_COPY = EffectPoint("leases.copy")
_END = EffectPoint("leases.end")
_CLOSE = EffectPoint("leases.close")

FORMAT_VERSION = 1
MAX_RENTALS = 10_000
"""Of one generation. A run that rents more often than that is not getting anywhere."""

_INTENDED = re.compile(r"g(\d{4})-r(\d{5})/intended\.json")
_ENDED = re.compile(r"g(\d{4})-r(\d{5})/ended\.json")
_CLOSED = re.compile(r"closed-(\d{15})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalIntent:
    """What a cloud is about to be asked for. ``purpose`` tells apart what one run rents at once; times: Unix seconds.

    ``cloud_options`` are what the adapter ``cloud`` was opened with. ``since_s`` is when whoever rents set out.
    """

    key: LeaseKey
    lease_id: LeaseId
    purpose: str
    cloud: str
    cloud_options: str
    offer: Offer
    num_nodes: int
    until_s: float
    at_s: float
    origin: RunOrigin
    since_s: float = 0.0
    v: int = FORMAT_VERSION

    @property
    def hold_s(self) -> float:
        """How long the lease was to last at first, and is to last from each renewal on."""
        return self.until_s - self.at_s


class RentalEnding(StrEnum):
    """How a rental came to its end."""

    REFUSED = "refused"
    """Nothing was rented."""
    RELEASED = "released"
    """It was given back, or nothing was left to give back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalEnd:
    """Written once nothing of the lease is left, as far as the cloud says. ``at_s`` is Unix seconds."""

    ending: RentalEnding
    reason: str
    at_s: float
    v: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """An intent and what became of it; ``end`` is None while something may be rented."""

    intent: RentalIntent
    end: RentalEnd | None = None

    @property
    def was_refused(self) -> bool:
        """Whether it is known that nothing was rented."""
        return self.end is not None and self.end.ending is RentalEnding.REFUSED

    def cost_usd(self, now_s: float) -> float:
        """Return what it has cost at the offer's price, counted from the intent: an upper bound but for the price."""
        if self.was_refused:
            return 0.0
        until_s = now_s if self.end is None else self.end.at_s
        return max(0.0, until_s - self.intent.at_s) / HOUR_S * self.intent.num_nodes * self.intent.offer.usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What of a book can be read, for whoever must go on with that: to give back, to keep, to report.

    ``rentals`` are oldest first; one whose end cannot be read is among them as if it had none. ``damage`` says which
    records cannot be read, and why; ``lost`` are the rentals of which neither the intent nor its copy can be.
    """

    rentals: tuple[Rental, ...]
    damage: tuple[str, ...] = ()
    lost: tuple[LeaseKey, ...] = ()

    def whole(self) -> tuple[Rental, ...]:
        """Return the rentals if none is missing, for whoever decides by them. Raises ``StoreError``."""
        if self.damage:
            raise StoreError("; ".join(self.damage))
        return self.rentals


R = TypeVar("R", RentalIntent, RentalEnd)


class LeaseBook:
    """The rentals of one run."""

    def __init__(self, store: ObjectStore, run: RunKey) -> None:
        self.run = run
        self._store = store
        self._prefix = f"runs/{run}/leases/"

    def rentals(self) -> tuple[Rental, ...]:
        """Return every rental, oldest first. Raises ``StoreError``, also for a damaged record."""
        return self.read().whole()

    def open(self) -> tuple[Rental, ...]:
        """Return the rentals that have not ended, oldest first. Raises ``StoreError``, also for a damaged record."""
        return self.read_open().whole()

    def read(self) -> Pages:
        """Return every rental that can be read. Raises ``StoreError`` only where the book cannot be listed."""
        names = self._names()
        return self._pages(names, among=names)

    def read_open(self) -> Pages:
        """Return the rentals that have not ended and can be read. Raises ``StoreError`` as :meth:`read`."""
        names = self._names()
        over = {match[0].replace("/ended", "/intended") for match in self._matches(_ENDED, names)}
        return self._pages([name for name in names if name not in over], among=())

    def intent(self, key: LeaseKey) -> RentalIntent | None:
        """Return what was noted under ``key``, whatever has become of other records. Raises ``StoreError``."""
        damage: list[str] = []
        found = self._intent(self._folder(key), damage)
        if found is None and damage:
            raise StoreError("; ".join(damage))
        return found

    def is_open(self, key: LeaseKey) -> bool:
        """Whether ``key`` is noted and has not ended, readable or not. Raises ``StoreError``."""
        names, folder = self._names(), self._folder(key)
        return f"{folder}/intended.json" in names and f"{folder}/ended.json" not in names

    def closed_at_s(self) -> float | None:
        """Return when the book was last closed (Unix seconds), None if it never was. Raises ``StoreError``."""
        return max((int(match[1]) / 1000 for match in self._matches(_CLOSED, self._names())), default=None)

    def intend(self, make: Callable[[LeaseKey], RentalIntent], *, generation: int, since_s: float) -> RentalIntent:
        """Note durably what is about to be rented, before its cloud is asked; ``make`` gets the next free key.

        ``since_s`` is when the caller set out (Unix seconds). One that stood still while the run was torn down is told
        here, whichever of the two looks at the book first.

        Raises:
            AbandonedError: the book has been closed since then: nothing may be rented for the caller any more.
            StoreError: whether it was noted is unknown; nothing may be rented.
        """
        taken = [int(match[2]) for match in self._matches(_INTENDED, self._names()) if int(match[1]) == generation]
        for rental in range(max(taken, default=0) + 1, MAX_RENTALS + 1):
            intent = make(LeaseKey(run=self.run, generation=generation, rental=rental))
            try:
                with _INTEND:
                    self._store.create(self._key(intent.key, "intended"), codec.to_json(intent))
            except ObjectExistsError:
                continue  # another worker rents at the same time
            with contextlib.suppress(ObjectExistsError), _COPY:
                self._store.create(self._key(intent.key, "copy"), codec.to_json(intent))
            closed_at_s = self.closed_at_s()  # after the note, as whoever closes looks for notes after closing
            if closed_at_s is not None and since_s <= closed_at_s:
                self.end(intent.key, RentalEnding.REFUSED, reason="torn down before", at_s=intent.at_s)
                raise AbandonedError(f"run {self.run} was torn down after this worker had set out: nothing was rented")
            return intent
        raise InternalError(f"generation {generation} of run {self.run} has rented {MAX_RENTALS} times: look at why")

    def end(self, key: LeaseKey, ending: RentalEnding, *, reason: str, at_s: float) -> None:
        """Note that nothing is left of a rental. The first such note stays. Raises ``StoreError``."""
        end = RentalEnd(ending=ending, reason=reason, at_s=at_s)
        with contextlib.suppress(ObjectExistsError), _END:
            self._store.create(self._key(key, "ended"), codec.to_json(end))

    def close(self, *, at_s: float) -> None:
        """Have nothing be rented for whoever has set out by ``at_s`` (Unix seconds). Raises ``StoreError``."""
        with contextlib.suppress(ObjectExistsError), _CLOSE:
            self._store.create(f"{self._prefix}closed-{round(at_s * 1000):015d}.json", codec.to_json(FORMAT_VERSION))

    def _names(self) -> list[str]:
        return [info.key.removeprefix(self._prefix) for info in self._store.list(self._prefix)]

    def _pages(self, names: Sequence[str], *, among: Sequence[str]) -> Pages:
        ended = {match.groups() for match in self._matches(_ENDED, among)}
        found: list[Rental] = []
        damage: list[str] = []
        lost: list[LeaseKey] = []
        for match in self._matches(_INTENDED, names):
            folder = f"g{match[1]}-r{match[2]}"
            num_damaged = len(damage)
            intent = self._intent(folder, damage)
            if intent is not None:
                end_key = f"{self._prefix}{folder}/ended.json"
                end = self._readable(RentalEnd, end_key, damage) if match.groups() in ended else None
                found.append(Rental(intent=intent, end=end))
            elif len(damage) > num_damaged:
                lost.append(LeaseKey(run=self.run, generation=int(match[1]), rental=int(match[2])))
        return Pages(rentals=tuple(found), damage=tuple(damage), lost=tuple(lost))

    def _intent(self, folder: str, damage: list[str]) -> RentalIntent | None:
        """Return what was intended, by its copy where the record is damaged; None: neither is there, or readable."""
        told: list[str] = []
        found = self._readable(RentalIntent, f"{self._prefix}{folder}/intended.json", told)
        if found is None and told:
            found = self._readable(RentalIntent, f"{self._prefix}{folder}/copy.json", told)
            if found is None:
                damage.append(told[0])
            else:
                log.warning("its copy is read instead: %s", told[0])
        return found

    def _readable(self, type_: type[R], key: str, damage: list[str]) -> R | None:
        try:
            return self._read(type_, key)
        except ObjectMissingError:  # somebody removed it since it was listed
            return None
        except StoreError as error:
            damage.append(str(error))
            return None

    @staticmethod
    def _matches(pattern: re.Pattern[str], names: Iterable[str]) -> list[re.Match[str]]:
        return [match for name in names if (match := pattern.fullmatch(name))]

    def _read(self, type_: type[R], key: str) -> R:
        where = f"{self._store.uri}/{key}"
        try:
            record = codec.from_json(type_, self._store.get(key))
        except ValidationError as error:
            hint = "look at the cloud by the run's key, then repair or remove the record"
            raise StoreError(f"{where} is damaged, so that what was rented is unknown: {hint} ({error})") from error
        if record.v != FORMAT_VERSION:
            raise StoreError(f"{where} has format version {record.v}, this package reads {FORMAT_VERSION}")
        return record

    def _key(self, key: LeaseKey, name: str) -> str:
        return f"{self._prefix}{self._folder(key)}/{name}.json"

    @staticmethod
    def _folder(key: LeaseKey) -> str:
        return f"g{key.generation:04d}-r{key.rental:05d}"
