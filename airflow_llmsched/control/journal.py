"""A run's journal: numbered create-only records on an object store, which is compare-and-swap by number on every store.

A record holds the events of one step of the run, so that they become durable together. Whoever appends says which
number the record gets; if someone else was first, the loser reads again and thinks again.

So that a run of months stays small, old records are copied into create-only bundles and only then deleted. That frees
their numbers in the store but not in the journal: whoever appends looks afterwards whether a bundle already speaks for
the number, and takes the record back if so. Only summary and snapshot are ever overwritten, and both can be made anew
from the records: one lists runs without reading their journals, the other spares reading a long journal from its start.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.control.events import AnyEvent
from airflow_llmsched.control.journal_format import (
    FORMAT_VERSION,
    JournalError,
    Record,
    decode_bundle,
    decode_record,
    encode_bundle,
    encode_record,
)
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import ObjectExistsError, ObjectMissingError, TransientError
from airflow_llmsched.ports import ObjectStore

__all__ = ["FORMAT_VERSION", "Journal", "JournalError", "JournalRaceError", "RunSummary", "list_runs", "run_keys"]

BUNDLE_SIZE = 256
"""Records of one bundle. The newest 256 to 511 records are never bundled."""

_APPEND = EffectPoint("journal.append")
_TAKE_BACK = EffectPoint("journal.take_back")
_BUNDLE = EffectPoint("journal.bundle")
_TIDY = EffectPoint("journal.tidy")
_SUMMARY = EffectPoint("journal.summary")
_SNAPSHOT = EffectPoint("journal.snapshot")

_RECORD_NAME = re.compile(r"\d{8}\.json")
_BUNDLE_NAME = re.compile(r"(\d{8})-(\d{8})\.json")


class JournalRaceError(TransientError):
    """Someone else appended first. Read the journal again; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line about a run, for lists. ``phase`` is a ``machine.RunPhase``; times are Unix seconds.

    ``asks`` is what somebody is to decide about its budget; empty: nothing.
    """

    run_key: RunKey
    phase: str
    generation: int
    attempt: int
    updated_at_s: float
    dag_id: str = ""
    run_id: str = ""
    workload: str = ""
    last_step: int | None = None
    checkpoint_step: int | None = None
    world_size: int | None = None
    released: bool = False
    reason: str = ""
    asks: str = ""
    v: int = FORMAT_VERSION


class Journal:
    """The journal of one run. Remembers records it has read, which never change, but looks for new ones every time."""

    def __init__(self, store: ObjectStore, run_key: RunKey) -> None:
        self._store = store
        self.run_key = run_key
        folder = f"runs/{run_key}"
        self._prefix = f"{folder}/journal/"
        self._bundle_prefix = f"{folder}/bundles/"
        self._summary_key = f"{folder}/summary.json"
        self._snapshot_key = f"{folder}/snapshot.json"
        self._known: dict[int, Record] = {}
        self._bundles: tuple[tuple[int, int], ...] = ()

    def read(self) -> tuple[AnyEvent, ...]:
        """Return all events in order; empty when nothing was ever recorded.

        Raises:
            StoreError: the store could not be read. It says nothing about the run.
            JournalError: a record is missing from the sequence, damaged, or of an unknown version or kind.
        """
        return tuple(event for record in self.records() for event in record)

    def records(self, *, after: int = 0) -> tuple[Record, ...]:
        """Return the events of each record whose number is larger than ``after``. Raises like :meth:`read`."""
        numbers = range(after + 1, self.num_records() + 1)
        return tuple(self._record(number) for number in numbers)

    def num_records(self) -> int:
        """Return how many records there are; the next one's number is 1 more. Raises like :meth:`read`."""
        numbers = self._single_numbers()
        if numbers and numbers[-1] == len(numbers):
            return len(numbers)
        # Bundles are listed after the records: what was bundled in between is then seen twice rather than not at all.
        covered = self._look_for_bundles()
        newest = max(numbers, default=covered)
        missing = sorted(set(range(covered + 1, newest + 1)) - set(numbers))
        if missing:
            raise JournalError(
                f"{self._where(self._key(missing[0]))} is missing although later records exist: restore it from a "
                f"backup ({len(missing)} missing of {newest})"
            )
        return max(newest, covered)

    def append(self, events: Sequence[AnyEvent], *, number: int) -> None:
        """Write ``events`` durably as record ``number``, counted from 1.

        Raises:
            JournalRaceError: that number is taken.
            StoreError: whether it was written is unknown; read the journal again.
        """
        key = self._key(number)
        try:
            with _APPEND:
                self._store.create(key, encode_record(events, number=number))
        except ObjectExistsError as error:
            raise self._race(key) from error
        if number <= self._look_for_bundles():
            with _TAKE_BACK:
                self._store.delete(key)  # nobody reads it: the bundle has spoken for this number since before
            raise self._race(key)
        self._known[number] = tuple(events)
        if number % BUNDLE_SIZE == 0:
            with contextlib.suppress(TransientError, JournalError):  # the record is safe, and tidying can wait
                self.compact()

    def compact(self) -> None:
        """Bundle old records and delete what is bundled. Safe to repeat, to race and to die in. Raises like read."""
        count = self.num_records()
        covered = self._look_for_bundles()
        while count - covered >= 2 * BUNDLE_SIZE:
            self._bundle(covered + 1, covered + BUNDLE_SIZE)
            covered = self._look_for_bundles()
        for number in self._single_numbers():
            if number <= covered:
                with _TIDY:
                    self._store.delete(self._key(number))

    @_SUMMARY
    def write_summary(self, summary: RunSummary) -> None:
        """Overwrite the run's summary. Raises ``StoreError``."""
        self._store.put(self._summary_key, codec.to_json(summary))

    def read_summary(self) -> RunSummary | None:
        """Return the run's summary, None when it has none. Raises ``StoreError``, ``JournalError``."""
        try:
            return _parse_summary(self._where(self._summary_key), self._store.get(self._summary_key))
        except ObjectMissingError:
            return None

    @_SNAPSHOT
    def write_snapshot(self, data: bytes) -> None:
        """Overwrite the run's snapshot (see ``control.snapshots``). Raises ``StoreError``."""
        self._store.put(self._snapshot_key, data)

    def read_snapshot(self) -> bytes | None:
        """Return the run's snapshot as it was written, None when it has none. Raises ``StoreError``."""
        try:
            return self._store.get(self._snapshot_key)
        except ObjectMissingError:
            return None

    def _single_numbers(self) -> list[int]:
        numbers = []
        for info in self._store.list(self._prefix):
            name = info.key.removeprefix(self._prefix)
            if not _RECORD_NAME.fullmatch(name):
                raise JournalError(f"{self._where(info.key)} is no journal record: move it out of the journal")
            numbers.append(int(name.removesuffix(".json")))
        return numbers

    def _look_for_bundles(self) -> int:
        """Return the number up to which bundles hold the records, 0 when there are none."""
        found = []
        for info in self._store.list(self._bundle_prefix):
            match = _BUNDLE_NAME.fullmatch(info.key.removeprefix(self._bundle_prefix))
            if match is None:
                raise JournalError(f"{self._where(info.key)} is no bundle of records: move it out of the journal")
            found.append((int(match[1]), int(match[2])))
        covered = 0
        for first, last in found:
            if first != covered + 1 or last < first:
                raise JournalError(
                    f"the bundle of {self._where(self._bundle_prefix)} with record {covered + 1} is missing although "
                    f"record {first} is bundled: restore it from a backup"
                )
            covered = last
        self._bundles = tuple(found)
        return covered

    def _bundle(self, first: int, last: int) -> None:
        """Copy records into a bundle. Of two that do it at once one wins, and both would have written the same."""
        records = [self._record(number) for number in range(first, last + 1)]
        with contextlib.suppress(ObjectExistsError), _BUNDLE:
            self._store.create(self._bundle_key(first, last), encode_bundle(records, first=first))
        self._read_bundle(first, last)  # before anything is deleted

    def _record(self, number: int) -> Record:
        if number not in self._known:
            self._load(number)
        return self._known[number]

    def _load(self, number: int) -> None:
        key = self._key(number)
        if not self._load_bundled(number):
            try:
                data = self._store.get(key)
            except ObjectMissingError as error:
                self._look_for_bundles()  # it may have been bundled since it was listed
                if not self._load_bundled(number):
                    raise JournalError(
                        f"{self._where(key)} vanished while the journal was read: restore it from a backup"
                    ) from error
            else:
                self._known[number] = decode_record(data, number=number, where=self._where(key))

    def _load_bundled(self, number: int) -> bool:
        for first, last in self._bundles:
            if first <= number <= last:
                self._read_bundle(first, last)
                return True
        return False

    def _read_bundle(self, first: int, last: int) -> None:
        key = self._bundle_key(first, last)
        try:
            data = self._store.get(key)
        except ObjectMissingError as error:
            raise JournalError(f"{self._where(key)} vanished: restore it from a backup") from error
        records = decode_bundle(data, first=first, last=last, where=self._where(key))
        self._known.update(enumerate(records, start=first))

    def _race(self, key: str) -> JournalRaceError:
        return JournalRaceError(f"{self._where(key)} is already there: another worker goes on with run {self.run_key}")

    def _key(self, number: int) -> str:
        return f"{self._prefix}{number:08d}.json"

    def _bundle_key(self, first: int, last: int) -> str:
        return f"{self._bundle_prefix}{first:08d}-{last:08d}.json"

    def _where(self, key: str) -> str:
        return f"{self._store.uri}/{key}"


def run_keys(store: ObjectStore) -> Iterator[RunKey]:
    """Yield the key of every run that has anything below the state root, in order. Raises ``StoreError``."""
    for name in store.folders("runs/"):
        yield RunKey(name)


def list_runs(store: ObjectStore) -> Iterator[RunSummary]:
    """Yield the summary of every run that has one. Raises ``StoreError``, ``JournalError``."""
    for key in run_keys(store):
        summary = Journal(store, key).read_summary()
        if summary is not None:
            yield summary


def _parse_summary(where: str, data: bytes) -> RunSummary:
    try:
        summary = codec.from_json(RunSummary, data)
    except ValidationError as error:
        raise JournalError(f"{where} is damaged: delete it, the run's next step writes it anew ({error})") from error
    if summary.v != FORMAT_VERSION:
        raise JournalError(f"{where} has format version {summary.v}, this package reads {FORMAT_VERSION}")
    return summary
