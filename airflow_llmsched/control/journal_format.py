"""How events become bytes and come back: records, and bundles of them. Pure; loud about whatever it does not know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.control.events import EVENT_KINDS, AnyEvent, Event
from airflow_llmsched.errors import DataError

FORMAT_VERSION = 1

Record = tuple[AnyEvent, ...]
"""The events of one step of a run."""


class JournalError(DataError):
    """Repair the journal or use the package that wrote it: a record is missing, damaged or of another format."""


def encode_record(events: Sequence[AnyEvent], *, number: int) -> bytes:
    """Return record ``number``."""
    return _dump(_plain(events, number=number))


def decode_record(data: bytes, *, number: int, where: str) -> Record:
    """Return the events of record ``number``. Raises ``JournalError`` naming ``where``."""
    return _events(_load(data, where=where), number=number, where=where)


def encode_bundle(records: Sequence[Record], *, first: int) -> bytes:
    """Return a bundle of consecutive records, the first of which has number ``first``."""
    plain = [_plain(record, number=first + index) for index, record in enumerate(records)]
    return _dump({"v": FORMAT_VERSION, "first": first, "last": first + len(records) - 1, "records": plain})


def decode_bundle(data: bytes, *, first: int, last: int, where: str) -> tuple[Record, ...]:
    """Return the records ``first`` to ``last`` of a bundle. Raises ``JournalError`` naming ``where``."""
    bundle = _load(data, where=where)
    records = bundle.get("records")
    if (
        not isinstance(records, list)
        or len(records) != last - first + 1
        or (bundle.get("first"), bundle.get("last")) != (first, last)
    ):
        raise JournalError(f"{where} does not hold the records {first} to {last}: restore it from a backup")
    return tuple(_events(record, number=first + index, where=where) for index, record in enumerate(records))


def _plain(events: Sequence[AnyEvent], *, number: int) -> dict[str, Any]:
    return {"v": FORMAT_VERSION, "number": number, "events": codec.to_plain(tuple(events), tuple[Event, ...])}


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _load(data: bytes, *, where: str) -> dict[str, Any]:
    try:
        value = codec.parse_json(data)
    except ValueError as error:
        raise JournalError(f"{where} is not JSON: restore it from a backup ({error})") from error
    version = value.get("v") if isinstance(value, dict) else None
    if not isinstance(value, dict) or version != FORMAT_VERSION:
        raise JournalError(
            f"{where} has format version {version!r}, this package reads {FORMAT_VERSION}: use the version of the "
            "package that wrote it"
        )
    return value


def _events(record: Any, *, number: int, where: str) -> Record:
    plain = record.get("events") if isinstance(record, dict) else None
    for event in plain if isinstance(plain, list) else []:
        kind = event.get("kind") if isinstance(event, dict) else None
        if kind not in EVENT_KINDS:
            raise JournalError(
                f"{where} holds an event of unknown kind {kind!r}: a newer package wrote it; use that version"
            )
    try:
        events: Record = codec.from_plain(tuple[Event, ...], plain)
    except ValidationError as error:
        raise JournalError(f"{where} is damaged: restore it from a backup ({error})") from error
    if record.get("number") != number:
        raise JournalError(f"{where} says it is record {record.get('number')!r}: restore it from a backup")
    return events
