"""The batch part of a Slurm job with a stand-in for srun and its tasks; tests/contract runs the real ones."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.shelf import Shelf
from airflow_llmsched.agent.slurm_batch import LOST, NOT_OURS
from airflow_llmsched.agent.spool import read_json, write_json
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.engines.agent_request import agent_body
from tests.support.source import ROOT
from tests.support.waiting import wait_until

NAME = "ls-run-g1-a1"

_SCONTROL = """\
#!/bin/sh
case "$*" in
  *"show node"*) echo "NodeName=gpu1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=gpu1"
                 echo "NodeName=gpu2 Arch=x86_64 NodeAddr=10.0.0.2 NodeHostName=gpu2" ;;
  *"show partition"*) echo "PartitionName=low Default=NO GraceTime=45 Hidden=NO" ;;
  *"show hostnames"*) echo gpu2; echo gpu1 ;;
esac
"""

_STEP = """\
import json, os, sys, time
from pathlib import Path
assert sys.argv[1:5] == ["-P", "-m", "airflow_llmsched.agent.slurm_batch", "--task"], sys.argv
gang = Path(sys.argv[5])
(gang / "step.pid").write_text(str(os.getpid()))
nodes = [part["node"] for part in json.loads((gang / "request.json").read_text())["body"]["nodes"]]
for node in nodes:
    (gang / "nodes" / node / "claim.json").write_text("{}")
while not (gang / "go.json").exists():
    time.sleep(0.01)
script = json.loads(os.environ["STEP"])
while script["waits_for"] and not (gang / script["waits_for"]).exists():
    time.sleep(0.01)
for node, record in zip(nodes, script["records"]):
    if record is not None:
        (gang / "nodes" / node / "exit.json").write_text(json.dumps(record))
sys.exit(script["code"])
"""


def _end(rank: int, code: int | None, *, signal: int | None = None, at_s: float = 1.0) -> dict[str, Any]:
    return {"rank": rank, "exit_code": code, "signal": signal, "forced": False, "at_s": at_s}


def _aborted(*ends: dict[str, Any], ahead_s: float = 0.0) -> dict[str, Any]:
    return {"outcome": "aborted", "ends": list(ends), "ahead_s": ahead_s}


DONE = {"outcome": "done", "ends": [_end(0, 0)]}


class House:
    """One attempt's folder, and jobs that may come to run it."""

    def __init__(self, root: Path) -> None:
        self.gang = GangDir(root / "gangs" / NAME)
        self.shelf = Shelf(root)
        self._bin = root / "bin"
        self._bin.mkdir()
        self.install("scontrol", _SCONTROL)
        (self._bin / "step.py").write_text(_STEP)
        self._jobs: list[subprocess.Popen[bytes]] = []

    def install(self, name: str, program: str) -> None:
        """Have jobs find this program before any other of its name."""
        (self._bin / name).write_text(program)
        (self._bin / name).chmod(0o755)

    def submit(self, *, environment: Mapping[str, str] = MappingProxyType({"MY_TOKEN": "S3CR3T"})) -> None:
        submit = {"channel_root": "/c", "origin": None, "wanted": {}}
        self.shelf.claim(name=NAME, submit=submit, environment=environment)

    def start(
        self,
        *records: dict[str, Any] | None,
        job_id: str = "17",
        restart: int = 0,
        code: int = 0,
        waits_for: str = "",
        **told: Any,
    ) -> subprocess.Popen[bytes]:
        nodes = [{"node": "gpu1", "ranks": [0], "slots": [0]}, {"node": "gpu2", "ranks": [1], "slots": [0]}]
        asked = {
            "gang_dir": str(self.gang.path),
            "chooses_nodes": False,
            "notice_s": 60.0,
            "requeue": False,
            "step": {"srun": [], "python": [sys.executable, str(self._bin / "step.py")]},
            "body": {"attempt_name": NAME, "nodes": nodes},
            **told,
        }
        environ = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SLURM_JOB_ID": job_id,
            "SLURM_RESTART_COUNT": str(restart) if restart else "",
            "SLURM_JOB_NODELIST": "gpu[1-2]",
            "SLURM_JOB_PARTITION": "low",
            "STEP": json.dumps({"records": records, "code": code, "waits_for": waits_for}),
        }
        job = subprocess.Popen(
            [sys.executable, "-P", "-m", "airflow_llmsched.agent.slurm_batch"],
            stdin=subprocess.PIPE,
            env=environ,
        )
        assert job.stdin is not None
        job.stdin.write(base64.encodebytes(json.dumps(asked).encode()))
        job.stdin.close()
        self._jobs.append(job)
        return job

    def run(self, *records: dict[str, Any] | None, **how: Any) -> int:
        return self.start(*records, **how).wait(timeout=120)

    def close(self) -> None:
        for job in self._jobs:
            job.kill()
            job.wait()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def test_job_starts_the_gang_and_exits_0_when_all_nodes_are_done(house: House) -> None:
    house.submit()
    assert house.run(DONE, DONE) == 0
    request = read_json(house.gang.request)
    assert request is not None
    assert [(part["node"], part["address"]) for part in request["body"]["nodes"]] == [
        ("gpu1", "10.0.0.1"),
        ("gpu2", "10.0.0.2"),
    ]
    assert (request["restart"], request["preemption_grace_s"]) == (0, 45.0)
    assert request["body"]["environment"] == {"MY_TOKEN": "S3CR3T"}, "from the attempt's folder"
    assert (read_json(house.gang.job) or {})["job_id"] == "17"


@pytest.mark.parametrize(
    ("records", "step_code", "code"),
    [
        ([{"outcome": "aborted", "ends": [_end(0, 5, at_s=2.0)]}, {"outcome": "aborted", "ends": [_end(1, 3)]}], 0, 3),
        ([{"outcome": "aborted", "ends": [_end(0, None, signal=9)]}, DONE], 0, 137),
        ([{"outcome": "aborted", "ends": [{**_end(0, 1), "forced": True}]}, DONE], 0, LOST),
        ([DONE, None], 1, 1),
        ([DONE, None], 0, LOST),
    ],
)
def test_exit_code_is_that_of_the_rank_that_failed_first(
    house: House, records: list[dict[str, Any] | None], step_code: int, code: int
) -> None:
    house.submit()
    assert house.run(*records, code=step_code) == code


def test_ranks_that_fail_on_two_nodes_are_told_apart_by_one_clock(house: House) -> None:
    house.submit()
    assert house.run(_aborted(_end(0, 5, at_s=10.0)), _aborted(_end(1, 3, at_s=12.0), ahead_s=4.0)) == 3


def test_rank_for_which_the_gang_was_given_up_is_the_one_whatever_clocks_say(house: House) -> None:
    house.submit()
    write_json(house.gang.abort, {"v": 1, "node": "gpu2", "at_s": 3.0, "fault": "rank_failed", "rank": 1})
    assert house.run(_aborted(_end(0, 5, at_s=1.0)), _aborted(_end(1, 3, at_s=2.0))) == 3


def test_job_without_its_ranks_environment_starts_nothing(house: House) -> None:
    house.submit()
    (house.gang.path / "environment.json").unlink()
    assert house.run(DONE, DONE) == 1
    assert not house.gang.request.exists()
    house.gang.job.unlink()
    nodes = [{"node": "gpu1", "ranks": [0], "slots": [0]}, {"node": "gpu2", "ranks": [1], "slots": [0]}]
    assert house.run(DONE, DONE, body={"attempt_name": NAME, "nodes": nodes, "environment": {"OLD": "1"}}) == 0
    assert (read_json(house.gang.request) or {})["body"]["environment"] == {"OLD": "1"}, "queued before an upgrade"


def test_second_job_of_the_name_starts_nothing(house: House) -> None:
    house.submit()
    assert house.run(DONE, DONE) == 0
    house.gang.request.unlink()
    assert house.run(DONE, DONE, job_id="18") == NOT_OURS
    assert not house.gang.request.exists()


@pytest.mark.parametrize("before", ["nothing", "abandoned", "stopped", "given_up"])
def test_job_of_an_attempt_that_is_over_starts_nothing(house: House, before: str) -> None:
    if before == "abandoned":
        house.shelf.abandon(name=NAME)
    elif before != "nothing":
        house.submit()
    if before == "stopped":
        house.shelf.stop(name=NAME, grace_s=1.0)
    if before == "given_up":
        house.shelf.give_up(name=NAME, reason="")
    assert house.run(DONE, DONE) == NOT_OURS
    assert not house.gang.request.exists()


def test_requeued_job_starts_nothing_unless_the_site_insists(house: House) -> None:
    house.submit()
    house.run({"outcome": "terminated", "ends": []}, None)
    assert house.run(DONE, DONE, restart=1) == NOT_OURS
    assert house.run(DONE, DONE, restart=1, requeue=True) == 0
    request = read_json(house.gang.request)
    assert request is not None
    assert request["restart"] == 1
    before = GangDir(house.gang.path / "lives" / "0")
    assert (read_json(before.node("gpu1").exit) or {})["outcome"] == "terminated"
    assert not before.job.exists()


def test_nodes_are_those_that_slurm_chose_in_its_order(house: House) -> None:
    house.submit()
    assert house.run(DONE, DONE, chooses_nodes=True) == 0
    request = read_json(house.gang.request)
    assert request is not None
    assert [(part["node"], part["ranks"]) for part in request["body"]["nodes"]] == [("gpu2", [0]), ("gpu1", [1])]


def test_time_limits_signal_is_handed_to_every_node_with_its_grace(house: House) -> None:
    house.submit()
    job = house.start(DONE, DONE, waits_for="nodes/gpu2/notice.json")
    wait_until((house.gang.path / "step.pid").exists, 60)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=120) == 0
    for node in ("gpu1", "gpu2"):
        notice = read_json(house.gang.node(node).notice)
        assert notice is not None
        assert notice["deadline_s"] - notice["at_s"] == 60.0


def test_job_whose_nodes_are_taken_stays_until_it_is_killed(house: House) -> None:
    house.submit()
    taken = {"outcome": "terminated", "ends": [_end(0, None, signal=15)]}
    job = house.start(taken, taken, waits_for="nodes/gpu2/notice.json")
    wait_until((house.gang.path / "step.pid").exists, 60)
    job.send_signal(signal.SIGTERM)
    wait_until(house.gang.node("gpu2").exit.exists, 60)
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(timeout=1.5)
    job.kill()
    assert job.wait(timeout=60) == -signal.SIGKILL


def test_job_that_was_stopped_takes_its_cancelling_for_no_notice(house: House) -> None:
    house.submit()
    stopped = {"outcome": "stopped", "ends": []}
    job = house.start(stopped, stopped, waits_for="over")
    wait_until((house.gang.path / "step.pid").exists, 60)
    house.shelf.stop(name=NAME, grace_s=1.0)
    job.send_signal(signal.SIGTERM)
    write_json(house.gang.path / "over", {})
    assert job.wait(timeout=120) == LOST
    assert not house.gang.node("gpu1").notice.exists()


_SITES_SRUN = """\
#!/bin/sh
# A site's wrapper, before the real one in PATH: it counts steps, and passes its arguments on without quotes.
while [ "${1#--}" != "$1" ]; do shift; done
SLURMD_NODENAME=gpu1 exec $*
"""


def test_c22_every_byte_of_a_setting_arrives_through_a_sites_own_srun(house: House, tmp_path: Path) -> None:
    odd = {"A": "x y", "B": 'it\'s "q" $HOME `id`', "C": "one\ntwo,three=4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    house.install("srun", _SITES_SRUN)
    house.install("scontrol", _SCONTROL.replace("10.0.0.1", "127.0.0.1"))
    said = tmp_path / "said"
    shown = (
        f"import json, os; json.dump({{name: os.environ[name] for name in {sorted(odd)}}}, open({str(said)!r}, 'w'))"
    )
    gang = GangSpec(
        key=AttemptKey(run=RunKey("ls-run"), generation=1, attempt=1),
        placement=Placement(slots=(RankSlot(rank=0, node=NodeId("gpu1"), slot=0, local_rank=0),)),
        layout=ParallelLayout(dp=1),
        command=(sys.executable, "-S", "-c", shown),
        channel_root=str(tmp_path / "channel"),
        launcher=Launcher.PLAIN,
        environment=odd,
    )
    body = agent_body(gang, addresses={NodeId("gpu1"): "gpu1"}, binds_devices=True)
    house.submit(environment=body.pop("environment"))
    step = {"srun": ["srun", "--ntasks-per-node=1", "--export=ALL"], "python": [sys.executable]}
    assert house.run(body=body, step=step) == 0
    assert json.loads(said.read_text()) == odd


def test_anything_but_its_two_forms_is_refused() -> None:
    argv = [sys.executable, "-P", "-m", "airflow_llmsched.agent.slurm_batch", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "usage" in done.stderr
