from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.peer_guest import PeerGuest
from airflow_llmsched.agent.peer_host import PeerHost
from airflow_llmsched.agent.peer_open import are_machines, holding, join, new_token
from airflow_llmsched.agent.peers import FilePeers
from airflow_llmsched.agent.spool import create_json, read_json
from tests.support.waiting import wait_until

ONE_MACHINE: dict[str, Any] = {"attempt_name": "g", "nodes": [{"node": "m0"}, {"node": "m1"}]}
MACHINES: dict[str, Any] = {
    "attempt_name": "g",
    "nodes": [{"node": "m0", "address": "127.0.1.1"}, {"node": "m1", "address": "127.0.1.2"}],
}


@pytest.fixture
def gang(tmp_path: Path) -> GangDir:
    gang = GangDir(tmp_path)
    for node in ("m0", "m1"):
        gang.node(node).make()
    return gang


def nothing() -> None:
    """Wake nobody."""


def test_nodes_of_one_machine_see_each_others_files(gang: GangDir) -> None:
    assert not are_machines(ONE_MACHINE)
    with holding(gang, ONE_MACHINE, node="m0") as held:
        assert held.port is not None
        assert held.peers_port is None
        assert isinstance(join(gang, ONE_MACHINE, node="m0", held=held, wake=nothing), FilePeers)
    assert not gang.token.exists()


def test_first_machine_holds_two_ports_and_makes_a_token_that_only_its_owner_reads(gang: GangDir) -> None:
    with holding(gang, MACHINES, node="m0") as held:
        assert len({held.port, held.peers_port} - {None}) == 2
        assert gang.token.stat().st_mode & 0o077 == 0
    with holding(gang, MACHINES, node="m1") as none:
        assert (none.port, none.peers_port) == (None, None)


def test_token_that_the_engine_handed_out_is_kept(gang: GangDir) -> None:
    token = {"v": 1, "token": new_token()}
    create_json(gang.token, token)
    with holding(gang, MACHINES, node="m0"):
        assert read_json(gang.token) == token


def test_tokens_are_long_and_never_the_same() -> None:
    assert len({new_token() for _ in range(10)}) == 10
    assert len(bytes.fromhex(new_token())) == 32


@pytest.mark.parametrize("how", ["claim", "go"])
def test_guest_finds_its_host_by_the_claim_or_by_what_the_engine_says(gang: GangDir, how: str) -> None:
    with holding(gang, MACHINES, node="m0") as held:
        guest = join(gang, MACHINES, node="m1", held=holding_nothing(), wake=nothing)
        assert isinstance(guest, PeerGuest)
        if how == "claim":
            gang.node("m0").claim(proc.myself(), at_s=1.0, port=held.port, peers_port=held.peers_port)
        else:
            create_json(gang.go, {"v": 1, "at_s": 1.0, "peers": {"host": "localhost", "port": held.peers_port}})
        host = join(gang, MACHINES, node="m0", held=held, wake=nothing)
        assert isinstance(host, PeerHost)
        wait_until(lambda: None not in (host.meeting(), guest.meeting()), 30)
        assert guest.meeting() == ("127.0.1.1", held.port)
        guest.close(limit_s=0.0)
        host.close(limit_s=0.0)


def holding_nothing() -> Any:
    from airflow_llmsched.agent.peer_open import Held

    return Held()


def test_machine_that_is_alone_may_go_at_once(gang: GangDir) -> None:
    alone = {**MACHINES, "nodes": MACHINES["nodes"][:1]}
    with holding(gang, alone, node="m0") as held:
        host = join(gang, alone, node="m0", held=held, wake=nothing)
        wait_until(host.meeting, 30)
        host.armed(at_s=1.0)
        wait_until(host.beginning, 30)
        host.close(limit_s=0.0)


def test_calls_are_taken_on_every_address_of_the_machine(gang: GangDir) -> None:
    with holding(gang, MACHINES, node="m0") as held:
        host = join(gang, MACHINES, node="m0", held=held, wake=nothing)
        for address in ("127.0.0.1", "127.0.1.1", *(["::1"] if socket.has_ipv6 else [])):
            with socket.create_connection((address, held.peers_port), timeout=30) as caller:
                assert b"nonce" in caller.recv(4096)
        host.close(limit_s=0.0)
