from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.errors import DataError, SpecError, StoreError
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.prices import snapshots
from airflow_llmsched.prices.snapshots import (
    MarketSnapshot,
    SnapshotPrices,
    decode_snapshot,
    encode_snapshot,
    snapshot_key,
)
from airflow_llmsched.units import HOUR_S
from tests.support.market import NOW_S, RESERVED, SPOT, many_offers, offer_of
from tests.support.memory_store import MemoryStore

FULL = offer_of(
    3.3,
    RESERVED,
    num_nodes=4,
    loss_per_hour=0.25,
    starts_at_s=NOW_S,
    ends_at_s=NOW_S + HOUR_S,
    jurisdiction="EU",
    vendor="nvidia",
    energy_usd_per_hour=0.7,
    carbon_g_per_hour=310.0,
)
SNAPSHOT = MarketSnapshot(taken_at_s=NOW_S, offers=(FULL, offer_of(0.1 + 0.2, SPOT, zone="")))


def file_of(**changes: Any) -> bytes:
    return json.dumps({**json.loads(encode_snapshot(SNAPSHOT)), **changes}).encode()


def rows_with(**changes: Any) -> bytes:
    rows = json.loads(encode_snapshot(SNAPSHOT))["offers"]
    return file_of(offers=[rows[0], {**rows[1], **changes}])


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def kept(store: MemoryStore, *offers: Any, at_s: float) -> None:
    store.put(snapshot_key(at_s), encode_snapshot(MarketSnapshot(taken_at_s=at_s, offers=offers)))


def test_a_history_is_the_newest_snapshots_in_their_order(store: MemoryStore) -> None:
    for hour in (3, 1, 2, 9):
        kept(store, offer_of(float(hour)), at_s=NOW_S + hour * HOUR_S)
    history = SnapshotPrices(store).history(now_s=NOW_S + 4 * HOUR_S, limit=2)
    assert [each.offers[0].usd_per_hour for each in history] == [2.0, 3.0]
    assert SnapshotPrices(MemoryStore()).history(now_s=NOW_S, limit=2) == ()


def test_what_of_a_history_cannot_be_read_is_told_and_hides_nothing_else(store: MemoryStore) -> None:
    for hour in (1, 2, 3):
        kept(store, offer_of(float(hour)), at_s=NOW_S + hour * HOUR_S)
    store.put(snapshot_key(NOW_S + 2 * HOUR_S), b"{")
    source = SnapshotPrices(store)
    read, problems = source.readable(now_s=NOW_S + 4 * HOUR_S, limit=9, max_bytes=10**6)
    assert [each.offers[0].usd_per_hour for each in read] == [1.0, 3.0]
    (problem,) = problems
    assert snapshot_key(NOW_S + 2 * HOUR_S) in problem
    assert source.readable(now_s=NOW_S + 4 * HOUR_S, limit=1, max_bytes=10**6)[0] == read[1:]
    assert source.readable(now_s=NOW_S + 4 * HOUR_S, limit=9, max_bytes=300) == (read[1:], [problem])
    assert source.readable(now_s=NOW_S + 4 * HOUR_S, limit=9, max_bytes=0) == ((), [])


@pytest.mark.parametrize("broken", ["list", "get"])
def test_a_history_in_a_store_that_fails_is_none(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    kept(store, FULL, at_s=NOW_S)
    kept(store, FULL, at_s=NOW_S + HOUR_S)
    asked = []

    def fails(key: str) -> Any:
        asked.append(key)
        raise StoreError("no network")

    monkeypatch.setattr(store, broken, fails)
    found = SnapshotPrices(store).readable(now_s=NOW_S + 2 * HOUR_S, limit=9, max_bytes=10**6)
    assert found == ((), ["no network"])
    assert len(asked) == 1


def test_what_was_written_is_read_back_to_the_last_bit() -> None:
    assert decode_snapshot(encode_snapshot(SNAPSHOT), where="x") == SNAPSHOT


@given(
    prices=st.lists(st.floats(min_value=1e-6, max_value=1e6), max_size=8),
    taken_at_s=st.floats(min_value=1e9, max_value=4e9),
    region=st.text(max_size=12),
)
def test_so_is_every_price_and_name(prices: list[float], taken_at_s: float, region: str) -> None:
    offers = tuple(offer_of(price, region=region, zone=str(number)) for number, price in enumerate(prices))
    snapshot = MarketSnapshot(taken_at_s=taken_at_s, offers=offers)
    assert decode_snapshot(encode_snapshot(snapshot), where="x") == snapshot


def test_fifty_thousand_offers_fit_into_the_limit() -> None:
    data = encode_snapshot(MarketSnapshot(taken_at_s=NOW_S, offers=tuple(many_offers(5_000, seed=1))))
    assert len(data) * 10 < snapshots.MAX_SNAPSHOT_BYTES / 2


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no whole JSON document"),
        (encode_snapshot(SNAPSHOT)[:-10], "no whole JSON document"),
        (b"\xff\xfe", "no whole JSON document"),
        (b"[" * 5_000 + b"]" * 5_000, "too deep"),
        (b"[]", "version 1 (v = None)"),
        (file_of(v=2), "version 1 (v = 2)"),
        (file_of(taken_at_s=None), "lacks a date"),
        (file_of(offers={}), "lacks a date"),
        (rows_with(usd_per_hour="cheap"), "row 2: usd_per_hour:"),
        (rows_with(pool={"cloud": "aws"}), "row 2: pool.region:"),
        (rows_with(usd_per_hour=float("nan")), "row 2 (aws/east/p5/spot): usd_per_hour = nan is no finite number"),
        (rows_with(usd_per_hour=0), "row 2 (aws/east/p5/spot): usd_per_hour = 0.0 is not above 0"),
        (file_of(offers=[7]), "row 1: the row:"),
    ],
)
def test_damaged_file_is_refused_by_name_and_row(data: bytes, complaint: str) -> None:
    with pytest.raises(DataError) as refused:
        decode_snapshot(data, where="market/s.json")
    assert str(refused.value).startswith("market/s.json")
    assert complaint in str(refused.value)


@pytest.mark.parametrize("usd_per_hour", [float("nan"), float("inf"), 0.0, -2.0])
def test_price_that_is_none_is_not_written(usd_per_hour: float) -> None:
    bad = replace(FULL, usd_per_hour=usd_per_hour)
    with pytest.raises(SpecError, match=r"offers\[aws/east/a/p5/reserved\].*usd_per_hour"):
        encode_snapshot(replace(SNAPSHOT, offers=(FULL, bad)))


def test_more_than_could_be_read_back_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", 100)
    with pytest.raises(SpecError, match="must fit into 100 bytes"):
        encode_snapshot(SNAPSHOT)


def test_newest_snapshot_that_is_not_from_the_future_is_read(store: MemoryStore) -> None:
    kept(store, offer_of(1.0), at_s=NOW_S - 4 * HOUR_S)
    kept(store, FULL, at_s=NOW_S - HOUR_S)
    kept(store, offer_of(3.0), at_s=NOW_S + 48 * HOUR_S)
    store.put("market/notes.txt", b"not ours")
    store.put("market/snapshot-20269999T000000Z.json", b"no such day")
    assert SnapshotPrices(store).offers(now_s=NOW_S) == PricedOffers(offers=(FULL,))
    assert SnapshotPrices(store).offers(now_s=NOW_S - 3 * HOUR_S).offers[0].usd_per_hour == 1.0


def test_no_snapshot_is_no_offer(store: MemoryStore) -> None:
    assert SnapshotPrices(store).offers(now_s=NOW_S) == PricedOffers(offers=())


def test_file_beyond_the_limit_is_refused_before_it_is_fetched(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(store, FULL, at_s=NOW_S)
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", 100)
    monkeypatch.setattr(store, "get", lambda _key: pytest.fail("it was fetched"))
    with pytest.raises(DataError, match="more than the 100 a snapshot may have"):
        SnapshotPrices(store).offers(now_s=NOW_S)


def test_store_that_cannot_be_read_is_not_an_empty_one(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_prefix: str) -> Any:
        raise StoreError("no network")

    monkeypatch.setattr(store, "list", broken)
    with pytest.raises(StoreError):
        SnapshotPrices(store).offers(now_s=NOW_S)


def test_snapshot_in_a_folder_on_disk_is_read_by_its_name(tmp_path: Path) -> None:
    disk = LocalStore(tmp_path)
    disk.put(snapshot_key(NOW_S), encode_snapshot(SNAPSHOT))
    assert [path.name for path in tmp_path.rglob("*.json")] == ["snapshot-20270115T080000Z.json"]
    source = SnapshotPrices(disk)
    assert source.offers(now_s=NOW_S).offers == SNAPSHOT.offers
    assert str(tmp_path) in source.name
