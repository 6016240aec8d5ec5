"""Real ranks that meet over loopback: two on the first of three nodes, one on each of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.meeting import hold_port
from airflow_llmsched.trainers.preflight.words import MARK, MAX_NAME_CHARS, OPTIONS_VARIABLE, Options

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NODES = ("n0", "n0", "n1", "n2")
"""Node of each rank."""
ENDS_S = 100.0


def start(options: Options, *, rank: int, port: int) -> subprocess.Popen[str]:
    environ = {
        **os.environ,
        OPTIONS_VARIABLE: options.to_json(),
        wire.NODE: NODES[rank],
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(len(NODES)),
        "LOCAL_RANK": str(int(rank == 1)),
        "LOCAL_WORLD_SIZE": str(NODES.count(NODES[rank])),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    argv = [sys.executable, "-m", "airflow_llmsched.trainers.preflight.check"]
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def report(output: str) -> dict[str, tuple[str, str]]:
    told = [json.loads(text.partition(MARK)[2]) for text in output.splitlines() if MARK in text]
    return {check["name"]: (check["outcome"], check["detail"]) for check in told}


def test_the_first_rank_of_each_node_reports_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    options = Options(folders=(folder,), num_storage_bytes=100_000, num_link_bytes=100_000)
    with hold_port() as port:
        ranks = [start(options, rank=rank, port=port) for rank in range(4)]
        outputs = [rank.communicate(timeout=ENDS_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, outputs
    for rank in (0, 2, 3):
        measured = {name for name, (outcome, _) in report(outputs[rank][0]).items() if outcome == "ok"}
        assert measured == {f"storage {folder}"[-MAX_NAME_CHARS:], "compute", "node_links", "collective"}
        assert report(outputs[rank][0])["collective"][1] == "100000 bytes over 4 ranks"
    assert not report(outputs[1][0])


def test_a_rank_that_stands_still_is_named_by_those_that_came() -> None:
    """Rank 3 never comes; the first rank of each node that did says what it knows, and nobody waits for ever."""
    options = Options(link_limit_s=3.0)
    with hold_port() as port:
        ranks = [start(options, rank=rank, port=port) for rank in range(4)]
        ranks[3].send_signal(signal.SIGSTOP)
        try:
            outputs = [rank.communicate(timeout=ENDS_S) for rank in ranks[:3]]
        finally:
            ranks[3].kill()
            ranks[3].communicate()
    assert [report(outputs[rank][0])["meeting"][0] for rank in (0, 2)] == ["skipped", "skipped"]


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({"CUDA_VISIBLE_DEVICES": "5,2"}, [5, 2]),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "7"}, [0, 1]),
        ({}, [0, 1]),
    ],
)
def test_a_nodes_tools_are_asked_about_the_accelerators_that_the_gang_has(
    environ: dict[str, str], slots: list[int]
) -> None:
    from airflow_llmsched.trainers.preflight.check import shown_slots

    assert shown_slots(environ, num_slots=2) == slots
