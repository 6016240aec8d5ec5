"""torchrun on real hosts: every rank is where the placement has it, and they reach each other over the network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.testing.engine_contract import HANGS, ended, gang_of, submit
from tests.support.hosts_engine import HostsHarness
from tests.support.ssh_hosts import SshHosts

pytestmark = [pytest.mark.server, pytest.mark.torch, pytest.mark.timeout(400)]

TRAINER = """
import os
import torch
import torch.distributed as dist
from airflow_llmsched import agent
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
agent.ready()
print(dist.get_rank(), os.environ["LOCAL_RANK"], os.environ["LLMSCHED_NODE"], int(total), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    code = tmp_path / "code"
    code.mkdir()
    (code / "their_trainer.py").write_text(TRAINER)
    harness = HostsHarness(tmp_path / "engine", machines, code=[str(code)])
    yield harness
    harness.close()


def test_ranks_meet_across_hosts_in_the_order_of_the_placement(harness: HostsHarness) -> None:
    gang = gang_of(harness, [HANGS] * 4)
    gang = replace(
        gang,
        launcher=Launcher.TORCHRUN,
        command=(sys.executable, "-m", "their_trainer"),
        environment={"GLOO_SOCKET_IFNAME": "eth0"},
        start_limit_s=120.0,
        exit_grace_s=60.0,
    )
    handle = submit(harness, gang)
    status = ended(harness, handle, limit_s=70.0)
    assert status.phase is GangPhase.SUCCEEDED, status
    said = [harness.engine.log_tail(handle, rank=rank, num_lines=1) for rank in range(4)]
    assert said == ["0 0 h1 10", "1 1 h1 10", "2 0 h2 10", "3 1 h2 10"]
