"""Gangs whose machines are cut off from one another: nobody goes on alone, and a glitch hurts nobody."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent.spool import create_json, read_json
from tests.support.ssh_hosts import SshHosts
from tests.support.talking import TalkingGang, python
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

HANGS_ON = "import time; time.sleep(1e6)"
PEER_LIMIT_S = 4.0
GRACE_S = 0.5
GLITCH_S = 4.0
"""Long enough for TCP to have lost patience with the link."""
Make = Callable[..., TalkingGang]


@pytest.fixture
def make(machines: SshHosts, tmp_path: Path) -> Iterator[Make]:
    """Gangs on the first machines: each in its network namespace, with a directory of its own."""
    made: list[TalkingGang] = []

    def make(program: str | list[str], *, num_nodes: int = 3, **changes: Any) -> TalkingGang:
        hosts = machines.hosts[:num_nodes]
        gang = TalkingGang(
            tmp_path,
            python(program) if isinstance(program, str) else program,
            num_nodes=num_nodes,
            addresses=[host.address for host in hosts],
            within=[["ip", "netns", "exec", host.space] for host in hosts],
            **{"peer_limit_s": PEER_LIMIT_S, "grace_s": GRACE_S, **changes},
        )
        made.append(gang)
        return gang

    yield make
    for host in machines.hosts:
        machines.join_again(host.name)
    for gang in made:
        gang.close()


def cut(machines: SshHosts, index: int) -> float:
    machines.cut_off(machines.names[index])
    return time.time()


@pytest.mark.parametrize("victim", [0, 2])
def test_both_sides_of_a_cut_end_their_ranks_in_bounded_time(machines: SshHosts, make: Make, victim: int) -> None:
    gang = make(HANGS_ON)
    gang.start()
    gang.wait_started()
    cut_s = cut(machines, victim)
    ends = gang.ends()
    for node, end in ends.items():
        assert end["fault"] == "node_lost", node
        assert f"nothing was heard of it for {PEER_LIMIT_S:g} s" in end["reason"]
        assert all(rank["forced"] for rank in end["ends"])
        last_s = max(rank["at_s"] for rank in end["ends"])
        assert cut_s <= last_s < cut_s + PEER_LIMIT_S + GRACE_S + 20.0  # and a busy machine's slowness
    if victim == 2:
        assert ends["m0"]["reason"].startswith("node m2 vanished: ")
        assert ends["m1"]["reason"] == ends["m0"]["reason"]  # what the first node says, not a guess
        assert ends["m2"]["reason"].startswith("node m0 vanished: ")


@pytest.mark.parametrize("victim", [0, 2])
def test_glitch_shorter_than_the_limit_hurts_nobody_and_what_was_said_meanwhile_arrives(
    machines: SshHosts, make: Make, victim: int
) -> None:
    gang = make("import os, time\nwhile not os.path.exists('stop'): time.sleep(0.05)", peer_limit_s=5 * GLITCH_S)
    gang.start()
    gang.wait_started()
    cut(machines, victim)
    noticed = gang.files(gang.nodes[victim])
    create_json(noticed.notice, {"v": 1, "at_s": time.time(), "deadline_s": time.time() + 3600.0})
    time.sleep(GLITCH_S)
    machines.join_again(machines.names[victim])
    orders = [gang.files(node).spool / "orders.json" for node in gang.nodes]
    wait_until(lambda: all((read_json(path) or {}).get("checkpoint_seq") == 1 for path in orders), 60)
    assert not any(gang.files(node).exit.exists() for node in gang.nodes)
    for node in gang.nodes:
        (gang.files(node).path / "stop").touch()
    assert {end["outcome"] for end in gang.ends().values()} == {"done"}


def test_node_cut_off_before_all_were_there_begins_nothing_anywhere(machines: SshHosts, make: Make) -> None:
    gang = make(HANGS_ON, start_limit_s=8.0)
    gang.start("m0", "m1")
    wait_until(lambda: all(gang.files(node).alive.exists() for node in ("m0", "m1")), 60)
    cut(machines, 2)
    gang.start("m2")
    ends = gang.ends()
    assert ends["m0"]["reason"] == ends["m1"]["reason"] == "not all ranks started within 8 s: node m2"
    assert ends["m2"]["fault"] == "start_timeout"
    assert [gang.records(node, "start") for node in gang.nodes] == [[], [], []]


ALL_MEET = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
who = (os.environ["LLMSCHED_NODE"], int(os.environ["LOCAL_RANK"]))
found = [None] * dist.get_world_size()
dist.all_gather_object(found, who)
if dist.get_rank() == 0:
    print(found)
if dist.get_rank() == int(sys.argv[1]):
    os._exit(7)  # at once: the tidying of torch's threads may end in a signal
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("failing", [-1, 3])
def test_torchrun_over_machines_gives_the_placements_ranks_and_ends_as_one(
    machines: SshHosts, make: Make, failing: int
) -> None:
    gang = make(
        [sys.executable, "-c", ALL_MEET, str(failing)],
        num_nodes=2,
        ranks_per_node=2,
        launcher="torchrun",
        environment={"GLOO_SOCKET_IFNAME": "eth0"},
        peer_limit_s=60.0,
        start_limit_s=120.0,
        exit_grace_s=120.0,
    )
    gang.start()
    ends = gang.ends()
    lines = (gang.files("m0").logs / "rank-0.log").read_text().splitlines()
    (said,) = [line for line in lines if line.startswith("[(")]
    assert ast.literal_eval(said) == [(node, local) for node in ("m0", "m1") for local in (0, 1)]
    assert [sorted(rank["rank"] for rank in ends[node]["ends"]) for node in gang.nodes] == [[0, 1], [2, 3]]
    if failing < 0:
        assert {(end["outcome"], end["reason"]) for end in ends.values()} == {("done", "")}
        return
    own = [rank for rank in ends["m1"]["ends"] if rank["rank"] == failing]
    assert [(rank["exit_code"], rank["forced"]) for rank in own] == [(7, False)]
    assert {end["fault"] for end in ends.values()} == {"rank_failed"}
