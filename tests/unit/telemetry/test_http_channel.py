"""Control's end in an object store: grants, bounds and damage. What both ends prove together is in tests/contract."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.errors import CouldNotLookError, SpecError, StoreError
from airflow_llmsched.telemetry.http_channel import GrantTerms, ObjectChannel
from tests.support.memory_store import MemoryStore

N0, N1 = NodeId("n0"), NodeId("n1")
START = ChannelCursor(positions={})


class Signer:
    def presign(self, method: Literal["GET", "PUT"], keys: Sequence[str], *, lifetime_s: float) -> Sequence[str]:
        return [f"https://store/{key}?{method}&{lifetime_s:g}" for key in keys]


def channel(store: MemoryStore, links: Path | None = None, **terms: Any) -> ObjectChannel:
    return ObjectChannel(store, "/ch/", presigner=Signer() if links else None, links=links, terms=GrantTerms(**terms))


def put(store: MemoryStore, node: str, seq: int) -> None:
    store.put(f"ch/up/{node}/{seq:010d}.json", codec.to_json(NodeReport(node=NodeId(node), seq=seq, at_s=1.0)))


def grant(store: MemoryStore, node: str = "n0") -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(store.get(f"ch/down/grants/{node}.json"))
    return plain


def places(store: MemoryStore) -> tuple[int, int]:
    plain = grant(store)
    return plain["first_seq"], plain["first_seq"] + len(plain["up"]) - 1


def test_agents_that_need_no_urls_get_none() -> None:
    store = MemoryStore()
    assert channel(store).prepare([N0], at_s=0.0) is None
    assert not any("grants" in info.key for info in store.list(""))


def test_grant_names_each_place_and_says_how_long_it_holds(tmp_path: Path) -> None:
    store = MemoryStore()
    assert channel(store, tmp_path / "l", num_urls=2, lifetime_s=60.0).prepare([N0], at_s=5.0) == str(tmp_path / "l")
    assert grant(store) == json.loads((tmp_path / "l" / "n0.json").read_text())
    assert grant(store)["up"] == [f"https://store/ch/up/n0/000000000{seq}.json?PUT&60" for seq in (1, 2)]
    assert grant(store)["down"] == {
        "lease": "https://store/ch/down/lease.json?GET&60",
        "orders": "https://store/ch/down/orders.json?GET&60",
        "revoked": "https://store/ch/down/revoked.json?GET&60",
        "renewal": "https://store/ch/down/grants/n0.json?GET&60",
    }
    assert (grant(store)["issued_at_s"], grant(store)["expires_at_s"]) == (5.0, 65.0)


def test_places_are_renewed_once_half_are_used(tmp_path: Path) -> None:
    store = MemoryStore()
    control = channel(store, tmp_path, num_urls=10)
    control.prepare([N0], at_s=0.0)
    control.tend(ChannelCursor(positions={"n0": 4}), at_s=1.0)
    assert places(store) == (1, 10)
    control.tend(ChannelCursor(positions={"n0": 5}), at_s=2.0)
    assert places(store) == (6, 15)


def test_places_are_renewed_once_half_of_their_time_has_passed(tmp_path: Path) -> None:
    store = MemoryStore()
    channel(store, tmp_path, num_urls=10, lifetime_s=100.0).prepare([N0], at_s=0.0)
    control = channel(store, tmp_path, num_urls=10, lifetime_s=100.0)
    control.tend(START, at_s=49.0)
    assert grant(store)["issued_at_s"] == 0.0
    control.tend(START, at_s=50.0)
    assert (grant(store)["issued_at_s"], places(store)) == (50.0, (1, 10))


def test_reader_that_lags_behind_takes_no_places_back(tmp_path: Path) -> None:
    store = MemoryStore()
    channel(store, tmp_path, num_urls=10, lifetime_s=100.0).prepare([N0], at_s=0.0)
    channel(store, tmp_path, num_urls=10, lifetime_s=100.0).tend(ChannelCursor(positions={"n0": 100}), at_s=1.0)
    assert places(store) == (101, 110)
    channel(store, tmp_path, num_urls=10, lifetime_s=100.0).tend(START, at_s=90.0)
    assert (grant(store)["issued_at_s"], places(store)) == (90.0, (101, 110))


def test_one_read_is_bounded_and_the_next_goes_on() -> None:
    store = MemoryStore()
    control = channel(store)
    control.prepare([N0, N1], at_s=0.0)
    for seq in range(1, 101):
        put(store, "n0", seq)
    put(store, "n1", 1)
    reports, cursor = control.read(START)
    assert (len(reports), cursor.positions) == (65, {"n0": 64, "n1": 1})
    reports, cursor = control.read(cursor)
    assert (len(reports), cursor.positions) == (36, {"n0": 100, "n1": 1})


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"node":"n1","seq":1,"at_s":0}', b'{"node":"n0","seq":2,"at_s":0}'])
def test_corrupt_report_is_skipped_and_counted(data: bytes) -> None:
    store = MemoryStore()
    control = channel(store)
    control.prepare([N0], at_s=0.0)
    store.put("ch/up/n0/0000000001.json", data)
    put(store, "n0", 2)
    reports, cursor = control.read(START)
    assert [report.seq for report in reports] == [2]
    assert (control.num_corrupt, cursor.positions) == (1, {"n0": 2})


def test_store_that_cannot_be_read_is_never_taken_for_silence() -> None:
    class Broken(MemoryStore):
        def get(self, key: str) -> bytes:
            raise StoreError(f"cannot read {key}")

    with pytest.raises(CouldNotLookError, match="cannot read the channel ch"):
        channel(Broken()).read(START)


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"first_seq":"x","up":[],"issued_at_s":1}'])
def test_damaged_grant_is_named(tmp_path: Path, data: bytes) -> None:
    store = MemoryStore()
    channel(store, tmp_path).prepare([N0], at_s=0.0)
    store.put("ch/down/grants/n0.json", data)
    with pytest.raises(StoreError, match=r"down/grants/n0\.json"):
        channel(store, tmp_path).tend(START, at_s=0.0)


def test_folder_for_links_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    links = tmp_path / "links"
    (links / "n0.json").mkdir(parents=True)
    with pytest.raises(StoreError, match="grant of node n0"):
        channel(MemoryStore(), links).prepare([N0], at_s=0.0)


def test_fewer_than_two_urls_are_refused() -> None:
    with pytest.raises(SpecError, match="2 or more"):
        GrantTerms(num_urls=1)


def test_latest_is_the_newest_report_of_each_node_and_comes_once(tmp_path: Path) -> None:
    store = MemoryStore()
    control = channel(store, tmp_path / "l")
    control.prepare([N0, N1], at_s=0.0)
    for node, seq in (("n0", 1), ("n0", 2), ("n0", 3), ("n1", 1)):
        put(store, node, seq)
    reports, cursor = control.latest(START)
    assert [(report.node, report.seq) for report in reports] == [(N0, 3), (N1, 1)]
    assert control.latest(cursor) == ([], cursor)


@pytest.mark.parametrize("num_reports", [0, 1, 2, 63, 64, 65, 127, 1000])
def test_recent_reports_are_found_by_few_looks(num_reports: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    control = channel(store)
    control.prepare([N0], at_s=0.0)
    for seq in range(1, num_reports + 1):
        put(store, "n0", seq)
    get, looks = store.get, []

    def count(key: str) -> bytes:
        looks.append(key)
        return get(key)

    monkeypatch.setattr(store, "get", count)
    found = [report.seq for report in control.recent()]
    assert found == list(range(max(0, num_reports - 64) + 1, num_reports + 1))
    assert len(looks) < 64 + 25
