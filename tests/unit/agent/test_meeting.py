from __future__ import annotations

import errno
import socket

import pytest

from airflow_llmsched.agent import meeting
from airflow_llmsched.agent.meeting import hold_port


def try_bind(port: int, *, reuse: bool, address: str = "127.0.0.1") -> str:
    with socket.socket() as other:
        if reuse:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((address, port))
            other.listen()
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "bound"


def test_held_port_is_out_of_reach_for_whoever_looks_for_a_free_one() -> None:
    with hold_port() as port:
        assert try_bind(port, reuse=False) == "EADDRINUSE"


def test_held_port_can_be_bound_by_a_server_that_reuses_addresses_as_torchs_store_does() -> None:
    with hold_port() as port:
        assert try_bind(port, reuse=True) == "bound"
        assert try_bind(port, reuse=True, address="0.0.0.0") == "bound"


def test_two_holders_have_different_ports_below_the_range_of_outgoing_connections() -> None:
    with hold_port() as one, hold_port() as two:
        assert one != two
        assert {20_000 <= port < 32_000 for port in (one, two)} == {True}


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_taken_ports_are_passed_over(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with hold_port() as free:
            first = free - 1 if try_bind(free - 1, reuse=False, address=address) == "bound" else free
        taken.bind((address, first))
        taken.listen()
        monkeypatch.setattr(meeting, "_FIRST_PORT", first)
        monkeypatch.setattr(meeting, "_NUM_PORTS", 1)
        with pytest.raises(OSError, match="no free port"), hold_port():
            pass


def test_port_is_free_again_after_use() -> None:
    with hold_port() as port:
        pass
    assert try_bind(port, reuse=False) == "bound"


def test_endpoint_of_an_ipv6_address_has_brackets() -> None:
    assert meeting.Meeting("10.0.0.1", 20001).endpoint == "10.0.0.1:20001"
    assert meeting.Meeting("fd00::1", 20001).endpoint == "[fd00::1]:20001"


def test_several_ports_are_held_at_once_and_let_go_together() -> None:
    with meeting.hold_ports(3) as ports:
        assert len(set(ports)) == 3
        assert all(meeting._try_hold(port) is None for port in ports)
    for port in ports:
        held = meeting._try_hold(port)
        assert held is not None
        held.close()
