from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.agent import peer_wire
from airflow_llmsched.agent.peer_wire import News, NotAPeerError, Session, Told, news_of, told_of

TOKEN = b"t" * 32
ABORT = {"v": 1, "node": "m1", "at_s": 5.0, "fault": "rank_failed", "reason": "rank 3 exited", "rank": 3}
STOP = {"v": 1, "at_s": 5.0, "grace_s": 2.5}


def introduced(*, token: bytes = TOKEN, gang: str = "g") -> tuple[Session, Session]:
    """Return host and guest after their hellos."""
    host, guest = Session(TOKEN, gang="g"), Session(token, gang=gang, node="m1")
    _, hello = guest.take(host.greeting())
    assert host.take(hello) == ([], b"")
    return host, guest


def test_both_ends_understand_each_other_once_introduced() -> None:
    host, guest = introduced()
    assert host.node == "m1"
    told = Told(here=True, armed=True, notice_in_s=30.0, abort=ABORT, stop=STOP)
    (plain,), _ = host.take(guest.wrap(told))
    assert told_of(plain) == told
    news = News(at_s=7.5, go=True, meeting=("fd00::1", 20123), notices_in_s={"m1": 29.5}, abort=ABORT)
    (plain,), _ = guest.take(host.wrap(news))
    assert news_of(plain) == news


@given(cuts=st.lists(st.integers(1, 40), max_size=60))
def test_lines_may_come_in_any_pieces(cuts: list[int]) -> None:
    host, guest = introduced()
    data = guest.wrap(Told(here=True)) + guest.wrap(Told(armed=True)) + guest.wrap(Told(done=True))
    found: list[dict[str, Any]] = []
    for cut in (*cuts, len(data)):
        found += host.take(data[:cut])[0]
        data = data[cut:]
    assert [told_of(each) for each in found] == [Told(here=True), Told(armed=True), Told(done=True)]


@pytest.mark.parametrize("wrong", [{"token": b"u" * 32}, {"gang": "other"}])
def test_who_does_not_hold_this_gangs_token_is_turned_away(wrong: dict[str, Any]) -> None:
    host = Session(TOKEN, gang="g")
    guest = Session(**{"token": TOKEN, "gang": "g", **wrong}, node="m1")
    _, hello = guest.take(host.greeting())
    with pytest.raises(NotAPeerError, match="token"):
        host.take(hello)
    assert not host.is_open


def test_guest_believes_nobody_who_does_not_hold_the_token() -> None:
    impostor, guest = Session(b"u" * 32, gang="g"), Session(TOKEN, gang="g", node="m1")
    guest.take(impostor.greeting())
    impostor._agree({"v": 1}, node="m1", host_nonce=impostor._nonce, guest_nonce=guest._nonce)
    with pytest.raises(NotAPeerError, match="proof"):
        guest.take(impostor.wrap(News(at_s=0.0, stop=STOP)))


def test_line_cannot_be_repeated_changed_left_out_or_sent_back() -> None:
    for spoil in (
        lambda one, _: one + one,
        lambda one, _: one.replace(b'"here":true', b'"done":true'),
        lambda _, two: two,
    ):
        host, guest = introduced()
        with pytest.raises(NotAPeerError, match="proof"):
            host.take(spoil(guest.wrap(Told(here=True)), guest.wrap(Told(armed=True))))
    host, guest = introduced()
    with pytest.raises(NotAPeerError, match="proof"):
        host.take(host.wrap(News(at_s=0.0)))


def test_line_of_one_connection_is_worth_nothing_on_another() -> None:
    (_, guest), (host, _) = introduced(), introduced()
    with pytest.raises(NotAPeerError, match="proof"):
        host.take(guest.wrap(Told(here=True)))


def test_token_and_what_is_made_of_it_never_cross_the_wire() -> None:
    host, guest = Session(TOKEN, gang="g"), Session(TOKEN, gang="g", node="m1")
    greeting = host.greeting()
    _, hello = guest.take(greeting)
    host.take(hello)
    crossed = greeting + hello + guest.wrap(Told()) + host.wrap(News(at_s=0.0))
    for secret in (TOKEN, TOKEN.hex().encode(), guest._key, (guest._key or b"").hex().encode()):
        assert secret is not None
        assert secret not in crossed


@given(data=st.binary(max_size=3000))
def test_stranger_gets_nothing_and_breaks_nothing(data: bytes) -> None:
    host = Session(TOKEN, gang="g")
    with contextlib.suppress(NotAPeerError):
        assert host.take(data) == ([], b"")
    assert not host.is_open


def test_stranger_that_never_ends_its_line_is_cut_short() -> None:
    with pytest.raises(NotAPeerError, match="too long"):
        Session(TOKEN, gang="g").take(b"x" * 2000)
    host, _ = introduced()
    with pytest.raises(NotAPeerError, match="too long"):
        host.take(b"x" * (peer_wire.MAX_LINE_BYTES + 1))


def test_supervisor_of_another_version_is_told_apart_from_a_stranger() -> None:
    guest = Session(TOKEN, gang="g", node="m1")
    with pytest.raises(NotAPeerError, match="version 9"):
        guest.take(json.dumps({"v": 9, "nonce": "0" * 64}).encode() + b"\n")


def test_long_reason_is_cut_and_fits_a_line() -> None:
    host, guest = introduced()
    reason = "first\n" + "\u20ac\x00\ud800" * 50_000 + "\nlast"
    line = guest.wrap(Told(abort={**ABORT, "reason": reason}))
    assert len(line) <= peer_wire.MAX_LINE_BYTES
    abort = told_of(host.take(line)[0][0]).abort
    assert abort is not None
    assert abort["reason"].startswith("first\n")
    assert abort["reason"].endswith("\nlast")


@pytest.mark.parametrize(
    "change",
    [
        {"notice_in_s": "NaN"},
        {"notice_in_s": float("inf")},
        {"abort": {"fault": "x"}},
        {"abort": []},
        {"stop": {"at_s": 1.0, "grace_s": float("nan")}},
        {"stop": 5},
        {"left": None, "abort": {**ABORT, "rank": "three"}},
    ],
)
def test_message_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(NotAPeerError, match="no sense"):
        told_of({**Told()._asdict(), **change})


@pytest.mark.parametrize("change", [{"at_s": None}, {"meeting": ["m0"]}, {"notices_in_s": [1]}, {"notices_in_s": None}])
def test_news_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(NotAPeerError, match="no sense"):
        news_of({**News(at_s=1.0)._asdict(), **change})
