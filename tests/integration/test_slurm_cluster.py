"""The tests' own Slurm: that it is up with its GPUs, preempts, answers over REST, and leaves nothing."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from tests.support.slurm_cluster import NODES, SlurmCluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


def _state(cluster: SlurmCluster, job: str) -> str:
    return cluster.call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def _sbatch(cluster: SlurmCluster, *options: str, script: str) -> str:
    argv = ["sbatch", "--parsable", f"--output={cluster.shared}/%j.out", *options]
    return cluster.call(*argv, stdin=f"#!/bin/bash\n{script}\n").strip()


def test_gang_gets_its_gpus_on_every_node(slurm: SlurmCluster) -> None:
    script = "srun --ntasks-per-node=1 bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    job = _sbatch(slurm, "--partition=small", "--nodelist=s2,s3", "--nodes=2", "--gres=gpu:2", script=script)
    wait_until(lambda: _state(slurm, job) == "COMPLETED", 60)
    assert sorted((slurm.shared / f"{job}.out").read_text().splitlines()) == ["s2 0,1", "s3 0,1"]


def test_job_of_the_high_partition_takes_the_node_of_a_low_one(slurm: SlurmCluster) -> None:
    slurm.call("scontrol", "update", "partition=small", "gracetime=1")
    options = ["--nodelist=s4", "--gres=gpu:2"]
    low = _sbatch(slurm, "--partition=small", "--no-requeue", *options, script="sleep 600")
    wait_until(lambda: _state(slurm, low) == "RUNNING", 60)
    high = _sbatch(slurm, "--partition=small-high", *options, script="sleep 600")
    wait_until(lambda: _state(slurm, high) == "RUNNING", 60)
    assert _state(slurm, low) == "PREEMPTED"
    slurm.call("scancel", high)
    wait_until(lambda: _state(slurm, high) == "CANCELLED", 60)


def test_cluster_that_is_cleared_just_after_its_controller_began_anew_is_free_again(slurm: SlurmCluster) -> None:
    job = _sbatch(slurm, "--partition=small", "--nodelist=s1", "--gres=gpu:2", script="sleep 600")
    wait_until(lambda: _state(slurm, job) == "RUNNING", 60)
    slurm.stop_controller()
    slurm.start_controller()
    slurm.clear()
    assert "GresUsed=gpu:a100:0" in slurm.call("scontrol", "--details", "show", "node", "s1")


def test_rest_daemon_answers_who_has_a_token(slurm: SlurmCluster) -> None:
    with slurm.rest() as address:
        headers = {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": slurm.token()}
        request = urllib.request.Request(f"{address}/slurm/v0.0.38/nodes", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert {node["name"] for node in json.load(reply)["nodes"]} == set(NODES)


def test_cluster_that_is_removed_leaves_neither_jobs_nor_daemons(tmp_path: Path) -> None:
    cluster = SlurmCluster(tmp_path / "own")
    cluster.root.mkdir()
    try:
        cluster.start()
        job = _sbatch(cluster, "--nodes=2", script="trap '' TERM; sleep 600 & setsid sleep 600 & srun sleep 600")
        wait_until(lambda: _state(cluster, job) == "RUNNING", 60)
        assert len(proc.marked(cluster.environment)) > len(NODES)
    finally:
        cluster.remove()
    assert proc.marked(cluster.environment) == []
    assert not cluster.root.exists()
