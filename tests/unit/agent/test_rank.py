from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import proc, rank, wire
from airflow_llmsched.agent.spool import LineReader, write_json
from tests.support.waiting import wait_until


def open_gate(node: Path, *, in_s: float = 0.0) -> None:
    write_json(node / wire.SPOOL_DIR / wire.GATE, {"v": 1, "begin_s": time.monotonic() + in_s})


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / wire.SPOOL_DIR).mkdir()
    open_gate(tmp_path)
    (tmp_path / wire.LOGS).mkdir()
    return tmp_path


def start(
    node: Path, *command: str, supervisor: proc.Process | None = None, grace_s: float = 1.0
) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        "RANK": "5",
        "LOCAL_RANK": "1",
        wire.SPOOL: str(node / wire.SPOOL_DIR),
        wire.SUPERVISOR: (supervisor or proc.myself()).text(),
        wire.GRACE_S: str(grace_s),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "airflow_llmsched.agent.rank", "--", *command], env=environ, start_new_session=True
    )


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", program]


def records(node: Path) -> list[dict[str, Any]]:
    """Return what the wrapper wrote since its command was to start."""
    found = LineReader(str(node / wire.SPOOL_DIR / "rank-5.jsonl")).read()
    return [record for record in found if record["kind"] != "armed"]


def log(node: Path) -> str:
    path = node / wire.LOGS / "rank-5.log"
    return path.read_text() if path.exists() else ""


def test_command_that_never_heard_of_us_has_its_start_end_and_output_recorded(node: Path) -> None:
    before_s = time.time()
    wrapper = start(node, *python("import sys; print('out'); sys.stderr.write('err\\n'); sys.exit(3)"))
    assert wrapper.wait(60) == 3
    began, ended = records(node)
    assert (began["kind"], began["rank"], began["local_rank"]) == ("start", 5, 1)
    assert proc.Process.parse(began["wrapper"]).pid == wrapper.pid
    assert before_s <= began["at_s"] <= ended["at_s"] <= time.time()
    assert (ended["kind"], ended["exit_code"], ended["signal"], ended["start_error"]) == ("end", 3, None, None)
    assert sorted(log(node).split()) == ["err", "out"]


def test_killed_command_is_recorded_with_its_signal(node: Path) -> None:
    wrapper = start(node, *python("import os; os.kill(os.getpid(), 9)"))
    assert wrapper.wait(60) == 128 + 9
    assert (records(node)[-1]["exit_code"], records(node)[-1]["signal"]) == (None, 9)


def test_command_learns_when_its_rank_was_started(node: Path) -> None:
    assert start(node, *python(f"import os; print(os.environ['{wire.RANK_STARTED_S}'])")).wait(60) == 0
    assert float(log(node)) == records(node)[0]["at_s"]


@pytest.mark.parametrize("command", ["/nowhere/no such program", "."])
def test_command_that_cannot_start_says_so_in_log_and_record(node: Path, command: str) -> None:
    assert start(node, command).wait(60) == 127
    (ended,) = records(node)
    assert (ended["kind"], ended["exit_code"]) == ("end", 127)
    assert repr(command) in ended["start_error"]
    assert ended["start_error"] in log(node)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command_and_what_it_started_in_other_sessions(node: Path, number: signal.Signals) -> None:
    program = f"""
import os, signal, sys, time
def end(got, frame):
    sys.stdout.write("got\\n")
    sys.stdout.flush()
    os._exit(0)
signal.signal({int(number)}, end)
if os.fork() == 0:
    os.setsid()
sys.stdout.write("up\\n")
sys.stdout.flush()
time.sleep(1e6)
"""
    wrapper = start(node, *python(program))
    wait_until(lambda: log(node).count("up") == 2, 60)
    wrapper.send_signal(number)
    assert wrapper.wait(60) == 0
    wait_until(lambda: log(node).count("got") == 2, 60)
    assert records(node)[-1]["exit_code"] == 0


def test_rank_ends_with_its_stubborn_children_when_the_supervisor_is_gone(node: Path) -> None:
    supervisor = subprocess.Popen(python("import time; time.sleep(1e6)"))
    identity = proc.identify(supervisor.pid)
    program = """
import os, signal, time
signal.signal(15, signal.SIG_IGN)
os.fork()
print('up', flush=True)
time.sleep(1e6)
"""
    wrapper = start(node, *python(program), supervisor=identity, grace_s=0.2)
    wait_until(lambda: log(node).count("up") == 2, 60)
    family = proc.descendants(wrapper.pid)
    assert len(family) == 2
    supervisor.kill()
    supervisor.wait()
    assert wrapper.wait(10) == 128 + 9
    assert not any(proc.alive(process) for process in family)
    assert records(node)[-1]["signal"] == 9


def test_full_disk_does_not_keep_the_exit_code_from_the_launcher(node: Path) -> None:
    (node / wire.SPOOL_DIR / "rank-5.jsonl").symlink_to("/dev/full")
    assert start(node, *python("import sys; sys.exit(4)")).wait(60) == 4


@pytest.mark.parametrize("argv", [[], ["--"], ["python"]])
def test_wrong_use_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert rank.main(argv) == 2
    assert "usage" in capsys.readouterr().err


def test_command_waits_until_all_ranks_of_the_gang_stand_ready(node: Path) -> None:
    (node / wire.SPOOL_DIR / wire.GATE).unlink()
    wrapper = start(node, *python("print('at last')"))
    spool = LineReader(str(node / wire.SPOOL_DIR / "rank-5.jsonl"))
    (armed,) = wait_until(spool.read, 60)
    assert (armed["kind"], proc.Process.parse(armed["wrapper"]).pid) == ("armed", wrapper.pid)
    assert (wrapper.poll(), log(node)) == (None, "")
    opened_s = time.time()
    open_gate(node, in_s=0.3)
    assert wrapper.wait(60) == 0
    assert records(node)[0]["at_s"] >= opened_s + 0.25  # the moment named, give or take a step of the wall clock
    assert log(node) == "at last\n"


def test_command_that_waits_is_never_started_once_told_to_end(node: Path) -> None:
    (node / wire.SPOOL_DIR / wire.GATE).unlink()
    wrapper = start(node, *python("print('never')"))
    wait_until((node / wire.SPOOL_DIR / "rank-5.jsonl").exists, 60)
    wrapper.send_signal(signal.SIGTERM)
    assert wrapper.wait(60) == 128 + signal.SIGTERM
    (end,) = records(node)
    assert (end["kind"], end["signal"]) == ("end", signal.SIGTERM)
    assert log(node) == ""


def test_command_that_waits_is_never_started_without_its_supervisor(node: Path) -> None:
    (node / wire.SPOOL_DIR / wire.GATE).unlink()
    gone = proc.Process(2**22 - 1, 1, proc.here())
    assert start(node, *python("print('never')"), supervisor=gone).wait(60) == 128 + signal.SIGKILL
    assert log(node) == ""


def test_place_is_told_in_torch_s_words_whoever_started_the_rank() -> None:
    by_torch = {"RANK": "3", "LOCAL_RANK": "1", "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_RANK": "9"}
    assert rank.placed(by_torch) == by_torch
    by_mpi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert rank.placed(by_mpi) == {**by_mpi, "RANK": "3", "LOCAL_RANK": "1"}
    by_deepspeed = {"RANK": "3", "LOCAL_RANK": "1", wire.FIRST_RANK: "3"}
    assert rank.placed(by_deepspeed)["LOCAL_RANK"] == "0"


def test_helper_is_recorded_by_its_number_and_its_role(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.MEMBER, "8")
    monkeypatch.setenv(wire.ROLE, "parameter_server")
    assert start(node, *python("raise SystemExit(3)")).wait(60) == 3
    *_, began, ended = LineReader(str(node / wire.SPOOL_DIR / "rank-8.jsonl")).read()
    assert (began["rank"], ended["rank"], ended["who"]) == (8, 8, "parameter_server 5")
    assert (node / wire.LOGS / "rank-8.log").exists()


def test_moment_that_another_clock_named_keeps_no_command_waiting_for_long(node: Path) -> None:
    open_gate(node, in_s=3600.0)
    assert start(node, *python("print('at last')")).wait(60) == 0
