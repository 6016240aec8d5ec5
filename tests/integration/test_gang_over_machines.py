"""Gangs whose nodes have nothing in common but the network: how they start together, and how all of them end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.agent.spool import create_json, read_json
from tests.support.talking import LIMIT_S, TalkingGang, python
from tests.support.waiting import wait_until

HANGS_ON = "import time; time.sleep(1e6)"
ONE_FAILS = (
    "import os, sys, time\nif os.environ['LLMSCHED_NODE'] == 'm2': sys.exit('the disk is on fire')\ntime.sleep(1e6)"
)
Make = Callable[..., TalkingGang]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[TalkingGang] = []

    def make(program: str, **changes: Any) -> TalkingGang:
        made.append(TalkingGang(tmp_path, python(program), **{"peer_limit_s": 30.0, **changes}))
        return made[-1]

    yield make
    for gang in made:
        gang.close()


def started_ranks(gang: TalkingGang) -> int:
    return sum(len(gang.records(node, "start")) for node in gang.nodes)


def test_commands_begin_only_once_every_rank_of_every_node_stands_ready(make: Make) -> None:
    gang = make("pass", num_nodes=4, ranks_per_node=3)
    gang.start()
    assert {end["outcome"] for end in gang.ends().values()} == {"done"}
    ready_s = [record["at_s"] for node in gang.nodes for record in gang.records(node, "armed")]
    begun_s = [record["at_s"] for node in gang.nodes for record in gang.records(node, "start")]
    assert (len(ready_s), len(begun_s)) == (12, 12)
    assert max(ready_s) <= min(begun_s)


def test_nobody_begins_when_one_node_never_comes(make: Make) -> None:
    gang = make(HANGS_ON, start_limit_s=3.0)
    gang.start("m0", "m1")
    for node in ("m0", "m1"):
        end = gang.end(node)
        assert (end["fault"], end["reason"]) == ("start_timeout", "not all ranks started within 3 s: node m2")
        assert gang.records(node, "start") == []


def test_nobody_begins_when_one_node_lacks_the_program(make: Make, tmp_path: Path) -> None:
    gang = TalkingGang(tmp_path, ["sleep", "1000"], within=[[], [], ["env", "PATH=/nonexistent"]])
    try:
        gang.start()
        ends = gang.ends()
    finally:
        gang.close()
    assert {end["fault"] for end in ends.values()} == {"start_failed"}
    assert {end["reason"] for end in ends.values()} == {
        "rank 2 on node m2 did not start: cannot start 'sleep': No such file or directory"
    }
    assert started_ranks(gang) == 0


def test_failure_of_one_rank_ends_all_nodes_with_that_cause(make: Make) -> None:
    gang = make(ONE_FAILS, ranks_per_node=2)
    gang.start()
    ends = gang.ends()
    assert {end["fault"] for end in ends.values()} == {"rank_failed"}
    (reason,) = {end["reason"] for end in ends.values()}
    assert reason in (f"rank {rank} on node m2 exited with code 1" for rank in (4, 5))
    aborts = [read_json(gang.gang(node).abort) for node in gang.nodes]
    assert aborts == [aborts[0]] * 3
    assert {end["log_tail"] for end in ends["m2"]["ends"] if not end["forced"]} == {"the disk is on fire"}


@pytest.mark.parametrize("victim", ["m0", "m2"])
def test_node_whose_supervisor_is_killed_takes_the_others_with_it(make: Make, victim: str) -> None:
    gang = make(HANGS_ON)
    gang.start()
    gang.wait_started()
    proc.send(gang.supervisor(victim), signal.SIGKILL)
    for node in gang.nodes:
        if node != victim:
            end = gang.end(node)
            assert end["fault"] == "node_lost"
            assert end["reason"].startswith(f"node {victim} vanished: ")
    wait_until(lambda: gang.processes(victim) == [], LIMIT_S)


@pytest.mark.parametrize("first", ["m0", "m1"])
def test_node_that_is_told_to_end_tells_the_others(make: Make, first: str) -> None:
    gang = make(HANGS_ON)
    gang.start()
    gang.wait_started()
    proc.send(gang.supervisor(first), signal.SIGTERM)
    ends = gang.ends()
    assert {node: end["outcome"] for node, end in ends.items()} == {
        node: "terminated" if node == first else "aborted" for node in gang.nodes
    }
    assert {end["reason"] for end in ends.values()} == {f"the supervisor of node {first} was told to end (SIGTERM)"}


def test_stop_that_reaches_one_node_stops_all(make: Make) -> None:
    gang = make(HANGS_ON)
    gang.start()
    gang.wait_started()
    create_json(gang.gang("m1").stop, {"v": 1, "at_s": 1.0, "grace_s": 0.2})
    assert {end["outcome"] for end in gang.ends().values()} == {"stopped"}


def test_notice_of_one_node_orders_a_checkpoint_on_all_and_its_loss_is_no_failure(make: Make) -> None:
    gang = make(HANGS_ON)
    gang.start()
    gang.wait_started()
    create_json(gang.files("m2").notice, {"v": 1, "at_s": 0.0, "deadline_s": 1.0})
    orders = [gang.files(node).spool / "orders.json" for node in gang.nodes]
    wait_until(lambda: all((read_json(path) or {}).get("checkpoint_seq") == 1 for path in orders), LIMIT_S)
    proc.send(gang.supervisor("m2"), signal.SIGKILL)
    for node in ("m0", "m1"):
        assert (gang.end(node)["fault"], gang.end(node)["reason"]) == ("preempted", "node m2 was preempted")


def test_nodes_that_share_a_file_system_need_nobody_to_introduce_them(make: Make) -> None:
    gang = make("pass", is_shared=True)
    gang.start("m1")  # looks for the first node until that is there
    gang.start("m2", "m0")
    assert {end["outcome"] for end in gang.ends().values()} == {"done"}


def test_gang_that_waited_in_a_queue_for_hours_starts(make: Make) -> None:
    gang = make("pass", is_shared=True, num_nodes=2)
    path = gang.gang("m0").request
    request = read_json(path)
    assert request is not None
    path.unlink()
    create_json(path, {**request, "submitted_at_s": request["submitted_at_s"] - 7200.0})
    gang.start()
    assert {end["outcome"] for end in gang.ends().values()} == {"done"}


ASKS_ONE_AFTER_THE_OTHER = """#!{python}
import os, pathlib, shlex, subprocess, sys, time
for host in ("127.0.1.1", "127.0.1.2", "127.0.1.3"):
    subprocess.run([*shlex.split(os.environ["OMPI_MCA_plm_rsh_agent"]), host, "orted", host], check=True)
    while not pathlib.Path("{out}", host).exists():
        time.sleep(0.05)
sys.exit("all have come")
"""
SAYS_THAT_IT_CAME = """#!{python}
import pathlib, sys, time
pathlib.Path("{out}", sys.argv[1]).touch()
time.sleep(1e6)
"""


def test_a_launcher_that_asks_for_its_daemons_one_after_the_other_gets_each(tmp_path: Path) -> None:
    """The first node's own comes first, as mpirun's may; its supervisor once asked no further, and mpirun waited on."""
    programs, out = tmp_path / "programs", tmp_path / "out"
    out.mkdir()
    programs.mkdir()
    for name, program in (("mpirun", ASKS_ONE_AFTER_THE_OTHER), ("orted", SAYS_THAT_IT_CAME)):
        (programs / name).write_text(program.format(python=sys.executable, out=out))
        (programs / name).chmod(0o755)
    gang = TalkingGang(tmp_path, ["true"], launcher="mpirun", environment={"PATH": f"{programs}:{os.environ['PATH']}"})
    try:
        gang.start()
        ends = gang.ends()
    finally:
        gang.close()
    assert sorted(path.name for path in out.iterdir()) == ["127.0.1.1", "127.0.1.2", "127.0.1.3"]
    assert all("all have come" in end["reason"] for end in ends.values())
