from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.meeting import Meeting
from airflow_llmsched.agent.peers import BEGIN_AFTER_S, FilePeers
from airflow_llmsched.agent.spool import create_json, read_json, write_json
from airflow_llmsched.agent.watch import Peer


@pytest.fixture
def gang(tmp_path: Path) -> GangDir:
    gang = GangDir(tmp_path)
    for node in ("n0", "n1"):
        gang.node(node).make()
    return gang


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def peers(gang: GangDir, node: str = "n0") -> FilePeers:
    return FilePeers(gang, nodes=["n0", "n1"], node=node)


def claim(gang: GangDir, node: str, process: subprocess.Popen[bytes], *, port: int | None = None) -> None:
    identity = proc.identify(process.pid)
    assert identity is not None
    gang.node(node).claim(identity, at_s=1.0, port=port)


def test_ranks_meet_at_the_first_nodes_port_once_the_engine_says_go(
    gang: GangDir, other: subprocess.Popen[bytes]
) -> None:
    claim(gang, "n0", other, port=20123)
    assert peers(gang, "n1").meeting() is None
    create_json(gang.go, {"v": 1, "at_s": time.time()})
    assert peers(gang, "n1").meeting() == Meeting("127.0.0.1", 20123)


def test_node_without_a_supervisor_yet_is_not_gone(gang: GangDir) -> None:
    assert peers(gang).others() == {"n1": Peer()}


def test_what_one_node_says_the_other_sees(gang: GangDir, other: subprocess.Popen[bytes]) -> None:
    claim(gang, "n1", other)
    guest = peers(gang, "n1")
    guest.started(at_s=1.0)
    assert peers(gang).others() == {"n1": Peer(here=True, started=True)}
    guest.done(at_s=2.0)
    assert peers(gang).others() == {"n1": Peer(here=True, started=True, done=True, ending=True)}


def test_ranks_are_released_once_those_of_every_node_stand_ready(gang: GangDir) -> None:
    host, guest = peers(gang), peers(gang, "n1")
    host.armed(at_s=1.0)
    assert (host.beginning(), guest.beginning()) == (None, None)
    guest.armed(at_s=time.time())
    moments_s = [host.beginning(), guest.beginning()]
    assert moments_s == pytest.approx([time.monotonic() + BEGIN_AFTER_S] * 2, abs=5.0)
    assert moments_s[0] == pytest.approx(moments_s[1], abs=0.01)


def test_node_whose_supervisor_died_is_gone_unless_it_left_word(gang: GangDir, other: subprocess.Popen[bytes]) -> None:
    claim(gang, "n1", other)
    host = peers(gang)
    assert host.others() == {"n1": Peer(here=True)}
    other.kill()
    other.wait()
    assert host.others() == {"n1": Peer(here=True, gone=True)}
    write_json(gang.node("n1").exit, {"v": 1, "outcome": "terminated"})
    assert host.others() == {"n1": Peer(here=True, terminated=True)}


def test_who_gave_the_gang_up_first_is_kept(gang: GangDir) -> None:
    host, guest = peers(gang), peers(gang, "n1")
    assert guest.abort() is None
    host.announce({"fault": "rank_failed"})
    guest.announce({"fault": "node_lost"})
    assert guest.abort() == read_json(gang.abort) == {"fault": "rank_failed"}


def test_stop_and_notices_are_seen_by_all(gang: GangDir) -> None:
    host = peers(gang)
    assert (host.stop(), host.notices()) == (None, {})
    create_json(gang.stop, {"v": 1, "at_s": 1.0, "grace_s": 3.0})
    create_json(gang.node("n1").notice, {"v": 1, "at_s": 1.0, "deadline_s": 31.0})
    assert (host.stop() or {})["grace_s"] == 3.0
    assert host.notices() == {"n1": 31.0}


def test_every_node_knows_the_ports_that_all_hold(gang: GangDir, other: subprocess.Popen[bytes]) -> None:
    identity = proc.identify(other.pid)
    assert identity is not None
    gang.node("n1").claim(identity, at_s=1.0, port=None, ports=[20001, 20002])
    assert peers(gang).ports() == {"n0": [], "n1": [20001, 20002]}


def test_every_node_sees_what_the_first_nodes_launcher_asks_for(gang: GangDir) -> None:
    guest = FilePeers(gang, nodes=["n0", "n1"], node="n1", address="127.0.1.101")
    assert guest.daemon() is None
    folder = gang.node("n0").path / "daemons"
    folder.mkdir()
    write_json(folder / "127.0.1.101.json", {"v": 1, "argv": ["orted", "-x"]})
    assert guest.daemon() == ["orted", "-x"]
    assert peers(gang).asked() == {"127.0.1.101": ["orted", "-x"]}
