from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import launch, wire

BODY: dict[str, Any] = {
    "launcher": "torchrun",
    "attempt_name": "ls-x-g2-a3",
    "run_key": "ls-x",
    "generation": 2,
    "attempt": 3,
    "command": ["python", "train.py", "--name", "it's $(odd)"],
    "environment": {"LLMSCHED_DATASET": "/data", "OMP_NUM_THREADS": "2"},
    "layout": {"dp": 4},
    "world_size": 4,
    "channel_root": "/runs/x/channel",
    "origin": {"deployment_id": "d", "run": "ls-x", "dag_id": "a dag", "run_id": "r"},
    "nodes": [{"node": "n0", "ranks": [0, 1]}, {"node": "n1", "ranks": [2, 3]}],
    "start_limit_s": 90.5,
    "grace_s": 10,
}


def starts(node: str, base: dict[str, str] | None = None, **changes: Any) -> list[launch.Start]:
    return launch.starts(
        {**BODY, **changes},
        node=node,
        port=20123,
        node_dir=Path("/gang/nodes") / node,
        supervisor="1:2:boot",
        base={} if base is None else base,
    )


def test_torchrun_meets_at_the_held_port_and_never_restarts_by_itself() -> None:
    (host,), (guest,) = starts("n0"), starts("n1")
    wrapper = host.argv.index("--no-python") + 1
    assert host.argv[:wrapper] == [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:20123",
        "--rdzv-id=ls-x-g2-a3",
        "--rdzv-conf=is_host=1,join_timeout=91,read_timeout=91",
        "--local-addr=127.0.1.100",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "--log-dir=/gang/nodes/n0/torchrun",
        "--no-python",
    ]
    assert host.argv[wrapper:] == [sys.executable, "-P", "-m", "airflow_llmsched.agent.rank", "--", *BODY["command"]]
    assert "--rdzv-conf=is_host=0,join_timeout=91,read_timeout=91" in guest.argv
    assert "--local-addr=127.0.1.101" in guest.argv


def test_addresses_sort_like_the_nodes_they_stand_for() -> None:
    addresses = [launch._address(index) for index in range(900)]
    assert addresses == sorted(addresses)
    assert len(set(addresses)) == 900


def test_plain_launcher_starts_each_rank_with_its_place() -> None:
    started = starts("n1", launcher="plain")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [[start.environ[name] for name in names] for start in started] == [
        ["2", "0", "4", "2", "1", "127.0.0.1", "20123"],
        ["3", "1", "4", "2", "1", "127.0.0.1", "20123"],
    ]


def test_environment_says_who_the_rank_is_and_what_the_gang_asked_for_wins_over_what_was_there() -> None:
    base = {"PATH": "/bin", "OMP_NUM_THREADS": "8", "RANK": "7", "MASTER_PORT": "1", wire.NODE: "outer"}
    (start,) = starts("n0", base)
    environ = start.environ
    assert environ["PATH"] == "/bin"
    assert environ["OMP_NUM_THREADS"] == "2"
    assert "RANK" not in environ
    assert "MASTER_PORT" not in environ
    assert environ["LLMSCHED_DATASET"] == "/data"
    assert environ[wire.NODE] == "n0"
    assert environ[wire.SPOOL] == "/gang/nodes/n0/spool"
    assert (environ[wire.RUN_KEY], environ[wire.GENERATION], environ[wire.ATTEMPT]) == ("ls-x", "2", "3")
    assert environ[wire.ATTEMPT_NAME] == "ls-x-g2-a3"
    assert environ[wire.CHANNEL] == BODY["channel_root"]
    assert json.loads(environ[wire.ORIGIN]) == BODY["origin"]
    assert json.loads(environ[wire.LAYOUT]) == {"dp": 4}
    assert environ[wire.SUPERVISOR] == "1:2:boot"


def test_one_thread_per_rank_unless_told_otherwise() -> None:
    assert starts("n0", environment={})[0].environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("launcher", ["plain", "torchrun"])
def test_nothing_of_the_environment_is_in_an_argument_list(launcher: str) -> None:
    for start in starts("n0", {"SECRET": "tell-no-one"}, launcher=launcher, environment={"OTHER": "tell-no-one"}):
        assert not [part for part in start.argv if "tell-no-one" in part]


def test_spawned_process_has_a_group_of_its_own_and_its_output_in_the_log(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getpgid(0) == os.getpid(), sys.stdin.read() == ''); sys.stderr.write('err')"
    log = tmp_path / "launcher.log"
    pid = launch.spawn(launch.Start([sys.executable, "-S", "-c", program], {}), log=log)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sorted(log.read_text().split()) == ["True", "True", "err"] or "True True" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
