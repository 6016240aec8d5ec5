"""What every ``RunChannel`` must prove, together with the agents' end of it. Subclass and override ``harness``.

Both ends are the real ones; whatever lies between them (a folder, an object store behind HTTP) is the harness's.
"""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_llmsched import codec
from airflow_llmsched.agent import wire
from airflow_llmsched.agent.link import Link
from airflow_llmsched.control.records import read_all
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.ports import RunChannel

SETTLE_S = 60.0
"""How long anything may take to come through."""

NODES = (NodeId("n0"), NodeId("n1"))
START = ChannelCursor(positions={})


class ChannelHarness(ABC):
    """One attempt's channel, fresh, for two nodes whose gang has a lease."""

    @abstractmethod
    def control(self) -> RunChannel:
        """Return control's end, as another process would open it."""

    @abstractmethod
    def link(self, node: NodeId) -> Link:
        """Return a node's end, as its supervisor would open it after control prepared the channel."""


class RunChannelContract:
    """The contract. Its tests use only the two ends."""

    @pytest.fixture
    def harness(self) -> Iterator[ChannelHarness]:
        """Override: yield a harness around a fresh channel."""
        raise NotImplementedError("a channel's contract test overrides the harness fixture")

    @pytest.fixture
    def control(self, harness: ChannelHarness) -> RunChannel:
        """Return control's end, prepared."""
        control = harness.control()
        control.prepare(NODES, at_s=time.time())
        return control

    def test_unprepared_channel_has_nothing_to_read(self, harness: ChannelHarness) -> None:
        reports, cursor = harness.control().read(START)
        assert list(reports) == []
        assert harness.control().read(cursor) == ([], cursor)

    def test_reports_come_whole_in_order_and_once(self, harness: ChannelHarness, control: RunChannel) -> None:
        links = {node: harness.link(node) for node in NODES}
        for seq in (1, 2, 3):
            for node, link in links.items():
                send(link, report(node, seq))
        first = until(lambda: read_all(control) if len(read_all(control)) == 6 else ())
        for node in NODES:
            assert [each for each in first if each.node == node] == [expected(node, seq) for seq in (1, 2, 3)]
        _, cursor = control.read(START)
        assert close(links[NODES[0]], report(NODES[0], 4))
        assert close(links[NODES[1]], report(NODES[1], 4))
        rest, _ = harness.control().read(cursor)
        assert list(rest) == [expected(node, 4) for node in NODES]

    def test_cursor_survives_the_way_through_json(self, harness: ChannelHarness, control: RunChannel) -> None:
        link = harness.link(NODES[0])
        assert close(link, report(NODES[0], 1))
        reports, cursor = control.read(START)
        assert len(reports) == 1
        again = codec.from_json(ChannelCursor, codec.to_json(cursor))
        assert harness.control().read(again) == ([], again)

    def test_whoever_was_away_catches_up(self, harness: ChannelHarness, control: RunChannel) -> None:
        link = harness.link(NODES[1])
        for seq in range(1, 101):
            send(link, report(NODES[1], seq))
            if seq == 50:
                _, cursor = control.read(START)
                control.tend(cursor, at_s=time.time())
        assert close(link, report(NODES[1], 101))
        assert [each.seq for each in read_all(harness.control())] == list(range(1, 102))

    def test_orders_add_up_and_reach_every_node(self, harness: ChannelHarness, control: RunChannel) -> None:
        links = [harness.link(node) for node in NODES]
        control.order_checkpoint()
        control.order_interval(interval_s=90.0)
        harness.control().order_checkpoint()
        wanted = {"checkpoint_seq": 2, "stop": None, "checkpoint_interval_s": 90.0}
        until(lambda: all(link.down().orders == wanted for link in links))
        harness.control().order_stop(reason="replan $(now) ä")
        until(lambda: all(link.down().orders == {**wanted, "stop": "replan $(now) ä"} for link in links))

    def test_renewals_reach_every_node(self, harness: ChannelHarness, control: RunChannel) -> None:
        links = [harness.link(node) for node in NODES]
        control.renew(until_s=1000.0)
        until(lambda: all(link.down().lease_until_s == 1000.0 for link in links))
        control.renew(until_s=2000.5)
        until(lambda: all(link.down().lease_until_s == 2000.5 for link in links))

    def test_extension_reaches_the_nodes_and_is_remembered(self, harness: ChannelHarness, control: RunChannel) -> None:
        link = harness.link(NODES[0])
        control.extend(until_s=5000.25)
        control.extend(until_s=4000.0)
        assert until(lambda: link.down().lease_until_s is not None)
        harness.control().renew(until_s=1030.0)  # by a watcher that had been frozen meanwhile
        late = harness.link(NODES[1])  # nobody has told this node of the extension before
        assert until(lambda: late.down().lease_until_s) == 5000.25
        assert harness.control().revoke(at_s=1000.0, lease_s=30.0) == 5000.25

    def test_last_lease_ends_a_leases_length_after_the_revocation(
        self, harness: ChannelHarness, control: RunChannel
    ) -> None:
        control.renew(until_s=900.0)
        assert control.revoke(at_s=1000.0, lease_s=30.0) == 1030.0
        assert harness.control().revoke(at_s=2000.0, lease_s=30.0) == 1030.0

    def test_renewal_after_the_revocation_is_not_honoured(self, harness: ChannelHarness, control: RunChannel) -> None:
        link = harness.link(NODES[0])
        control.renew(until_s=1000.0)
        assert until(lambda: link.down().lease_until_s == 1000.0)
        control.revoke(at_s=990.0, lease_s=30.0)
        harness.control().renew(until_s=9000.0)  # by a watcher that had been frozen meanwhile
        for seq in (1, 2):  # a lease is read before orders: once the second order is here, so was the lease
            harness.control().order_checkpoint()
            until_ordered(link, seq)
        assert link.down().lease_until_s == 1000.0

    def test_preparing_again_takes_nothing_away(self, harness: ChannelHarness, control: RunChannel) -> None:
        link = harness.link(NODES[0])
        control.order_checkpoint()
        send(link, report(NODES[0], 1))
        control.revoke(at_s=1000.0, lease_s=30.0)
        harness.control().prepare(NODES, at_s=time.time())
        until_ordered(harness.link(NODES[1]), 1)
        assert close(link, report(NODES[0], 2))
        assert [each.seq for each in read_all(harness.control())] == [1, 2]
        assert control.revoke(at_s=2000.0, lease_s=30.0) == 1030.0


def report(node: str, seq: int) -> dict[str, Any]:
    """Return a report as an agent would make it."""
    steps = [wire.step_record(step=seq, start_s=seq, end_s=seq + 0.5, loss=2.0 / seq, num_tokens=64)]
    return wire.node_report(
        node=node,
        seq=seq,
        at_s=float(seq),
        ranks=[{"rank": 0, "step": seq, "heartbeat_s": float(seq), "pid": 100}],
        steps=[{key: value for key, value in step.items() if key != "kind"} for step in steps],
        spans=[],
        marks=[{"step": seq, "path": "/c/ä $(x)", "at_s": float(seq)}],
        num_deferred=seq - 1,
    )


def expected(node: str, seq: int) -> NodeReport:
    """Return what control must read of :func:`report`."""
    return codec.from_plain(NodeReport, report(node, seq))


def send(link: Link, plain: dict[str, Any]) -> None:
    """Send as soon as the link takes it."""
    until(link.ready)
    link.send(plain)


def close(link: Link, plain: dict[str, Any]) -> bool:
    """Send the last report."""
    return link.close(plain, limit_s=SETTLE_S)


def until_ordered(link: Link, seq: int) -> None:
    """Wait until that many orders to save have reached a node."""
    until(lambda: (link.down().orders or {}).get("checkpoint_seq") == seq)


def until(condition: Callable[[], Any]) -> Any:
    """Return the first true value of ``condition``. Raises ``AssertionError`` when none comes."""
    give_up_at_s = time.monotonic() + SETTLE_S
    while not (value := condition()):
        if time.monotonic() > give_up_at_s:
            raise AssertionError(f"not within {SETTLE_S:g} s")
        time.sleep(0.01)
    return value
