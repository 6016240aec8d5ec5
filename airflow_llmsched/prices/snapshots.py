"""Dated files of offers: the market at one moment, kept so that planning needs no network. Owns the format.

``market/snapshot-20261129T210500Z.json`` holds ``{"v": 1, "taken_at_s": ..., "offers": [...]}``, where an offer has the
fields of :class:`~airflow_llmsched.domain.capacity.Offer`. What was written is read back as it was, to the last bit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.errors import DataError, ObjectMissingError, SpecError, StoreError
from airflow_llmsched.planner.market.price_rows import CLOCK_SKEW_S
from airflow_llmsched.ports import ObjectInfo, ObjectStore
from airflow_llmsched.units import MIB

FORMAT_VERSION = 1
MAX_SNAPSHOT_BYTES = 64 * MIB
"""A larger file is not read: 50,000 offers take about 25 MB."""

PREFIX = "market/"
_STAMP = "%Y%m%dT%H%M%SZ"
_KEY = re.compile(r"snapshot-(\d{8}T\d{6}Z)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketSnapshot:
    """Offers as they were at ``taken_at_s`` (Unix seconds)."""

    taken_at_s: float
    offers: tuple[Offer, ...]


class SnapshotPrices:
    """A ``PriceSource`` over the newest snapshot in a store that is not from the future. No snapshot is no offer."""

    def __init__(self, store: ObjectStore, *, prefix: str = PREFIX) -> None:
        self._store, self._prefix = store, prefix
        self.name = f"snapshots in {store.uri} below {prefix}"

    def offers(self, *, now_s: float) -> PricedOffers:
        """Return what the newest snapshot holds.

        Raises:
            StoreError: the store could not be read.
            DataError: the file is damaged, of another format or too large; the message names it and its bad row.
        """
        dated = self._dated(now_s=now_s)
        newest = self._read(dated[-1]) if dated else None
        return PricedOffers(offers=newest.offers if newest is not None else ())

    def history(self, *, now_s: float, limit: int) -> tuple[MarketSnapshot, ...]:
        """Return the newest ``limit`` snapshots, the oldest of them first. Raises as :meth:`offers`."""
        read = (self._read(info) for info in self._dated(now_s=now_s)[-limit:])
        return tuple(snapshot for snapshot in read if snapshot is not None)

    def readable(self, *, now_s: float, limit: int, max_bytes: int) -> tuple[tuple[MarketSnapshot, ...], list[str]]:
        """Return those of the newest ``limit`` snapshots that can be read, the oldest first, and why others cannot.

        For who can do without. Together they have no more than ``max_bytes``; what is older is left out.
        """
        try:
            dated = self._dated(now_s=now_s)[-limit:]
        except StoreError as error:
            return (), [str(error)]
        snapshots, problems, left_bytes = [], [], max_bytes
        for info in reversed(dated):
            left_bytes -= info.num_bytes
            if left_bytes < 0:
                break
            try:
                snapshot = self._read(info)
            except DataError as error:
                problems.append(str(error))
                continue
            except StoreError as error:  # the store fails, not this file: the next one would have to be waited for, too
                problems.append(str(error))
                break
            snapshots += [] if snapshot is None else [snapshot]
        return tuple(reversed(snapshots)), problems

    def _read(self, info: ObjectInfo) -> MarketSnapshot | None:
        """Return a snapshot, None where it was deleted since it was listed."""
        if info.num_bytes > MAX_SNAPSHOT_BYTES:
            raise DataError(
                f"{info.key} has {info.num_bytes} bytes, more than the {MAX_SNAPSHOT_BYTES} a snapshot may have: "
                "take it again with fewer regions or shapes"
            )
        try:
            data = self._store.get(info.key)
        except ObjectMissingError:
            return None
        return decode_snapshot(data, where=info.key)

    def _dated(self, *, now_s: float) -> list[ObjectInfo]:
        """Return the snapshots that are not from the future, in their order."""
        dated = [
            (taken_at_s, info)
            for info in self._store.list(self._prefix)
            if (taken_at_s := _taken_at_s(info.key.removeprefix(self._prefix))) is not None
            and taken_at_s <= now_s + CLOCK_SKEW_S
        ]
        return [info for _, info in sorted(dated, key=lambda each: each[0])]


def snapshot_key(taken_at_s: float, *, prefix: str = PREFIX) -> str:
    """Return the name of a snapshot taken then, to the second."""
    return f"{prefix}snapshot-{datetime.fromtimestamp(taken_at_s, UTC).strftime(_STAMP)}.json"


def encode_snapshot(snapshot: MarketSnapshot) -> bytes:
    """Return the file's bytes.

    Raises:
        SpecError: a number is not finite, or there are so many offers that the file could not be read back.
    """
    for offer in snapshot.offers:
        problem = _problem(offer)
        if problem:
            raise SpecError(path=f"offers[{_words(offer)}]", hint=problem)
    plain = codec.to_plain(snapshot.offers, tuple[Offer, ...])
    rows = [{name: value for name, value in row.items() if value is not None} for row in plain]
    data = json.dumps(
        {"v": FORMAT_VERSION, "taken_at_s": snapshot.taken_at_s, "offers": rows}, separators=(",", ":"), allow_nan=False
    ).encode()
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise SpecError(
            path="offers", value=len(snapshot.offers), hint=f"must fit into {MAX_SNAPSHOT_BYTES} bytes, not {len(data)}"
        )
    return data


def decode_snapshot(data: bytes, *, where: str) -> MarketSnapshot:
    """Return what :func:`encode_snapshot` wrote.

    Raises:
        DataError: it is no snapshot, or of another format, or damaged; the message names ``where`` and the row.
    """
    try:
        plain = codec.parse_json(data)
    except ValueError as error:
        raise DataError(f"{where} is no whole JSON document ({error}): take the snapshot again") from None
    if not isinstance(plain, dict) or plain.get("v") != FORMAT_VERSION:
        version = plain.get("v") if isinstance(plain, dict) else None
        raise DataError(
            f"{where} is no market snapshot of version {FORMAT_VERSION} (v = {version!r}): take it again, or read it "
            "with the package that wrote it"
        )
    taken_at_s, rows = plain.get("taken_at_s"), plain.get("offers")
    if not isinstance(taken_at_s, int | float) or not math.isfinite(taken_at_s) or not isinstance(rows, list):
        raise DataError(f"{where} lacks a date (taken_at_s) or a list of offers: take the snapshot again")
    return MarketSnapshot(taken_at_s=float(taken_at_s), offers=_offers(rows, where=where))


def _offers(rows: Sequence[Any], *, where: str) -> tuple[Offer, ...]:
    offers = []
    for number, row in enumerate(rows, start=1):
        try:
            offer = codec.from_plain(Offer, row)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "the row"
            raise DataError(f"{where}, row {number}: {field}: {first['msg']}: take the snapshot again") from None
        problem = _problem(offer)
        if problem:
            raise DataError(f"{where}, row {number} ({_words(offer)}): {problem}: take the snapshot again")
        offers.append(offer)
    return tuple(offers)


def _problem(offer: Offer) -> str | None:
    for name in ("usd_per_hour", "priced_at_s", "start_up_s", "loss_per_hour", "starts_at_s", "ends_at_s"):
        value = getattr(offer, name)
        if value is not None and not math.isfinite(value):
            return f"{name} = {value} is no finite number"
    return None if offer.usd_per_hour > 0 else f"usd_per_hour = {offer.usd_per_hour} is not above 0"


def _words(offer: Offer) -> str:
    pool = offer.pool
    return "/".join(part for part in (pool.cloud, pool.region, pool.zone, pool.shape, pool.capacity_type) if part)


def _taken_at_s(name: str) -> float | None:
    found = _KEY.fullmatch(name)
    if not found:
        return None
    try:
        return datetime.strptime(found[1], _STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None  # no day of the calendar
