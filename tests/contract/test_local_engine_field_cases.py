"""Field cases F1, F3, F4, F6 and the faults of issue 2, with real processes on the local engine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.agent import proc
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.progress import ChannelCursor
from airflow_llmsched.engines import agent_states as states
from airflow_llmsched.engines.attempts import spawn_supervisors
from airflow_llmsched.errors import LaunchError
from airflow_llmsched.telemetry.channel import DirectoryChannel
from airflow_llmsched.testing.engine_contract import (
    HANGS,
    HANGS_ON,
    SUCCEEDS,
    RankScript,
    attempt_key,
    ended,
    gang_of,
    poll,
    running,
    submit,
)
from tests.support.local_engine import LocalHarness
from tests.support.waiting import wait_until

LIMIT_S = 60.0


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def ports(harness: LocalHarness, handle: GangHandle) -> int:
    port = harness.client.gang(handle.native_id).node("n0").port()
    assert port is not None
    return port


def test_f1_two_launches_at_once_meet_on_different_ports_while_the_usual_ones_are_taken(tmp_path: Path) -> None:
    taken = []
    for port in (29400, 29500):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            listener.close()  # somebody else has it, which serves as well
        else:
            taken.append(listener)
    one, two = LocalHarness(tmp_path / "one"), LocalHarness(tmp_path / "two")
    program = "import os, time; print(os.environ['MASTER_PORT'], flush=True); time.sleep(1e6)"
    try:
        handles = [
            submit(harness, harness.run_python(gang_of(harness, [HANGS] * 2), program)) for harness in (one, two)
        ]
        seen = []
        for harness, handle in zip((one, two), handles, strict=True):
            wait_until(lambda h=harness, x=handle: h.engine.log_tail(x, rank=1, num_lines=1) != "", LIMIT_S)
            seen.append(int(harness.engine.log_tail(handle, rank=1, num_lines=1)))
        assert seen == [ports(one, handles[0]), ports(two, handles[1])]
        assert len({29400, 29500, *seen}) == 4
    finally:
        one.close()
        two.close()
        for listener in taken:
            listener.close()


ALL_REDUCE = """
import torch, torch.distributed as dist
from airflow_llmsched import agent
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
agent.ready()
agent.report(step=1, loss=float(total), tokens=64)
agent.checkpoint_saved(step=1, path="/checkpoints/step-1")
print("sum", float(total), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_torchrun_on_two_nodes_of_two_ranks_reduces_over_all_four(harness: LocalHarness) -> None:
    gang = harness.run_python(gang_of(harness, [HANGS] * 4), ALL_REDUCE)
    gang = replace(
        gang, command=(sys.executable, gang.command[-1]), launcher=Launcher.TORCHRUN, start_limit_s=120.0, grace_s=5.0
    )
    handle = submit(harness, gang)
    status = ended(harness, handle, limit_s=150.0)
    logs = (harness.client.gang(handle.native_id).path / "nodes").glob("*/launcher.log")
    assert status.phase is GangPhase.SUCCEEDED, [status, *(log.read_text() for log in logs)]
    assert [harness.engine.log_tail(handle, rank=rank, num_lines=1) for rank in range(4)] == ["sum 10.0"] * 4
    reports, _ = DirectoryChannel(gang.channel_root).read(ChannelCursor(positions={}))
    steps = [step for report in reports for step in report.steps]
    assert [(step.step, step.loss, step.num_tokens) for step in steps] == [(1, 10.0, 64)]
    spans = [span for report in reports for span in report.spans]
    assert sorted(span.rank for span in spans) == [0, 1, 2, 3]
    assert all(0 < span.end_s - span.start_s < 150 for span in spans)
    environment = (harness.client.gang(handle.native_id).path / "request.json").stat()
    assert environment.st_mode & 0o777 == 0o600


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_torchrun_whose_rank_fails_ends_whole_with_that_rank_and_code(harness: LocalHarness) -> None:
    program = """
    import os, sys, time
    if os.environ["RANK"] == "1":
        print("rank one is done for", flush=True)
        sys.exit(3)
    time.sleep(1e6)
    """
    gang = harness.run_python(gang_of(harness, [HANGS] * 2), textwrap.dedent(program))
    handle = submit(harness, replace(gang, launcher=Launcher.TORCHRUN, start_limit_s=120.0))
    status = ended(harness, handle, limit_s=150.0)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.RANK_FAILED)
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.exit_code) == (1, 3)
    assert "rank one is done for" in status.reason
    assert harness.left(handle) == []


def test_f3_a_rank_is_found_by_what_it_wrote_wherever_it_ran(harness: LocalHarness) -> None:
    """After a restart the machine that came first may hold other ranks: nothing may count on the first node."""
    gang = gang_of(harness, [SUCCEEDS] * 4)
    handle = submit(harness, harness.with_scripts(gang, [RankScript(says=f"I am {rank}") for rank in range(4)]))
    ended(harness, handle)
    nodes = harness.client.gang(handle.native_id).path / "nodes"
    (nodes / "n0" / "logs" / "rank-0.log").rename(nodes / "n1" / "logs" / "rank-0.log")
    assert harness.engine.log_tail(handle, rank=0, num_lines=1) == "I am 0"


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)
print("up", flush=True)
while True:
    time.sleep(60)
"""


def test_f4_stubborn_children_and_grandchildren_in_their_own_sessions_are_all_gone(harness: LocalHarness) -> None:
    handle = submit(harness, harness.run_python(gang_of(harness, [HANGS] * 4), STUBBORN))
    running(harness, handle)
    # Per node: a supervisor, and for each of two ranks its wrapper, the rank, and two processes that left its session.
    wait_until(lambda: len(harness.processes(handle)) == 2 * (1 + 2 * 4), LIMIT_S)
    started_s = time.monotonic()
    harness.engine.stop(handle, grace_s=1.0)
    assert time.monotonic() - started_s <= 1.0 + 5.0
    assert harness.processes(handle) == []
    assert poll(harness, handle).phase is GangPhase.STOPPED


def test_f4_stop_is_complete_though_the_supervisors_were_killed(harness: LocalHarness) -> None:
    gang = harness.run_python(gang_of(harness, [HANGS] * 4, grace_s=30.0), STUBBORN)
    handle = submit(harness, gang)
    wait_until(lambda: len(harness.processes(handle)) == 2 * (1 + 2 * 4), LIMIT_S)
    supervisors = [harness.supervisor(handle, node) for node in ("n0", "n1")]
    for supervisor in supervisors:
        assert proc.send(supervisor, signal.SIGKILL)
    wait_until(lambda: not any(map(proc.alive, supervisors)), LIMIT_S)
    harness.engine.stop(handle, grace_s=0.5)
    assert harness.processes(handle) == []
    assert poll(harness, handle).phase is GangPhase.LOST


UNMARKED = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-S", "-E", "-c", "import signal, time; signal.pause()", sys.argv[1]]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sleeper[0], sleeper, {})
    os._exit(0)
os.posix_spawn(sleeper[0], sleeper, {})
print("up", flush=True)
while True:
    time.sleep(60)
"""
"""Two children each that clear their environment, one of them a daemon: nothing marks them as the gang's."""


def processes_with(word: str) -> list[proc.Process]:
    found = []
    for pid, stat in proc.everything().items():
        with contextlib.suppress(OSError):
            if not stat.dead and word in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                found.append(proc.Process(pid, stat.start_ticks, proc.here()))
    return found


@pytest.mark.parametrize("killed", ["nothing", "supervisor", "supervisor and wrappers", "all that is marked"])
def test_f4_children_that_cleared_their_environment_are_gone_too(harness: LocalHarness, killed: str) -> None:
    gang = harness.run_python(gang_of(harness, [HANGS] * 2, grace_s=0.5), UNMARKED)
    word = harness.root.name + killed.replace(" ", "-")
    handle = submit(harness, replace(gang, command=(*gang.command, word)))
    node = harness.client.gang(handle.native_id).node("n0")
    try:
        wait_until(lambda: len(node.unmarked()) == 4, LIMIT_S)
        unmarked = set(node.unmarked())
        assert len(processes_with(word)) == 4 + 2 + 2  # ranks and wrappers have the word among their arguments too
        wrappers = [process for process in processes_with(word) if b"agent.rank" in _command(process)]
        victims = {
            "nothing": [],
            "supervisor": [harness.supervisor(handle, "n0")],
            "supervisor and wrappers": [harness.supervisor(handle, "n0"), *wrappers],
            "all that is marked": [each for each in harness.processes(handle) if each not in unmarked],
        }[killed]
        for victim in victims:
            proc.send(victim, signal.SIGKILL)
        harness.engine.stop(handle, grace_s=0.3)
        assert processes_with(word) == []
        assert poll(harness, handle).phase.ended
    finally:
        for process in processes_with(word):
            proc.send(process, signal.SIGKILL)


def test_preempted_node_keeps_no_child_that_cleared_its_environment(harness: LocalHarness) -> None:
    gang = harness.run_python(gang_of(harness, [HANGS] * 2, grace_s=30.0), UNMARKED)
    word = harness.root.name + "preempted"
    handle = submit(harness, replace(gang, command=(*gang.command, word)))
    wait_until(lambda: len(harness.client.gang(handle.native_id).node("n0").unmarked()) == 4, LIMIT_S)
    try:
        harness.engine.preempt("n0", grace_s=0.1)
        assert processes_with(word) == []
    finally:
        for process in processes_with(word):
            proc.send(process, signal.SIGKILL)


def _command(process: proc.Process) -> bytes:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes()


def test_ranks_end_themselves_when_their_supervisors_were_killed(harness: LocalHarness) -> None:
    handle = submit(harness, gang_of(harness, [HANGS, HANGS_ON, HANGS, HANGS], grace_s=0.5))
    running(harness, handle)
    for node in ("n0", "n1"):
        assert proc.send(harness.supervisor(handle, node), signal.SIGKILL)
    status = ended(harness, handle)
    assert status.phase is GangPhase.LOST
    assert status.fault is FaultKind.NODE_LOST
    assert "n0" in status.reason
    assert harness.processes(handle) == []


def test_ranks_that_lost_supervisor_and_wrapper_are_noticed_and_can_be_stopped(
    harness: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "ORPHANS_END_S", 0.5)
    handle = submit(harness, gang_of(harness, [HANGS] * 4, grace_s=0.5))
    running(harness, handle)
    lone = [each for each in harness.processes(handle, "n1") if b"behave.py" in _command(each)]
    lone = [each for each in lone if b"agent.rank" not in _command(each)]
    assert len(lone) == 2
    for process in harness.processes(handle, "n1"):
        if process not in lone:
            proc.send(process, signal.SIGKILL)
    wait_until(lambda: poll(harness, handle).fault is FaultKind.NODE_LOST, LIMIT_S)
    status = poll(harness, handle)
    assert not status.phase.ended
    assert "node n1" in status.reason
    assert all(map(proc.alive, lone))
    harness.engine.stop(handle, grace_s=0.2)
    assert not any(map(proc.alive, lone))
    assert poll(harness, handle).phase is GangPhase.LOST


SIDE = """
import os, subprocess, sys
side = [sys.executable, "-S", "-E", "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"]
if os.environ["RANK"] == "0":
    subprocess.Popen(side, start_new_session=True)
    sys.exit(1)
os.execv(side[0], side)
"""
"""Rank 0 leaves a process at its side that outlives it, and rank 1 never ends."""


def test_b6_a_failed_rank_fails_the_gang_though_what_it_left_at_its_side_runs_on(harness: LocalHarness) -> None:
    """Field case B6: within one poll of the rank's end and the grace, and all is cleaned up."""
    handle = submit(harness, harness.run_python(gang_of(harness, [HANGS] * 2, grace_s=0.5), SIDE))
    status = ended(harness, handle)
    assert status.phase is GangPhase.FAILED
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.exit_code) == (0, 1)
    assert status.ended_at_s is not None
    assert status.ended_at_s - status.first_end.at_s < 0.5 + 5.0
    assert harness.left(handle) == []


def test_f6_rank_1_exits_3_and_rank_0_blocks_yet_the_gang_ends(harness: LocalHarness) -> None:
    scripts = [HANGS_ON, RankScript(lasts_s=0.2, exit_code=3, says="CUDA error: device lost\nbye")]
    handle = submit(harness, gang_of(harness, scripts, grace_s=1.0))
    status = ended(harness, handle)
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.exit_code) == (1, 3)
    assert status.first_end.log_tail == "CUDA error: device lost\nbye"
    assert "rank 1 on node n0 exited with code 3" in status.reason
    assert status.ended_at_s is not None
    assert status.ended_at_s - status.first_end.at_s < 1.0 + 5.0
    assert harness.left(handle) == []


SUBMITTER = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
from airflow_llmsched import codec
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.engines.local.engine import LocalEngine
gang = codec.from_json(GangSpec, sys.stdin.buffer.read())
engine = LocalEngine(root=sys.argv[1])
engine.submit(engine.render(gang), key=gang.key)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_gang_outlives_a_submitter_that_was_killed_and_is_found_by_its_run_key(harness: LocalHarness) -> None:
    gang = gang_of(harness, [HANGS] * 2)
    root = str(harness.root / "engine")
    done = subprocess.run(
        [sys.executable, "-c", SUBMITTER, root], input=codec.to_json(gang), check=False, start_new_session=True
    )
    assert done.returncode == -signal.SIGKILL
    (handle,) = harness.engine.find(gang.key.run)
    running(harness, handle)
    assert harness.num_live_ranks(handle) == 2
    for process in harness.processes(handle):
        assert os.getsid(process.pid) != os.getsid(0)
    harness.engine.stop(handle, grace_s=0.5)
    assert poll(harness, handle).phase is GangPhase.STOPPED


def test_launch_left_half_done_by_a_dead_submitter_is_finished_by_the_next(harness: LocalHarness) -> None:
    gang = gang_of(harness, [HANGS] * 4)
    request = harness.engine.render(gang)
    with harness.client.exclusive():
        harness.client.create(request)
    handle = harness.engine.find(gang.key.run)[0]
    assert poll(harness, handle).phase is GangPhase.PENDING
    assert submit(harness, gang) == handle
    running(harness, handle)
    assert harness.num_live_ranks(handle) == 4


def test_launch_left_half_done_for_longer_than_the_start_limit_is_lost_and_never_starts(harness: LocalHarness) -> None:
    gang = replace(gang_of(harness, [HANGS] * 2), start_limit_s=0.2)
    with harness.client.exclusive():
        harness.client.create(harness.engine.render(gang))
    handle = harness.engine.find(gang.key.run)[0]
    status = ended(harness, handle)
    assert status.phase is GangPhase.LOST
    submit(harness, gang)
    assert harness.processes(handle) == []


def test_supervisor_that_cannot_start_leaves_no_part_of_the_gang(harness: LocalHarness) -> None:
    gang = gang_of(harness, [HANGS] * 4)
    with harness.client.exclusive():
        harness.client.create(harness.engine.render(gang))
    handle = harness.engine.find(gang.key.run)[0]
    node = harness.client.gang(handle.native_id).node("n1").path
    node.rename(node.with_name("elsewhere"))
    with pytest.raises(LaunchError, match="n1"):
        harness.client.launch(handle.native_id)
    assert harness.processes(handle) == []


def test_node_that_does_not_start_within_the_limit_takes_the_gang_down(harness: LocalHarness) -> None:
    """The supervisor of n1 is a process that lives and does nothing."""
    gang = replace(gang_of(harness, [HANGS] * 4), start_limit_s=3.0, grace_s=0.5)
    with harness.client.exclusive():
        harness.client.create(harness.engine.render(gang))
    handle = harness.engine.find(gang.key.run)[0]
    idle = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1e6)"])
    try:
        identity = proc.identify(idle.pid)
        assert identity is not None
        harness.client.gang(handle.native_id).node("n1").claim(identity, at_s=time.time(), port=None)
        submit(harness, gang)
        wait_until(harness.client.gang(handle.native_id).node("n0").exit.exists, LIMIT_S)
        assert harness.left(handle, "n0") == []
        assert not poll(harness, handle).phase.ended
    finally:
        idle.kill()
        idle.wait()
    status = ended(harness, handle)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_TIMEOUT)
    assert "n1" in status.reason


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_port_that_is_stolen_before_torchrun_binds_it_fails_the_start_and_says_so(harness: LocalHarness) -> None:
    gang = replace(gang_of(harness, [HANGS] * 2), launcher=Launcher.TORCHRUN, start_limit_s=120.0)
    with harness.client.exclusive():
        harness.client.create(harness.engine.render(gang))
    handle = harness.engine.find(gang.key.run)[0]
    spawn_supervisors(harness.client.gang(handle.native_id), handle.native_id, ["n0"])
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("0.0.0.0", ports(harness, handle)))
        thief.listen()
        submit(harness, gang)
        status = ended(harness, handle, limit_s=150.0)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)
    assert "port in use" in status.reason
    assert harness.left(handle) == []


def test_node_that_is_not_renewed_ends_its_ranks_by_itself(harness: LocalHarness) -> None:
    gang = replace(gang_of(harness, [HANGS] * 4), lease_s=2.5, grace_s=0.5)
    channel = DirectoryChannel(gang.channel_root)
    handle = submit(harness, gang)
    until_s = time.time() + 6.0  # at once: on a busy machine it may take longer than a lease until all ranks run
    channel.renew(until_s=until_s)
    running(harness, handle)
    status = ended(harness, handle)
    assert status.phase is GangPhase.LOST
    assert status.fault is FaultKind.GANG_LOST
    assert "lease" in status.reason
    assert status.ended_at_s is not None
    assert until_s <= status.ended_at_s <= until_s + gang.grace_s + 5.0
    assert harness.left(handle) == []


def test_full_disk_under_the_channel_ends_the_gang_and_names_the_file(harness: LocalHarness) -> None:
    gang = replace(gang_of(harness, [HANGS] * 4), grace_s=0.5)
    up = Path(gang.channel_root) / "up"
    up.mkdir(parents=True)
    (up / "n1.jsonl").symlink_to("/dev/full")
    handle = submit(harness, gang)
    status = ended(harness, handle)
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.DISK_FULL)
    assert str(up / "n1.jsonl") in status.reason
    assert "No space left" in status.reason
    assert harness.left(handle) == []


def test_rank_that_fills_the_disk_with_its_log_ends_the_gang_with_the_disk_as_the_reason(tmp_path: Path) -> None:
    """Engine, logs and channel on one real file system of 2 MB, in a mount namespace of its own."""
    mount = tmp_path / "mount"
    mount.mkdir()
    repo = str(Path(__file__).resolve().parents[2])
    # A namespace of its own needs no root where user namespaces are allowed, and root needs no user namespace.
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    command = 'mount -t tmpfs -o size=2m none "$1" && exec "$2" -c "$3" "$1" "$4"'
    argv = [*unshare, "sh", "-c", command, "sh", str(mount), sys.executable, FILL_DISK, TALKATIVE]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=repo)
    assert done.stderr == ""
    phase, fault, left, reason = done.stdout.split(" ", 3)
    assert (phase, fault, left) == ("failed", "disk_full", "0")
    assert str(mount) in reason
    assert "No space left" in reason


TALKATIVE = """
import os, time
while os.environ["RANK"] == "1":
    print("x" * 1000, flush=True)
time.sleep(1e6)
"""

FILL_DISK = """
import sys
from pathlib import Path
sys.path.insert(0, ".")
from airflow_llmsched.testing.engine_contract import HANGS, ended, gang_of, submit
from tests.support.local_engine import LocalHarness
harness = LocalHarness(Path(sys.argv[1]))
gang = gang_of(harness, [HANGS] * 2, grace_s=0.5)
handle = submit(harness, harness.run_python(gang, sys.argv[2]))
status = ended(harness, handle)
print(status.phase.value, status.fault and status.fault.value, len(harness.left(handle)), status.reason)
harness.close()
"""


def test_orders_and_notices_reach_the_ranks(harness: LocalHarness) -> None:
    program = """
    import sys, time
    sys.path.insert(0, REPO)
    from airflow_llmsched import agent
    agent.ready()
    while not agent.checkpoint_requested():
        time.sleep(0.01)
    agent.checkpoint_saved(step=1, path="one")
    while not agent.checkpoint_requested():
        time.sleep(0.01)
    agent.checkpoint_saved(step=2, path="two")
    while not agent.stop_requested():
        time.sleep(0.01)
    """
    repo = str(Path(__file__).resolve().parents[2])
    gang = harness.run_python(gang_of(harness, [HANGS] * 4), textwrap.dedent(program).replace("REPO", repr(repo)))
    channel = DirectoryChannel(gang.channel_root)
    handle = submit(harness, gang)
    running(harness, handle)
    channel.order_checkpoint()
    wait_until(lambda: marks(channel) == {(1, "one"): 4}, LIMIT_S)
    harness.preempt(gang.placement.nodes[1], grace_s=2.0, return_after_s=1.0)
    wait_until(lambda: marks(channel) == {(1, "one"): 4, (2, "two"): 4}, LIMIT_S)
    channel.order_stop(reason="the plan has changed")
    assert ended(harness, handle).phase is GangPhase.SUCCEEDED


def marks(channel: DirectoryChannel) -> dict[tuple[int, str], int]:
    reports, _ = channel.read(ChannelCursor(positions={}))
    counted: dict[tuple[int, str], int] = {}
    for report in reports:
        for mark in report.marks:
            counted[mark.step, mark.path] = counted.get((mark.step, mark.path), 0) + 1
    return counted


def test_odd_names_and_values_do_no_harm(tmp_path: Path) -> None:
    odd = "a b'c\"d $(touch pwned) `x` ; & é " + "n" * 120
    harness = LocalHarness(tmp_path / odd)
    try:
        program = "import os, sys; print(sys.argv[1]); print(os.environ['ODD']); print(os.getcwd())"
        gang: GangSpec = gang_of(harness, [HANGS])
        gang = replace(gang, command=(sys.executable, "-c", program, odd), environment={"ODD": odd + "\nline two"})
        handle = submit(harness, gang)
        assert ended(harness, handle).phase is GangPhase.SUCCEEDED
        lines = harness.engine.log_tail(handle, rank=0, num_lines=10).splitlines()
        assert lines[:3] == [odd, odd, "line two"]
        assert not list(tmp_path.rglob("pwned"))
    finally:
        harness.close()


def test_nothing_of_the_environment_shows_in_argument_lists_and_airflows_own_stays_away(
    harness: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "airflow-secret")
    gang = replace(gang_of(harness, [HANGS] * 2), environment={"TOKEN_FILE": "tell-no-one"})
    handle = submit(harness, gang)
    running(harness, handle)
    processes = harness.processes(handle)
    assert len(processes) == 1 + 2 * 2
    for process in processes:
        assert "tell-no-one" not in Path(f"/proc/{process.pid}/cmdline").read_text()
        assert "airflow-secret" not in Path(f"/proc/{process.pid}/environ").read_text()
    gang_dir = harness.client.gang(handle.native_id).path
    assert gang_dir.stat().st_mode & 0o077 == 0
    assert (gang_dir / "request.json").stat().st_mode & 0o077 == 0


def test_same_attempt_name_under_another_root_is_another_gang(tmp_path: Path) -> None:
    one, two = LocalHarness(tmp_path / "one"), LocalHarness(tmp_path / "two")
    try:
        key = attempt_key()
        handles = [submit(harness, gang_of(harness, [HANGS] * 2, key=key)) for harness in (one, two)]
        for harness, handle in zip((one, two), handles, strict=True):
            running(harness, handle)
        one.engine.stop(handles[0], grace_s=0.5)
        assert poll(two, handles[1]).phase is GangPhase.RUNNING
        assert two.num_live_ranks(handles[1]) == 2
    finally:
        one.close()
        two.close()
