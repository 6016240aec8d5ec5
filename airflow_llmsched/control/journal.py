"""A run's journal: numbered create-only records on an object store, which is compare-and-swap by number on every store.

A record holds the events of one step of the run, so that they become durable together. Whoever appends says which
number the record gets; if someone else was first, the loser reads again and thinks again. Nothing is ever overwritten
but the summary, which exists so that runs can be listed without reading their journals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.control.events import EVENT_KINDS, AnyEvent, Event
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import DataError, ObjectExistsError, ObjectMissingError, TransientError
from airflow_llmsched.ports import ObjectStore

FORMAT_VERSION = 1

_RECORD_NAME = re.compile(r"\d{8}\.json")
_SUMMARY_KEY = re.compile(r"runs/[^/]+/summary\.json")


class JournalError(DataError):
    """Repair the journal or use the package that wrote it: a record is missing, damaged or of another format."""


class JournalRaceError(TransientError):
    """Someone else appended first. Read the journal again; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line about a run, for lists. ``phase`` is a ``machine.RunPhase``; times are Unix seconds."""

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
    v: int = FORMAT_VERSION


class Journal:
    """The journal of one run. Remembers records it has read, which never change, but looks for new ones every time."""

    def __init__(self, store: ObjectStore, run_key: RunKey) -> None:
        self._store = store
        self.run_key = run_key
        self._prefix = f"runs/{run_key}/journal/"
        self._read: list[tuple[AnyEvent, ...]] = []
        self._summary_key = f"runs/{run_key}/summary.json"

    def read(self) -> tuple[AnyEvent, ...]:
        """Return all events in order; empty when nothing was ever recorded.

        Raises:
            StoreError: the store could not be read. It says nothing about the run.
            JournalError: a record is missing from the sequence, damaged, or of an unknown version or kind.
        """
        return tuple(event for record in self.records() for event in record)

    def records(self) -> tuple[tuple[AnyEvent, ...], ...]:
        """Return the events of each record; the next one's number is the count plus 1. Raises like :meth:`read`."""
        for number in range(len(self._read) + 1, self._count() + 1):
            self._read.append(self._events(number))
        return tuple(self._read)

    def append(self, events: Sequence[AnyEvent], *, number: int) -> None:
        """Write ``events`` durably as record ``number``, counted from 1.

        Raises:
            JournalRaceError: that number is taken.
            StoreError: whether it was written is unknown; read the journal again.
        """
        record = {"v": FORMAT_VERSION, "number": number, "events": codec.to_plain(tuple(events), tuple[Event, ...])}
        key = self._key(number)
        try:
            self._store.create(key, json.dumps(record, separators=(",", ":")).encode())
        except ObjectExistsError as error:
            raise JournalRaceError(
                f"{self._where(key)} is already there: another worker goes on with run {self.run_key}"
            ) from error

    def write_summary(self, summary: RunSummary) -> None:
        """Overwrite the run's summary. Raises ``StoreError``."""
        self._store.put(self._summary_key, codec.to_json(summary))

    def read_summary(self) -> RunSummary | None:
        """Return the run's summary, None when it has none. Raises ``StoreError``, ``JournalError``."""
        try:
            return _parse_summary(self._where(self._summary_key), self._store.get(self._summary_key))
        except ObjectMissingError:
            return None

    def _count(self) -> int:
        numbers = []
        for info in self._store.list(self._prefix):
            name = info.key.removeprefix(self._prefix)
            if not _RECORD_NAME.fullmatch(name):
                raise JournalError(f"{self._where(info.key)} is no journal record: move it out of the journal")
            numbers.append(int(name.removesuffix(".json")))
        missing = sorted(set(range(1, max(numbers, default=0) + 1)) - set(numbers))
        if missing:
            raise JournalError(
                f"{self._where(self._key(missing[0]))} is missing although later records exist: restore it from a "
                f"backup ({len(missing)} missing of {max(numbers)})"
            )
        return len(numbers)

    def _events(self, number: int) -> tuple[AnyEvent, ...]:
        key = self._key(number)
        where = self._where(key)
        try:
            record = json.loads(self._store.get(key))
        except ObjectMissingError as error:
            raise JournalError(f"{where} vanished while the journal was read: restore it from a backup") from error
        except ValueError as error:
            raise JournalError(f"{where} is not JSON: restore it from a backup ({error})") from error
        if not isinstance(record, dict) or record.get("v") != FORMAT_VERSION:
            version = record.get("v") if isinstance(record, dict) else None
            raise JournalError(
                f"{where} has format version {version!r}, this package reads {FORMAT_VERSION}: use the version of the "
                "package that wrote it"
            )
        _check_kinds(where, record)
        try:
            events: tuple[AnyEvent, ...] = codec.from_plain(tuple[Event, ...], record.get("events"))
        except ValidationError as error:
            raise JournalError(f"{where} is damaged: restore it from a backup ({error})") from error
        if record.get("number") != number:
            raise JournalError(f"{where} says it is record {record.get('number')!r}: restore it from a backup")
        return events

    def _key(self, number: int) -> str:
        return f"{self._prefix}{number:08d}.json"

    def _where(self, key: str) -> str:
        return f"{self._store.uri}/{key}"


def list_runs(store: ObjectStore) -> Iterator[RunSummary]:
    """Yield the summary of every run below the state root. Raises ``StoreError``, ``JournalError``."""
    for info in store.list("runs/"):
        if _SUMMARY_KEY.fullmatch(info.key):
            yield _parse_summary(f"{store.uri}/{info.key}", store.get(info.key))


def _check_kinds(where: str, record: dict[str, object]) -> None:
    events = record.get("events")
    for event in events if isinstance(events, list) else []:
        kind = event.get("kind") if isinstance(event, dict) else None
        if kind not in EVENT_KINDS:
            raise JournalError(
                f"{where} holds an event of unknown kind {kind!r}: a newer package wrote it; use that version"
            )


def _parse_summary(where: str, data: bytes) -> RunSummary:
    try:
        summary = codec.from_json(RunSummary, data)
    except ValidationError as error:
        raise JournalError(f"{where} is damaged: delete it, the run's next step writes it anew ({error})") from error
    if summary.v != FORMAT_VERSION:
        raise JournalError(f"{where} has format version {summary.v}, this package reads {FORMAT_VERSION}")
    return summary
