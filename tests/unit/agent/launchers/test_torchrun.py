from __future__ import annotations

import sys

from airflow_llmsched.agent.meeting import Meeting
from tests.support.launching import BODY, starts


def test_torchrun_meets_at_the_held_port_and_never_restarts_by_itself() -> None:
    (host,), (guest,) = starts("n0"), starts("n1")
    wrapper = host.argv.index("--no-python") + 1
    assert host.argv[:wrapper] == [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--node-rank=0",
        "--nproc-per-node=2",
        "--rdzv-backend=static",
        "--rdzv-endpoint=127.0.0.1:20123",
        "--rdzv-id=ls-x-g2-a3",
        "--rdzv-conf=timeout=91",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "--log-dir=/gang/nodes/n0/torchrun",
        "--no-python",
    ]
    assert host.argv[wrapper:] == [sys.executable, "-P", "-m", "airflow_llmsched.agent.rank", "--", *BODY["command"]]
    assert "--node-rank=1" in guest.argv


def test_nodes_on_machines_of_their_own_meet_at_the_address_of_the_first() -> None:
    nodes = [
        {"node": "n0", "ranks": [0, 1], "address": "fd00::1"},
        {"node": "n1", "ranks": [2, 3], "address": "fd00::2"},
    ]
    (guest,) = starts("n1", meeting=Meeting("fd00::1", 20123), nodes=nodes)
    assert "--rdzv-endpoint=[fd00::1]:20123" in guest.argv
