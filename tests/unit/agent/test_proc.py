from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from airflow_llmsched.agent import proc
from tests.support.local_engine import wait_until

IDLE = [sys.executable, "-S", "-c", "import time; time.sleep(1e6)"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1e6)",
]


@pytest.fixture
def idle() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(IDLE)
    yield process
    process.kill()
    process.wait()


def test_identity_survives_its_text_form(idle: subprocess.Popen[bytes]) -> None:
    identity = proc.identify(idle.pid)
    assert identity is not None
    assert proc.Process.parse(identity.text()) == identity
    assert proc.alive(identity)


def test_pid_with_another_start_time_or_boot_is_another_process(idle: subprocess.Popen[bytes]) -> None:
    identity = proc.identify(idle.pid)
    assert identity is not None
    for other in (identity._replace(start_ticks=identity.start_ticks + 1), identity._replace(boot_id="another")):
        assert not proc.alive(other)
        assert not proc.send(other, signal.SIGKILL)
    assert proc.alive(identity)


def test_zombie_is_not_alive() -> None:
    process = subprocess.Popen(IDLE)
    identity = proc.identify(process.pid)
    assert identity is not None
    process.kill()
    wait_until(lambda: not proc.alive(identity), 10)
    stat = proc.read_stat(process.pid)
    assert stat is not None
    assert stat.dead
    process.wait()
    assert proc.identify(process.pid) != identity


def test_process_whose_name_holds_parentheses_is_read_right(tmp_path: object) -> None:
    program = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) Z (1 2'); print('up', flush=True); time.sleep(1e6)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        stat = proc.read_stat(process.pid)
        assert stat is not None
        assert stat.parent_pid == os.getpid()
        assert not stat.dead
    finally:
        process.kill()
        process.wait()


def test_marked_finds_exactly_those_that_carry_every_mark_parents_first() -> None:
    marks = {"PROC_TEST_MARK": f"{os.getpid()}-{time.monotonic_ns()}", "PROC_TEST_NODE": "n0"}
    nested = [sys.executable, "-S", "-c", f"import subprocess; subprocess.run({IDLE!r})"]
    both = subprocess.Popen(nested, env={**os.environ, **marks}, start_new_session=True)
    one = subprocess.Popen(IDLE, env={**os.environ, "PROC_TEST_MARK": marks["PROC_TEST_MARK"]})
    try:
        wait_until(lambda: len(proc.marked(marks)) == 2, 10)
        found = proc.marked(marks)
        assert found[0].pid == both.pid
        assert one.pid not in [process.pid for process in found]
        assert len(proc.marked({"PROC_TEST_MARK": marks["PROC_TEST_MARK"]})) == 3
        assert proc.marked({**marks, "PROC_TEST_NODE": "n"}) == []
    finally:
        proc.end_all(lambda: proc.marked({"PROC_TEST_MARK": marks["PROC_TEST_MARK"]}), grace_s=0)
        both.wait()
        one.wait()


def test_end_all_terminates_then_kills_and_returns_what_is_left() -> None:
    processes = [subprocess.Popen(STUBBORN, stdout=subprocess.PIPE), subprocess.Popen(IDLE)]
    assert processes[0].stdout is not None
    processes[0].stdout.readline()
    identities = [proc.identify(process.pid) for process in processes]

    def find() -> list[proc.Process]:
        return [each for each in identities if each is not None and proc.alive(each)]

    start_s = time.monotonic()
    assert proc.end_all(find, grace_s=0.3) == []
    assert 0.3 <= time.monotonic() - start_s < 5.0
    assert [process.wait() for process in processes] == [-signal.SIGKILL, -signal.SIGTERM]


def test_end_all_wakes_a_stopped_process_so_that_it_can_end_in_peace() -> None:
    process = subprocess.Popen(IDLE)
    identity = proc.identify(process.pid)
    assert identity is not None
    process.send_signal(signal.SIGSTOP)
    proc.end_all(lambda: [identity] if proc.alive(identity) else [], grace_s=10.0)
    assert process.wait() == -signal.SIGTERM


def test_end_all_gives_up_on_what_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "_KILL_LIMIT_S", 0.1)
    ghost = proc.Process(2**22 - 1, 1, "no such boot")
    assert proc.end_all(lambda: [ghost], grace_s=0.0) == [ghost]


def test_subreaper_adopts_a_process_whose_parent_has_ended() -> None:
    program = """
import os, sys, time
from airflow_llmsched.agent import proc
proc.become_subreaper()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        time.sleep(1e6)
    os._exit(0)
os.wait()
adopted = proc.descendants(os.getpid())
print(len(adopted), proc.read_stat(adopted[0].pid).parent_pid == os.getpid(), flush=True)
print(proc.end_all(lambda: proc.descendants(os.getpid()), grace_s=1.0))
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True).splitlines() == ["1 True", "[]"]
