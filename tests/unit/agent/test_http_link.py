"""The supervisor's end over HTTP, when the network or the store misbehaves. The contract is in tests/contract."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import http_link
from airflow_llmsched.agent.http_link import HttpLink
from airflow_llmsched.control.records import read_all
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import ChannelCursor
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.telemetry.http_channel import GrantTerms, ObjectChannel
from airflow_llmsched.testing.channel_contract import expected, report, send, until, until_ordered
from tests.support.signed_store import SignedStore

NODE = NodeId("n0")


class Wire:
    """Control's end, the server between, and any number of agents' ends."""

    def __init__(self, root: Path, signed: SignedStore, store: LocalStore) -> None:
        self.signed = signed
        self.store = store
        self.links = root / "links"
        self.opened: list[HttpLink] = []

    def control(self, *, num_urls: int = 64, lifetime_s: float = 3600.0) -> ObjectChannel:
        terms = GrantTerms(num_urls=num_urls, lifetime_s=lifetime_s)
        return ObjectChannel(self.store, "ch", presigner=self.signed, links=self.links, terms=terms)

    def link(self, *, flush_interval_s: float = 0.001, lease_s: float | None = 0.6) -> HttpLink:
        link = HttpLink(self.links / "n0.json", node=NODE, flush_interval_s=flush_interval_s, lease_s=lease_s)
        self.opened.append(link)
        return link


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    store = LocalStore(str(tmp_path / "store"))
    with SignedStore(store) as signed:
        wire = Wire(tmp_path, signed, store)
        yield wire
        for link in wire.opened:
            link.close({"seq": 0}, limit_s=0.0)


def prepared(wire: Wire, **terms: Any) -> ObjectChannel:
    control = wire.control(**terms)
    control.prepare([NODE], at_s=time.time())
    return control


def test_grant_is_a_file_that_only_its_owner_may_read(wire: Wire) -> None:
    prepared(wire)
    assert (wire.links / "n0.json").stat().st_mode & 0o777 == 0o600
    assert wire.links.stat().st_mode & 0o777 == 0o700


def test_missing_grant_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"node n0 is missing: .*n0\.json"):
        HttpLink(tmp_path / "n0.json", node="n0", flush_interval_s=1.0, lease_s=None)


def test_report_whose_answer_was_lost_is_sent_again_and_counts_once(wire: Wire) -> None:
    control = prepared(wire)
    wire.signed.lose_answers = 2
    link = wire.link()
    send(link, report(NODE, 1))
    assert link.close(report(NODE, 2), limit_s=60.0)
    assert [key.rpartition("/")[2] for key in wire.signed.puts] == [
        "0000000001.json",
        "0000000001.json",
        "0000000001.json",
        "0000000002.json",
    ]
    assert list(read_all(control)) == [expected(NODE, 1), expected(NODE, 2)]


@pytest.mark.parametrize("whim", ["cut", "refuse", "slow_s"])
def test_store_that_does_not_serve_never_makes_the_caller_wait(
    wire: Wire, whim: str, capfd: pytest.CaptureFixture[str]
) -> None:
    control = prepared(wire)
    link = wire.link()
    setattr(wire.signed, whim, {"cut": True, "refuse": 503, "slow_s": 3.0}[whim])
    start_s = time.monotonic()
    if link.ready():
        link.send(report(NODE, 1))
    assert not link.ready()
    link.down()
    assert time.monotonic() - start_s < 1.0
    if whim != "slow_s":
        until(lambda: "cannot send reports" in capfd.readouterr().err)
    setattr(wire.signed, whim, {"cut": False, "refuse": None, "slow_s": 0.0}[whim])
    until(link.ready)
    assert list(read_all(control)) == [expected(NODE, 1)]


def test_trouble_is_told_once_with_its_end_and_never_with_a_url(wire: Wire, capfd: pytest.CaptureFixture[str]) -> None:
    prepared(wire)
    wire.signed.refuse = 503
    link = wire.link()
    send(link, report(NODE, 1))
    time.sleep(1.0)  # several tries
    wire.signed.refuse = None
    until(link.ready)
    said = capfd.readouterr().err
    assert said.count("node n0: channel: cannot send reports: HTTP 503; gathering them meanwhile") == 1
    assert said.count("channel: up works again") == 1
    assert "signature" not in said
    assert "127.0.0.1" not in said


def test_lease_that_cannot_be_read_is_no_renewal(wire: Wire) -> None:
    control = prepared(wire)
    control.renew(until_s=1000.0)
    link = wire.link()
    until(lambda: link.down().lease_until_s == 1000.0)
    wire.signed.cut = True
    control.renew(until_s=2000.0)
    time.sleep(0.5)  # several looks
    assert link.down().lease_until_s == 1000.0
    wire.signed.cut = False
    until(lambda: link.down().lease_until_s == 2000.0)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"until_s":"soon"}'])
def test_damaged_lease_is_no_renewal_and_later_ones_count(wire: Wire, content: bytes) -> None:
    control = prepared(wire)
    wire.store.put("ch/down/lease.json", content)
    link = wire.link()
    control.order_checkpoint()
    until_ordered(link, 1)
    assert link.down().lease_until_s is None
    control.renew(until_s=2000.0)
    until(lambda: link.down().lease_until_s == 2000.0)


def test_used_up_urls_make_the_agent_gather_until_control_sends_more(
    wire: Wire, capfd: pytest.CaptureFixture[str]
) -> None:
    control = prepared(wire, num_urls=4)
    link = wire.link()
    for seq in (1, 2, 3):
        send(link, report(NODE, seq))
    until(lambda: not link.ready() and "all URLs are used up" in capfd.readouterr().err)
    _, cursor = control.read(ChannelCursor(positions={}))
    control.tend(cursor, at_s=time.time())
    send(link, report(NODE, 4))
    assert link.close(report(NODE, 5), limit_s=60.0)  # the place that had been kept back and the new ones
    assert [each.seq for each in read_all(control)] == [1, 2, 3, 4, 5]


def test_last_report_has_a_place_even_when_control_is_gone(wire: Wire) -> None:
    control = prepared(wire, num_urls=4)
    link = wire.link()
    for seq in (1, 2, 3):
        send(link, report(NODE, seq))
    assert link.close(report(NODE, 4), limit_s=60.0)
    assert [each.seq for each in read_all(control)] == [1, 2, 3, 4]


def test_urls_are_renewed_before_they_expire(wire: Wire) -> None:
    control = prepared(wire, lifetime_s=600.0)
    link = wire.link()
    send(link, report(NODE, 1))
    until(link.ready)
    wire.signed.clock_s = lambda: time.time() + 700.0  # of every URL that was signed before
    until(lambda: not _gets(link, control, time.time()))
    control = wire.control(lifetime_s=600.0)
    control.prepare([NODE], at_s=time.time() + 700.0)  # what a worker that submits again does
    fresh = wire.link()
    send(fresh, report(NODE, 2))
    until(fresh.ready)
    assert [each.seq for each in read_all(control)] == [1, 2]


def _gets(link: HttpLink, control: ObjectChannel, until_s: float) -> bool:
    control.renew(until_s=until_s)
    time.sleep(0.3)
    return link.down().lease_until_s == until_s


def test_grant_that_half_of_its_time_has_passed_is_replaced_while_it_holds(wire: Wire) -> None:
    control = wire.control(lifetime_s=600.0)
    control.prepare([NODE], at_s=time.time() - 310.0)
    link = wire.link()
    send(link, report(NODE, 1))
    control.tend(ChannelCursor(positions={}), at_s=time.time())
    until(lambda: _issued_at_s(link) > time.time() - 60.0)
    wire.signed.clock_s = lambda: time.time() + 595.0  # the first URLs have expired, the second have not
    assert link.close(report(NODE, 2), limit_s=60.0)


def _issued_at_s(link: HttpLink) -> float:
    return link._grant.issued_at_s


def test_report_that_control_has_read_needs_no_answer(wire: Wire) -> None:
    control = prepared(wire, num_urls=4)
    wire.signed.lose_answers = 10**6
    link = wire.link()
    send(link, report(NODE, 1))
    until(lambda: wire.signed.puts)
    read, cursor = control.read(ChannelCursor(positions={}))
    assert len(read) == 1
    control.tend(ChannelCursor(positions={NODE: 2}), at_s=time.time() + 1.0)  # half is used: places from 3 on
    link._want_grant("test")
    until(link.ready)
    assert cursor.positions == {NODE: 1}


def test_control_that_is_away_makes_reports_rarer_not_lost(wire: Wire) -> None:
    prepared(wire, num_urls=16)
    link = wire.link(flush_interval_s=0.05)
    times = []
    for seq in range(1, 14):
        send(link, report(NODE, seq))
        times.append(time.monotonic())
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[-1] >= 0.1  # at the 13th of 16, the pace is a quarter


def test_reply_that_comes_in_drops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "REQUEST_LIMIT_S", 0.0)

    class Drops:
        status = 200
        left = 3

        def read1(self, _: int) -> bytes:
            self.left -= 1
            return b"x" if self.left else b""

    answer = http_link._read_body(Drops(), give_up_at_s=time.monotonic() - 1.0)  # type: ignore[arg-type]
    assert answer.body is None
    assert "not done within" in answer.trouble


def test_redirect_is_not_followed(wire: Wire) -> None:
    control = prepared(wire)
    wire.signed.refuse = 307
    link = wire.link()
    control.order_checkpoint()
    time.sleep(0.4)
    assert link.down().orders is None
    wire.signed.refuse = None
    until_ordered(link, 1)
