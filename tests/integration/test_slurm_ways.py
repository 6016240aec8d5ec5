"""A whole gang on a real Slurm that is reached over a login node, or through slurmrestd: as with its commands here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.engines.slurm.opening import open_slurm
from airflow_llmsched.errors import CapacityError
from airflow_llmsched.testing.engine_contract import HANGS, SUCCEEDS, RankScript, ended, gang_of, running, submit
from tests.support.login_node import LoginNode, login_node
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_engine import SlurmHarness, python_for

pytestmark = pytest.mark.server

WAYS = ("ssh", "rest", "rest and ssh")


class _FarHarness(SlurmHarness):
    """A harness whose engine is opened by options, as a DAG would open it."""

    def __init__(self, cluster: SlurmCluster, how: dict[str, Any]) -> None:
        self._how = how
        super().__init__(cluster)

    def reopened(self, *, spy: list[str] | None = None) -> SlurmEngine:
        del spy
        return open_slurm(slurm_conf=str(self.cluster.conf), **self._how, **self.options)


@pytest.fixture(scope="module")
def login(slurm: SlurmCluster) -> Iterator[LoginNode]:
    with login_node(slurm.environment) as node:
        yield node


@pytest.fixture(scope="module")
def rest(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    token_file = tmp_path_factory.mktemp("rest") / "token"
    token_file.write_text(slurm.token())
    token_file.chmod(0o600)
    with slurm.rest() as address:
        yield {"url": address, "user": "root", "token_file": str(token_file)}


@pytest.fixture(params=WAYS)
def harness(
    request: pytest.FixtureRequest, slurm: SlurmCluster, login: LoginNode, rest: dict[str, str]
) -> Iterator[SlurmHarness]:
    how: dict[str, Any] = {}
    if "ssh" in request.param:
        access = login.access
        how["ssh"] = {
            "address": login.machine.address,
            "port": login.machine.port,
            "user": access.user,
            "key": access.key,
            "known_hosts": access.known_hosts,
            "silence_limit_s": access.silence_limit_s,
        }
    if "rest" in request.param:
        how |= {"rest": rest, "topology_file": str(slurm.root / "etc" / "topology.conf")}
    python_for(slurm)
    found = _FarHarness(slurm, how)
    try:
        yield found
    finally:
        found.close()


def test_a_gang_runs_to_its_end_and_is_found_by_another_process(harness: SlurmHarness) -> None:
    gang = gang_of(harness, [SUCCEEDS, RankScript(says="last words"), SUCCEEDS, SUCCEEDS])
    handle = submit(harness, gang)
    assert submit(harness, gang) == handle
    other = harness.reopened()
    assert list(other.find(gang.key.run)) == [handle]
    status = ended(harness, handle)
    assert (status.phase, status.fault) == (GangPhase.SUCCEEDED, None)
    assert other.poll([handle])[handle].phase is GangPhase.SUCCEEDED
    assert other.log_tail(handle, rank=1, num_lines=5) == "last words"


@pytest.mark.parametrize("harness", WAYS[:2], indirect=True)
def test_a_running_gang_takes_its_slots_and_is_stopped_whole(harness: SlurmHarness) -> None:
    gang = gang_of(harness, [HANGS] * 4)
    handle = submit(harness, gang)
    running(harness, handle)
    assert harness.num_live_ranks(handle) == 4
    (found,) = (each for each in harness.engine.find_all() if each.handle == handle)
    assert found.channel_root == gang.channel_root
    with pytest.raises(CapacityError):
        submit(harness, gang_of(harness, [HANGS] * 4))
    harness.engine.stop(handle, grace_s=1.0)
    assert harness.num_live_ranks(handle) == 0
    assert ended(harness, handle).phase is GangPhase.STOPPED


def test_ranks_run_inside_an_image(slurm: SlurmCluster) -> None:
    """The program that enters images is a stand-in: it notes how it was called, and runs what it was to run inside."""
    enter = slurm.shared / "enter-image"
    enter.write_text('#!/bin/bash\nprintf "%s\\n" "$@" > "$0.$SLURM_NODEID"\nshift 9\nexec "$@"\n')
    enter.chmod(0o755)
    mounts = [str(slurm.shared), "/etc:/etc:ro"]
    image = {"kind": "apptainer", "image": "/images/a.sif", "mounts": mounts, "workdir": "/", "command": str(enter)}
    harness = SlurmHarness(slurm, container=image)
    try:
        handle = submit(harness, gang_of(harness, [SUCCEEDS] * 4))
        assert ended(harness, handle).phase is GangPhase.SUCCEEDED
    finally:
        harness.close()
    for node in ("0", "1"):
        called = Path(f"{enter}.{node}").read_text().splitlines()
        inside = ["/images/a.sif", str(python_for(slurm)), "-P", "-m", "airflow_llmsched.agent.slurm_batch", "--task"]
        mounted = ["--bind", mounts[0], "--bind", mounts[1], "--pwd", "/"]
        assert called[:-1] == ["exec", "--nv", *mounted, *inside]
