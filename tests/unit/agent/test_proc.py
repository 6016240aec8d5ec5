from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
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
    for other in (identity._replace(start_ticks=identity.start_ticks + 1), identity._replace(where="another")):
        assert not proc.alive(other)
        assert not proc.send(other, signal.SIGKILL)
    assert proc.alive(identity)


def test_process_of_an_earlier_boot_is_dead_and_one_of_another_machine_cannot_be_looked_at(
    idle: subprocess.Popen[bytes],
) -> None:
    identity = proc.identify(idle.pid)
    assert identity is not None
    boot, _, machine = proc.here().partition("@")
    assert boot
    assert machine
    assert not proc.alive(identity._replace(where=f"earlier@{machine}"))
    far = identity._replace(where="earlier@another")
    for look in (
        lambda: proc.alive(far),
        lambda: proc.send(far, signal.SIGKILL),
        lambda: proc.end_all(lambda: [far], grace_s=0.0),
    ):
        with pytest.raises(proc.ElsewhereError, match="another machine"):
            look()
    assert proc.alive(identity)


def test_container_that_calls_its_machine_otherwise_sees_its_processes(idle: subprocess.Popen[bytes]) -> None:
    identity = proc.identify(idle.pid)
    assert identity is not None
    boot = proc.here().partition("@")[0]
    assert proc.alive(identity._replace(where=f"{boot}@container"))
    assert proc.alive(identity._replace(where=boot))  # as those say that an older release started


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
    monkeypatch.setattr(proc, "send", lambda _process, _number: False)
    process = subprocess.Popen(IDLE)
    foreign = proc.identify(process.pid)
    assert foreign is not None
    try:
        assert proc.end_all(lambda: [foreign], grace_s=0.0) == [foreign]
    finally:
        process.kill()
        process.wait()


def test_end_all_takes_no_dead_process_for_one_that_is_left() -> None:
    gone = proc.Process(2**22 - 1, 1, "no such boot")
    assert proc.end_all(lambda: [gone], grace_s=0.0) == []


def test_end_all_ends_what_it_saw_below_a_process_that_is_gone_by_now() -> None:
    """The parent dies of the SIGTERM; its child, now an orphan that nobody can find any more, is still ended."""
    child = f"import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.execv({IDLE[0]!r}, {IDLE!r})"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    )
    top = proc.identify(parent.pid)
    assert top is not None
    wait_until(lambda: _is_idle(proc.descendants(parent.pid)), 10)
    (below,) = proc.descendants(parent.pid)
    assert proc.end_all(lambda: [top] if proc.alive(top) else [], grace_s=0.3, reap=parent.poll) == []
    assert not proc.alive(below)


def test_end_all_outruns_a_process_that_starts_others_all_the_time() -> None:
    program = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
for _ in range(3000):
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    time.sleep(0.005)
"""
    parent = subprocess.Popen([sys.executable, "-S", "-c", program])
    top = proc.identify(parent.pid)
    assert top is not None
    seen: set[proc.Process] = set()

    def find() -> list[proc.Process]:
        seen.update(proc.descendants(parent.pid))
        return [top] if proc.alive(top) else []

    wait_until(lambda: len(proc.descendants(parent.pid)) > 5, 10)
    assert proc.end_all(find, grace_s=0.1, reap=parent.poll) == []
    parent.wait()
    assert [each for each in seen if proc.alive(each)] == []


def _is_idle(processes: list[proc.Process]) -> bool:
    return (
        len(processes) == 1
        and IDLE[-1].encode()
        == Path(f"/proc/{processes[0].pid}/cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2]
    )


def test_process_that_cleared_its_environment_carries_no_marks() -> None:
    process = subprocess.Popen(IDLE, env={"PROC_TEST_MARK": "a"})
    identity = proc.identify(process.pid)
    assert identity is not None
    try:
        wait_until(lambda: proc.carries(identity, {"PROC_TEST_MARK": "a"}), 10)
        assert not proc.carries(identity, {"PROC_TEST_MARK": "a", "PROC_TEST_NODE": "n0"})
    finally:
        process.kill()
        process.wait()
    assert not proc.carries(identity, {"PROC_TEST_MARK": "a"})


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


def test_census_tells_the_environments_of_all_who_have_a_variable() -> None:
    odd = {"CENSUS_ODD": "a=b c\udcff", "OTHER": ""}
    process = subprocess.Popen(IDLE, env=odd)
    try:
        (found,) = wait_until(lambda: list(proc.Census().environments("CENSUS_ODD").items()), 20.0)
        assert found[0].pid == process.pid
        assert found[1].items() >= odd.items()
        assert abs(proc.started_at_s(found[0]) - time.time()) < 25.0
        assert proc.Census().environments("CENSUS_OD") == {}
    finally:
        process.kill()
        process.wait()


def test_census_is_taken_once_for_many_marks_and_again_for_who_started_later() -> None:
    census = proc.Census()
    marked = [subprocess.Popen(IDLE, env={"CENSUS_TEST": str(index)}) for index in range(2)]
    try:
        wait_until(lambda: all(proc.marked({"CENSUS_TEST": str(index)}) for index in range(2)), 20.0)
        assert [each.pid for each in census.marked({"CENSUS_TEST": "0"})] == [marked[0].pid]
        late = subprocess.Popen(IDLE, env={"CENSUS_TEST": "late"})
        marked.append(late)
        wait_until(lambda: bool(proc.marked({"CENSUS_TEST": "late"})), 20.0)
        assert [each.pid for each in census.marked({"CENSUS_TEST": "1"})] == [marked[1].pid]
        early = proc.myself()
        assert census.marked({"CENSUS_TEST": "late"}, left_by=early) == [], "counted before it was there"
        newest = proc.identify(late.pid)
        assert [each.pid for each in census.marked({"CENSUS_TEST": "late"}, left_by=newest)] == [late.pid]
    finally:
        for process in marked:
            process.kill()
            process.wait()


WAITS = [
    sys.executable,
    "-S",
    "-c",
    "import signal\n"
    "from airflow_llmsched.agent import proc\n"
    "asked = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, asked)\n"
    "print('up', flush=True)\n"
    "while True:\n"
    "    got = proc.next_signal(asked, timeout_s=0.05)\n"
    "    if got is not None:\n"
    "        print(int(got), flush=True)\n"
    "        raise SystemExit\n",
]


def test_stop_and_continue_are_no_signal_to_whoever_waits_for_others() -> None:
    """``signal.sigtimedwait`` then returns memory it never wrote, which once ended healthy gangs."""
    process = subprocess.Popen(WAITS, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: (stat := proc.read_stat(process.pid)) and stat.state == "T", limit_s=10)
        time.sleep(0.2)  # beyond the time it waits at once: only then is its time over when it goes on
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: (stat := proc.read_stat(process.pid)) and stat.state == "S", limit_s=10)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=10) == (f"{signal.SIGTERM:d}\n", None)


def test_uptime_is_the_kernels() -> None:
    before_s = float(Path("/proc/uptime").read_text().split()[0])
    assert before_s <= proc.uptime_s() + 0.01
    assert proc.uptime_s() <= float(Path("/proc/uptime").read_text().split()[0]) + 0.02
