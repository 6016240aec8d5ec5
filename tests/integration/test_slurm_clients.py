"""Three ways to ask a real Slurm: its commands here, the same over a real sshd, and slurmrestd with a token."""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from airflow_llmsched import effect_points
from airflow_llmsched.cli.main import app
from airflow_llmsched.domain.gang import GangPhase, GangSpec, GangStatus
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.effect_points import Side
from airflow_llmsched.engines.slurm import records
from airflow_llmsched.engines.slurm.client import SlurmCli, SlurmClient
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.records import ENVIRONMENT, JobRecord
from airflow_llmsched.engines.slurm.render import render
from airflow_llmsched.engines.slurm.replies import Job
from airflow_llmsched.engines.slurm.rest_client import RestAccess, RestClient, TokenFile
from airflow_llmsched.engines.slurm.runner import LocalRunner
from airflow_llmsched.engines.slurm.ssh_runner import SshRunner
from airflow_llmsched.engines.slurm.status import JobSight, status_of
from airflow_llmsched.engines.slurm.topology import tree_of
from airflow_llmsched.errors import CouldNotLookError, LaunchError
from airflow_llmsched.topology.nodelist import compress, expand
from tests.support.login_node import login_node
from tests.support.slurm_cluster import SlurmCluster
from tests.support.waiting import wait_until
from tests.unit.topology.test_nodelist import FORMS

pytestmark = pytest.mark.server

WAYS = ("commands", "ssh", "rest")
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def rest_address(slurm: SlurmCluster) -> Iterator[str]:
    with slurm.rest() as address:
        yield address


@pytest.fixture(scope="module")
def clients(
    slurm: SlurmCluster, rest_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, SlurmClient]]:
    token_file = tmp_path_factory.mktemp("rest") / "token"
    token_file.write_text(slurm.token())
    access = RestAccess(url=rest_address, user="root")
    # What a login brings along would change what we ask for, if it were not taken away.
    login = {**slurm.environment, "SBATCH_PARTITION": "nowhere", "SQUEUE_STATES": "PD", "SQUEUE_USERS": "nobody"}
    with login_node(login) as node:
        yield {
            "commands": SlurmCli(runner=LocalRunner(environment={**ENVIRONMENT, **slurm.environment})),
            "ssh": SlurmCli(runner=SshRunner(machine=node.machine, access=node.access, environment=ENVIRONMENT)),
            "rest": RestClient(
                access=access, token=TokenFile(str(token_file)), network_file=str(slurm.root / "etc" / "topology.conf")
            ),
        }


@pytest.fixture
def root(slurm: SlurmCluster) -> Iterator[Path]:
    """A folder of the test's own; its jobs are ended afterwards."""
    folder = slurm.shared / uuid.uuid4().hex
    folder.mkdir()
    yield folder
    slurm.clear()


def _cli(slurm: SlurmCluster) -> SlurmCli:
    return SlurmCli(runner=LocalRunner(environment={**ENVIRONMENT, **slurm.environment}))


def _options(root: Path, does: str, **changes: Any) -> SlurmOptions:
    """Options whose Python is a shell script that ``does`` something instead of starting agents."""
    python = root / f"python-{zlib.crc32(does.encode())}"  # a job may read it at any time: never written twice
    if not python.exists():
        python.write_text(f"#!/bin/bash\n{does}\n")
        python.chmod(0o755)
    base = {"root": str(root), "python": str(python), "slots_per_node": 2, "gres": "gpu:a100", "partition": "small"}
    return SlurmOptions.from_json({**base, **changes})


def _gang(root: Path, *, attempt: int = 1, nodes: str = "s1 s2", slots: int | Sequence[int] = 1) -> GangSpec:
    names = nodes.split()
    counts = [slots] * len(names) if isinstance(slots, int) else slots
    places = [(NodeId(name), index) for name, count in zip(names, counts, strict=True) for index in range(count)]
    return GangSpec(
        key=AttemptKey(run=RunKey(f"ls-{root.name[:20]}"), generation=1, attempt=attempt),
        placement=Placement(
            slots=tuple(
                RankSlot(rank=rank, node=node, slot=slot, local_rank=slot) for rank, (node, slot) in enumerate(places)
            )
        ),
        layout=ParallelLayout(dp=len(places)),
        command=("train", 'it\'s "odd" $(false)'),
        channel_root=str(root / "channel"),
    )


def _submit(client: SlurmClient, gang: GangSpec, options: SlurmOptions) -> Job:
    slurm = render(gang, options=options).body["slurm"]
    return client.submit(slurm["script"], parts=slurm["parts"])


def _record(client: SlurmClient, job: Job) -> JobRecord:
    return next(each for each in client.jobs() if each.job_id == job.id)


def _status(client: SlurmClient, job: Job, gang: GangSpec, *, stop_at_s: float | None = None) -> GangStatus:
    sight = JobSight(job_id=job.id, nodes=gang.placement.nodes, queue=_record(client, job), stop_at_s=stop_at_s)
    return replace(status_of(sight, now_s=time.time()), observed_at_s=0.0)


def _wait(client: SlurmClient, job: Job, *words: str) -> None:
    wait_until(lambda: _record(client, job).state.word in words, LIMIT_S, poll_s=0.1)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_submits_and_cancels_and_all_see_the_same(
    way: str, clients: dict[str, SlurmClient], root: Path
) -> None:
    gang = _gang(root)
    job = _submit(clients[way], gang, _options(root, "exec sleep 600"))
    _wait(clients[way], job, "RUNNING")
    running = {each: _status(client, job, gang) for each, client in clients.items()}
    assert {status.phase for status in running.values()} == {GangPhase.STARTING}
    assert running["commands"] == running["ssh"] == running["rest"]
    assert {_record(client, job).nodes for client in clients.values()} == {("s1", "s2")}
    clients[way].cancel(job)
    _wait(clients[way], job, "CANCELLED")
    cancelled = [_status(client, job, gang) for client in clients.values()]
    assert {(status.phase, status.fault) for status in cancelled} == {(GangPhase.STOPPED, FaultKind.STOPPED_OUTSIDE)}
    assert cancelled[0] == cancelled[1] == cancelled[2]
    stopped = [_status(client, job, gang, stop_at_s=time.time()) for client in clients.values()]
    assert {(status.phase, status.fault) for status in stopped} == {(GangPhase.STOPPED, None)}


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_script_that_fails_is_told_the_same_by_every_source(
    way: str, slurm: SlurmCluster, clients: dict[str, SlurmClient], root: Path
) -> None:
    gang = _gang(root)
    job = _submit(clients[way], gang, _options(root, "exit 3"))
    _wait(clients[way], job, "FAILED")
    told = [_record(client, job) for client in clients.values()]
    assert told[0] == told[1] == told[2]
    line = slurm.call("env", "SLURM_TIME_FORMAT=%s", "scontrol", "--oneliner", "show", "job", job.id)
    assert records.from_scontrol(line) == told[0]
    assert list(_cli(slurm).accounting([job.id, "999999"])) == [told[0]]  # there is none: the controller is asked
    kept = next(line for line in _completions(slurm) if line.startswith(f"JobId={job.id} "))
    completed = records.from_completion(kept)
    assert (completed.state, completed.exit_code, completed.nodes) == (told[0].state, 3, ("s1", "s2"))
    assert told[0].comment.startswith("llmsched:1:")
    status = _status(clients[way], job, gang)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)
    assert "exit code 3" in status.reason


def _completions(slurm: SlurmCluster) -> list[str]:
    return (slurm.root / "log" / "jobcomp.txt").read_text().splitlines()


@pytest.mark.parametrize("way", WAYS)
def test_what_slurm_refuses_is_refused_in_its_words(way: str, clients: dict[str, SlurmClient], root: Path) -> None:
    # slurmrestd 22.05 does not say which option it could not take.
    with pytest.raises(LaunchError, match=r"(?i)gres|Failure during parsing"):
        _submit(clients[way], _gang(root), _options(root, "true", gres="fpga"))


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_ended_or_never_was_is_cancelled_in_silence(
    way: str, clients: dict[str, SlurmClient], root: Path
) -> None:
    job = _submit(clients[way], _gang(root), _options(root, "true"))
    _wait(clients[way], job, "COMPLETED")
    clients[way].cancel(job)
    clients[way].cancel(Job(id="999999"))
    assert _record(clients[way], job).state.word == "COMPLETED"


def test_every_way_sees_the_same_nodes_and_network(clients: dict[str, SlurmClient], root: Path) -> None:
    job = _submit(clients["commands"], _gang(root), _options(root, "exec sleep 600"))
    _wait(clients["commands"], job, "RUNNING")
    options = _options(root, "exec sleep 600", partition=None)
    trees: dict[str, TopologyTree] = {}

    def agree() -> bool:  # what is in use is counted a moment after a job has begun
        for way, client in clients.items():
            trees[way] = tree_of(client.nodes(), switches=client.switches(), options=options)
        return trees["commands"] == trees["ssh"] == trees["rest"] and trees["rest"].num_usable_slots == 6

    wait_until(agree, LIMIT_S, poll_s=0.1)
    tree = trees["rest"]
    assert tree.levels == ("switch1", "switch0")
    found = {node.id: node for node in tree.nodes}
    assert set(found) == {"s1", "s2", "s3", "s4"}  # the others have no a100
    assert found[NodeId("s1")].path == ("spine", "leaf3")
    assert (found[NodeId("s1")].num_free_slots, found[NodeId("s1")].free_slots) == (1, (1,))


def test_the_command_draws_the_cluster_and_the_file_of_its_network_alike(
    slurm: SlurmCluster, root: Path, tmp_path: Path
) -> None:
    options = {"root": str(root), "slurm_conf": str(slurm.conf), "slots_per_node": 8, "node_shape": "dgx-h100"}
    engine = ("--engine", "slurm", "--engine-options", json.dumps(options), "--state-root", str(tmp_path))
    drawn = CliRunner().invoke(app, ["topology", "show", "--json", *engine])
    assert drawn.exit_code == 0, drawn.output
    asked = {node["id"]: node["path"] for node in json.loads(drawn.stdout)["nodes"]}
    (tmp_path / "told.txt").write_text(slurm.call("scontrol", "show", "topology"))
    read = CliRunner().invoke(app, ["topology", "show", "--json", str(tmp_path / "told.txt")])
    assert {node["id"]: node["path"] for node in json.loads(read.stdout)["nodes"]} == asked != {}
    (tmp_path / "saved.json").write_text(drawn.stdout)
    same = CliRunner().invoke(app, ["topology", "diff", str(tmp_path / "saved.json"), *engine])
    assert (same.exit_code in {0, 3}, "moved" in same.output) == (True, False), same.output


@pytest.mark.parametrize("way", ["commands", "rest"])
def test_nodes_with_unlike_shares_are_one_job_of_parts(
    way: str, slurm: SlurmCluster, clients: dict[str, SlurmClient], root: Path
) -> None:
    says = "srun --ntasks-per-node=1 --het-group=0-1 bash -c 'echo $SLURMD_NODENAME $SLURM_NODEID $SLURM_NNODES'"
    gang = _gang(root, nodes="s1 s3 s2", slots=[2, 2, 1])
    job = _submit(clients[way], gang, _options(root, says, time_limit_s=3600, notice_s=0))
    _wait(clients[way], job, "COMPLETED")
    assert _record(clients["rest"], job).nodes == _record(clients["commands"], job).nodes == ("s1", "s3", "s2")
    (log,) = root.glob("*.log")
    shown = slurm.call("squeue", "--noheader", "--states=all", f"--jobs={job.id}", "--format=%l %j %k")
    assert len(shown.splitlines()) == 2
    assert len(set(shown.splitlines())) == 1
    said = [line.split()[:2] for line in log.read_text().splitlines() if not line.startswith("srun:")]
    assert sorted(said) == [["s1", "0"], ["s2", "2"], ["s3", "1"]]


def _lost_after(point: str) -> Callable[[str, Side], None]:
    def listener(name: str, side: Side) -> None:
        if (name, side) == (point, Side.AFTER):
            raise ConnectionError("the reply is lost")

    return listener


@contextlib.contextmanager
def _reply_lost(point: str) -> Iterator[None]:
    effect_points.listen(_lost_after(point))
    try:
        with pytest.raises(ConnectionError):
            yield
    finally:
        effect_points.listen(None)


def test_a_submit_whose_reply_is_lost_is_repeated_and_its_second_job_waits_for_the_first(
    clients: dict[str, SlurmClient], root: Path
) -> None:
    gang, options, rest = _gang(root), _options(root, "exec sleep 600"), clients["rest"]
    with _reply_lost("slurm.rest.submit"):
        _submit(rest, gang, options)
    again = _submit(rest, gang, options)
    wait_until(lambda: _record(rest, again).reason == "Dependency", LIMIT_S, poll_s=0.1)
    (first,) = (job for job in rest.jobs() if job.name == gang.key.name and job.job_id != again.id)
    wait_until(lambda: _record(rest, Job(id=first.job_id)).state.word == "RUNNING", LIMIT_S, poll_s=0.1)
    with _reply_lost("slurm.rest.cancel"):
        rest.cancel(again)
    rest.cancel(again)
    _wait(rest, again, "CANCELLED")
    assert _record(rest, Job(id=first.job_id)).state.word == "RUNNING"


def test_a_token_that_expired_is_told_from_one_of_another_key_and_a_new_one_is_taken_up(
    slurm: SlurmCluster, rest_address: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    client = RestClient(access=RestAccess(url=rest_address, user="root"), token=TokenFile(str(file)))
    good = slurm.token()
    head, body, signature = good.split(".")
    file.write_text(f"{head}.{body}.{signature[::-1]}")
    with pytest.raises(CouldNotLookError, match="does not accept the token") as caught:
        client.jobs()
    assert signature[::-1] not in str(caught.value)
    file.write_text(slurm.token(lifespan_s=1))
    until_s = time.time() + 1.0
    wait_until(lambda: time.time() > until_s + 1.0, LIMIT_S)
    with pytest.raises(CouldNotLookError, match=r"it expired \d+ s ago"):
        client.jobs()
    file.write_text(good)
    client.jobs()


def test_nobody_is_taken_for_a_user_without_jobs(slurm: SlurmCluster, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"  # of a cluster whose controller is not there
    text = re.sub(r"(?m)^SlurmctldPort=.*", "SlurmctldPort=9", slurm.conf.read_text())
    conf.write_text(re.sub(r"(?m)^MessageTimeout=.*", "MessageTimeout=1", text))
    broken = LocalRunner(environment={**ENVIRONMENT, "SLURM_CONF": str(conf)})
    with pytest.raises(CouldNotLookError):
        SlurmCli(runner=broken).jobs()
    token = tmp_path / "token"
    token.write_text(slurm.token())
    with pytest.raises(CouldNotLookError, match="did not answer"):
        RestClient(access=RestAccess(url="http://127.0.0.1:9", user="root"), token=TokenFile(str(token))).jobs()


def test_node_lists_are_written_out_as_slurm_does(slurm: SlurmCluster) -> None:
    for text, names in FORMS.items():
        assert slurm.call("scontrol", "show", "hostnames", compress(names)).split() == names
        if not text.endswith("-ib0") and ".site" not in text:  # which 22.05 takes for no list
            assert slurm.call("scontrol", "show", "hostnames", text.strip()).split() == names
    folded = slurm.call("scontrol", "show", "hostlist", "n1,n2,n3,n10,m[08-11]").strip()
    assert set(expand(folded)) == {"n1", "n2", "n3", "n10", "m08", "m09", "m10", "m11"}
