"""The Slurm engine on a real cluster, beyond the engine contract: what only a scheduler of its own does to a gang."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec, GangStatus
from airflow_llmsched.domain.health import FAILURE_CLASS, FailureClass, FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.errors import CouldNotLookError, LaunchError
from airflow_llmsched.testing.engine_contract import (
    HANGS,
    HANGS_ON,
    SUCCEEDS,
    RankScript,
    attempt_key,
    ended,
    gang_of,
    nodes_of,
    poll,
    running,
    submit,
)
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_engine import SlurmHarness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

_LARGE = {"partition": "low", "gres": "gpu:h100", "slots_per_node": 8}


@contextlib.contextmanager
def _harness(slurm: SlurmCluster, **options: object) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(slurm, **options)
    try:
        yield harness
    finally:
        harness.close()


@pytest.fixture
def harness(slurm: SlurmCluster) -> Iterator[SlurmHarness]:
    with _harness(slurm) as harness:
        yield harness


def _one_rank_on_each(harness: SlurmHarness, nodes: list[str], command: tuple[str, ...]) -> GangSpec:
    slots = tuple(RankSlot(rank=rank, node=NodeId(node), slot=0, local_rank=0) for rank, node in enumerate(nodes))
    key = attempt_key()
    return GangSpec(
        key=key,
        placement=Placement(slots=slots),
        layout=ParallelLayout(dp=len(slots)),
        command=command,
        channel_root=harness.channel_root(key),
        launcher=Launcher.PLAIN,
        start_limit_s=120.0,
        grace_s=2.0,
        exit_grace_s=60.0,
        flush_interval_s=0.2,
    )


_ALL_REDUCE = """
import json, os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
said = {"rank": dist.get_rank(), "node": os.environ["SLURMD_NODENAME"], "sum": total.item()}
with open(f"{sys.argv[1]}/rank-{dist.get_rank()}.json", "w") as file:
    json.dump(said, file)
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_gang_of_four_nodes_trains_under_torchrun_each_rank_where_the_placement_has_it(slurm: SlurmCluster) -> None:
    with _harness(slurm, **_LARGE) as harness:
        (harness.root / "sum.py").write_text(_ALL_REDUCE)
        (harness.root / "out").mkdir()
        nodes = ["n2", "n1", "n3", "n4"]
        gang = _one_rank_on_each(
            harness, nodes, (sys.executable, str(harness.root / "sum.py"), str(harness.root / "out"))
        )
        handle = submit(harness, replace(gang, launcher=Launcher.TORCHRUN))
        status = ended(harness, handle, limit_s=60.0)
        assert status.phase is GangPhase.SUCCEEDED, status.reason
        said = [json.loads(path.read_text()) for path in sorted((harness.root / "out").iterdir())]
        assert said == [{"rank": rank, "node": node, "sum": 6.0} for rank, node in enumerate(nodes)]


def test_topology_is_the_switch_tree_with_what_is_free(slurm: SlurmCluster) -> None:
    with _harness(slurm, **_LARGE) as harness:
        tree = harness.engine.topology()
        leaves = {node.id: node.path[-1] for node in tree.nodes}
        assert leaves == {NodeId(f"n{index}"): "leaf1" if index < 5 else "leaf2" for index in range(1, 9)}
        slurm.call("scontrol", "update", "nodename=n7", "state=drain", "reason=bad memory on gpu 3")
        try:
            (bad,) = (node for node in nodes_of(harness) if node.unusable_reason)
        finally:
            slurm.bring_back("n7")
        assert bad.id == "n7"
        assert "bad memory on gpu 3" in (bad.unusable_reason or "")


def test_every_byte_of_arguments_and_environment_reaches_the_ranks(harness: SlurmHarness) -> None:
    """Field case C22."""
    program = "import json, os, sys; json.dump([sys.argv[2:], dict(os.environ)], open(sys.argv[1], 'w'))"
    arguments = [
        "",
        "a b",
        "$HOME `false` $(false)",
        'it\'s "q"',
        "line\nline",
        "--export=NONE",
        "ü*?[1-9]",
        "#SBATCH -N9",
    ]
    environment = {
        "WEIRD_A": "x y",
        "WEIRD_B": 'it\'s "q" $HOME',
        "WEIRD_C": "a\nb",
        "WEIRD_D": "0,1,2,3",
        "WEIRD_E": "",
    }
    gang = gang_of(harness, [SUCCEEDS])
    target = harness.root / "said.json"
    command = (sys.executable, "-S", "-c", program, str(target), *arguments)
    handle = submit(harness, replace(gang, command=command, environment=environment))
    assert ended(harness, handle).phase is GangPhase.SUCCEEDED
    argv, environ = json.loads(target.read_text())
    assert argv == arguments
    assert {name: value for name, value in environ.items() if name.startswith("WEIRD_")} == environment
    assert {"SLURM_JOB_ID", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES"} < set(environ)
    assert {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST"} & set(environ) == set()


def test_job_ends_with_the_failed_ranks_exit_code(harness: SlurmHarness, slurm: SlurmCluster) -> None:
    handle = submit(harness, gang_of(harness, [HANGS, RankScript(lasts_s=0.2, exit_code=42), HANGS, HANGS]))
    assert ended(harness, handle).phase is GangPhase.FAILED
    said = slurm.call("scontrol", "--oneliner", "show", "job", harness.job_id(handle))
    assert "JobState=FAILED" in said
    assert "ExitCode=42:0" in said


def test_job_that_somebody_cancels_was_stopped_outside_and_leaves_no_process(
    harness: SlurmHarness, slurm: SlurmCluster
) -> None:
    """Field case C12."""
    handle = submit(harness, gang_of(harness, [HANGS] * 4))
    running(harness, handle)
    slurm.call("scancel", harness.job_id(handle))
    status = ended(harness, handle)
    assert (status.phase, status.fault) == (GangPhase.STOPPED, FaultKind.STOPPED_OUTSIDE)
    harness.advance_until(lambda: not harness.processes(handle), 15.0)


def test_lost_node_ends_the_gang_as_lost_and_the_run_may_go_on(harness: SlurmHarness, slurm: SlurmCluster) -> None:
    """Field case C10."""
    gang = gang_of(harness, [HANGS] * 4)
    handle = submit(harness, gang)
    running(harness, handle)
    gone = gang.placement.nodes[1]
    slurm.call("scontrol", "update", f"nodename={gone}", "state=down", "reason=burnt")
    try:
        status = ended(harness, handle)
    finally:
        slurm.bring_back(gone)
    assert status.phase is GangPhase.LOST
    assert status.fault is not None
    assert FAILURE_CLASS[status.fault] is not FailureClass.CODE
    harness.advance_until(lambda: not harness.processes(handle), 15.0)


def test_site_that_requeues_keeps_the_gang_with_its_placement_through_a_lost_node(slurm: SlurmCluster) -> None:
    """Field cases C1 and C5: one sbatch, and no end in between."""
    with _harness(slurm, requeue=True) as harness:
        gang = gang_of(harness, [HANGS] * 4)
        handle = submit(harness, gang)
        running(harness, handle)
        job_id = harness.job_id(handle)
        seen: list[GangStatus] = []
        slurm.call("scontrol", "update", "nodename=s2", "state=down", "reason=burnt")
        slurm.bring_back("s2")

        def runs_again() -> bool:
            seen.append(poll(harness, handle))
            assert not seen[-1].phase.ended, seen[-1]
            with contextlib.suppress(AssertionError):  # only a job that waits can be told to start sooner
                slurm.call("scontrol", "update", f"jobid={job_id}", "StartTime=now")
            return seen[-1].phase is GangPhase.RUNNING and _restarts(harness, handle) == 1

        harness.advance_until(runs_again, 30.0)
        assert GangPhase.PENDING in {status.phase for status in seen}
        assert tuple(node.node for node in seen[-1].nodes) == gang.placement.nodes
        assert harness.job_id(handle) == job_id
        assert harness.num_live_ranks(handle) == 4
        assert [each.key for each in harness.engine.find(gang.key.run)] == [gang.key]


def _restarts(harness: SlurmHarness, handle: GangHandle) -> int:
    return int(json.loads(harness.gang(handle.native_id).request.read_text())["restart"])


def test_preemption_is_announced_first_and_then_is_the_end(harness: SlurmHarness, slurm: SlurmCluster) -> None:
    """Field case C4. Ranks that end at the announcement would not be told from ranks that fail."""
    slurm.call("scontrol", "update", "partition=small", "gracetime=4")
    gang = gang_of(harness, [HANGS_ON] * 4)
    handle = submit(harness, gang)
    running(harness, handle)
    taken = gang.placement.nodes[1]
    script = "#!/bin/bash\nsleep 600\n"
    argv = [
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "--partition=small-high",
        f"--nodelist={taken}",
        "--gres=gpu:2",
    ]
    asked_at_s = time.time()
    slurm.call(*argv, stdin=script)
    noticed = wait_until(lambda: poll(harness, handle).noticed, 60.0, poll_s=0.1)
    assert not poll(harness, handle).phase.ended
    deadline_s = noticed[0].notice_deadline_s
    assert deadline_s is not None
    assert asked_at_s + 4.0 - 0.01 <= deadline_s <= time.time() + 4.0
    status = ended(harness, handle, limit_s=30.0)
    assert status.phase is GangPhase.PREEMPTED
    assert FAILURE_CLASS[FaultKind.PREEMPTED] is not FailureClass.CODE
    harness.advance_until(lambda: harness.num_live_ranks(handle) == 0, 15.0)


def test_time_limit_is_no_success(harness: SlurmHarness, slurm: SlurmCluster) -> None:
    """Field case C27."""
    handle = submit(harness, gang_of(harness, [HANGS_ON] * 2))
    running(harness, handle)
    slurm.call("scontrol", "update", f"jobid={harness.job_id(handle)}", f"EndTime={_local_time(time.time() + 2)}")
    status = ended(harness, handle, limit_s=45.0)
    assert status.phase is GangPhase.PREEMPTED
    assert "time limit" in status.reason


def _local_time(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))


def test_time_limit_is_announced_in_time_to_save(slurm: SlurmCluster) -> None:
    with _harness(slurm, time_limit_s=60.0, notice_s=55.0) as harness:
        handle = submit(harness, gang_of(harness, [HANGS] * 4))
        running(harness, handle)
        noticed = wait_until(lambda: poll(harness, handle).noticed, 90.0, poll_s=0.2)
        assert [node.node for node in noticed] == ["s1", "s2"]
        assert all((node.notice_deadline_s or 0.0) > time.time() for node in noticed)
        assert harness.num_live_ranks(handle) == 4


def test_gangs_on_one_node_see_each_its_own_accelerators(harness: SlurmHarness) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(1e6)"
    handles = []
    for slot in range(2):
        gang = gang_of(harness, [HANGS], skip=slot)
        told = (sys.executable, "-S", "-c", program, str(harness.root / f"sees-{slot}"))
        handles.append(submit(harness, replace(gang, command=told, accelerator_vendor="nvidia")))
    for handle in handles:
        running(harness, handle)
    files = [harness.root / f"sees-{slot}" for slot in range(2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files), 30.0)
    assert sorted(file.read_text() for file in files) == ["0", "1"]


def test_nodes_may_be_left_to_slurm(slurm: SlurmCluster) -> None:
    with _harness(slurm, chooses_nodes=True, exclude=["s1"]) as harness:
        gang = replace(gang_of(harness, [HANGS] * 4), channel_links=None)
        status = running(harness, submit(harness, gang))
        names = {node.node for node in status.nodes}
        assert len(names) == 2
        assert names < {"s2", "s3", "s4"}


def test_nodes_that_failed_are_not_chosen_by_slurm_either(slurm: SlurmCluster) -> None:
    with _harness(slurm, chooses_nodes=True) as harness:
        kept_off = tuple(map(NodeId, ("s1", "s3", "long-gone-9")))  # one of them is out of the cluster by now
        status = running(harness, submit(harness, replace(gang_of(harness, [HANGS] * 4), excluded=kept_off)))
        assert {node.node for node in status.nodes} == {"s2", "s4"}


def test_gang_that_slurm_must_queue_waits_and_is_not_late(slurm: SlurmCluster) -> None:
    with _harness(slurm, chooses_nodes=True) as harness:
        blockers = [submit(harness, gang_of(harness, [HANGS] * 4)) for _ in range(2)]
        for blocker in blockers:
            running(harness, blocker)
        handle = submit(harness, gang_of(harness, [HANGS] * 4))
        wait_until(lambda: "Resources" in poll(harness, handle).reason, 60.0, poll_s=0.1)
        status = poll(harness, handle)
        assert status.phase is GangPhase.PENDING
        assert status.queued_until_s == status.observed_at_s
        harness.engine.stop(blockers[0], grace_s=0.5)
        running(harness, handle)


def test_job_that_slurm_refuses_is_told_in_its_words_and_is_no_gang(slurm: SlurmCluster) -> None:
    with _harness(slurm, qos="no-such", reservation="no-such") as harness:
        gang = gang_of(harness, [HANGS])
        with pytest.raises(LaunchError, match=r"(?i)reservation"):
            submit(harness, gang)
        (handle,) = harness.engine.find(gang.key.run)
        status = poll(harness, handle)
        assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)
        assert "eservation" in status.reason


def test_end_that_the_controller_forgot_is_read_where_the_site_keeps_ends(
    harness: SlurmHarness, slurm: SlurmCluster
) -> None:
    """Field case C15: accounting is switched off, the job has left squeue, and no agent could say a last word."""
    handle = submit(harness, gang_of(harness, [HANGS] * 4))
    running(harness, handle)
    job_id = harness.job_id(handle)
    supervisors = [each for each in harness.processes(handle) if "airflow_llmsched.agent.supervisor" in _argv(each)]
    proc.end_all(lambda: supervisors, grace_s=0.0)
    slurm.call("scancel", job_id)
    wait_until(lambda: f"JobId={job_id} " in slurm.completion_file.read_text(), 60.0, poll_s=0.1)
    calls: list[str] = []
    status = harness.reopened(spy=calls, forgets=True).poll([handle])[handle]
    assert status.phase.ended
    assert calls == ["squeue", "sacct", "scontrol", "tail"]
    kept = next(line for line in slurm.completion_file.read_text().splitlines() if line.startswith(f"JobId={job_id} "))
    # The job may have failed for want of its supervisors before it was cancelled.
    was_cancelled = "JobState=CANCELLED" in kept
    assert status.phase is (GangPhase.STOPPED if was_cancelled else GangPhase.LOST), (status, kept)
    assert (f"job {job_id}" in status.reason) == was_cancelled, (status, kept)


def _argv(process: proc.Process) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    return []


def test_another_process_tells_the_same_end(harness: SlurmHarness) -> None:
    handle = submit(harness, gang_of(harness, [RankScript(exit_code=3)]))
    status = ended(harness, handle)
    calls: list[str] = []
    told = harness.reopened(spy=calls).poll([handle])[handle]
    assert replace(told, observed_at_s=0.0) == replace(status, observed_at_s=0.0)
    assert told.first_end is not None


def test_controller_that_is_gone_hides_nothing_and_the_gang_outlives_it(
    harness: SlurmHarness, slurm: SlurmCluster
) -> None:
    """Field case C9."""
    gang = gang_of(harness, [HANGS] * 4)
    handle = submit(harness, gang)
    running(harness, handle)
    slurm.stop_controller()
    try:
        for look in (lambda: poll(harness, handle), harness.engine.topology):
            with pytest.raises(CouldNotLookError, match="look again"):
                look()
        assert harness.num_live_ranks(handle) == 4
    finally:
        slurm.start_controller()
    harness.advance_until(lambda: poll(harness, handle).phase is GangPhase.RUNNING, 30.0)
    harness.engine.stop(handle, grace_s=0.5)
    assert poll(harness, handle).phase is GangPhase.STOPPED


def test_nodes_whose_gang_ended_when_the_controller_had_just_begun_anew_take_the_next(
    harness: SlurmHarness, slurm: SlurmCluster
) -> None:
    """Until a node has reported to it, the controller counts what that gang had as in use."""
    handle = submit(harness, gang_of(harness, [HANGS] * 4))
    running(harness, handle)
    slurm.stop_controller()
    slurm.start_controller()
    harness.engine.stop(handle, grace_s=0.0)
    following = gang_of(harness, [HANGS] * 4)
    assert running(harness, submit(harness, following)).phase is GangPhase.RUNNING
    assert harness.num_live_ranks(handle) == 0


def test_five_hundred_old_jobs_cost_no_more_calls(harness: SlurmHarness, slurm: SlurmCluster) -> None:
    """Field case A23."""
    loop = (
        "for _ in $(seq 500); do sbatch --hold --partition=small --output=/dev/null --job-name=old --wrap=true & done"
    )
    slurm.call("bash", "-c", f"({loop}; wait) >/dev/null; scancel --name=old")
    calls: list[str] = []
    engine = harness.reopened(spy=calls)
    gang = gang_of(harness, [HANGS])
    handle = engine.submit(engine.render(gang), key=gang.key)
    assert len(calls) <= 8, calls
    calls.clear()
    assert engine.find(gang.key.run) == [handle]
    assert handle in engine.poll([handle])
    assert calls == ["squeue", "squeue"]
