"""Snapshots: a run's state up to a number, so that months of records need not be read to go on with it.

A snapshot is a shortcut and never an authority. It is used only if this very package version wrote it, its own checksum
holds, and the record it ends with is still the one in the journal; anything else is passed over for the records.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass

from airflow_llmsched import __version__, codec
from airflow_llmsched.control.events import Event
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.journal_format import Record
from airflow_llmsched.control.machine import advance
from airflow_llmsched.control.run_state import RunState
from airflow_llmsched.errors import StoreError

SNAPSHOT_VERSION = 4
"""Raise it when the machine folds old events to another state than before."""

SNAPSHOT_EVERY = 64
"""Records from one snapshot to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A run's state after record ``number``; ``snapshot_number`` is that of the snapshot it was built on, or 0."""

    state: RunState
    number: int
    snapshot_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    number: int
    last_record_sha256: str
    state: RunState


def rebuild(journal: Journal) -> Rebuilt:
    """Return the run's state as the journal has it now. Raises ``StoreError``, ``JournalError``, ``InternalError``."""
    snapshot = _read(journal)
    if snapshot is not None:
        last, *later = journal.records(after=snapshot.number - 1) or ((),)
        if _sha256(last) == snapshot.last_record_sha256:
            return _rebuilt(snapshot.state, snapshot.number, tuple(later))
    return _rebuilt(RunState(run=journal.run_key), 0, journal.records())


def keep(journal: Journal, state: RunState, *, number: int, last: Record) -> None:
    """Overwrite the snapshot with ``state``, which holds after record ``number``, whose events are ``last``."""
    snapshot = _Snapshot(number=number, last_record_sha256=_sha256(last), state=state)
    body = codec.to_json(snapshot).decode()
    envelope = {"v": SNAPSHOT_VERSION, "package": __version__, "sha256": _text_sha256(body), "body": body}
    with contextlib.suppress(StoreError):  # the records say it all
        journal.write_snapshot(json.dumps(envelope, separators=(",", ":")).encode())


def _rebuilt(state: RunState, snapshot_number: int, records: tuple[Record, ...]) -> Rebuilt:
    for record in records:
        for event in record:
            state, _ = advance(state, event)
    return Rebuilt(state=state, number=snapshot_number + len(records), snapshot_number=snapshot_number)


def _read(journal: Journal) -> _Snapshot | None:
    """Return the snapshot if it is whole, of this package, and of this run; else None."""
    with contextlib.suppress(StoreError, ValueError, KeyError, TypeError):
        envelope = codec.parse_json(journal.read_snapshot() or b"null")
        ours = (envelope["v"], envelope["package"]) == (SNAPSHOT_VERSION, __version__)
        if ours and _text_sha256(str(envelope["body"])) == envelope["sha256"]:
            snapshot = codec.from_json(_Snapshot, envelope["body"])
            return snapshot if snapshot.state.run == journal.run_key and snapshot.number >= 1 else None
    return None


def _sha256(record: Record) -> str:
    return hashlib.sha256(codec.to_json(record, tuple[Event, ...])).hexdigest()


def _text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
