"""The supervisor by itself: one node, no engine. How gangs of several nodes end is in tests/contract."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched import codec
from airflow_llmsched.agent import proc, supervisor, wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.peers import FilePeers
from airflow_llmsched.agent.spool import LineReader, create_json, read_json, write_json
from airflow_llmsched.domain.progress import NodeReport
from tests.support.metadata_service import NAME as NAME_OF_MACHINE
from tests.support.metadata_service import MetadataService, azure_event
from tests.support.waiting import wait_until

NAME = f"ls-supervisor-{os.getpid()}-g1-a1"


class Node:
    """One attempt of one node, with as many ranks as ``program`` is to run on."""

    def __init__(self, root: Path, program: str, *, num_ranks: int = 1, **changes: Any) -> None:
        self.gang = GangDir(root / NAME)
        self.files = self.gang.node("n0")
        self.files.make()
        self.up = root / "channel" / "up" / "n0.jsonl"
        body = {
            "launcher": "plain",
            "attempt_name": NAME,
            "run_key": "ls-supervisor",
            "generation": 1,
            "attempt": 1,
            "command": [sys.executable, "-S", "-E", "-c", program],
            "environment": {},
            "layout": {"dp": num_ranks},
            "world_size": num_ranks,
            "nodes": [{"node": "n0", "ranks": list(range(num_ranks))}],
            "channel_root": str(root / "channel"),
            "start_limit_s": 30.0,
            "grace_s": 0.5,
            "exit_grace_s": 5.0,
            "flush_interval_s": 0.1,
            "lease_s": None,
        }
        write_json(self.gang.request, {"v": 1, "submitted_at_s": time.time(), "body": {**body, **changes}})

    def start(self, *, go: bool = True) -> proc.Process:
        """Start the supervisor and return it."""
        marks = self.gang.marks(NAME, "n0")
        argv = [sys.executable, "-m", "airflow_llmsched.agent.supervisor", str(self.gang.path), "n0"]
        with self.files.supervisor_log.open("ab") as log:
            done = subprocess.run(argv, env={**os.environ, **marks}, stderr=log, check=False, timeout=60)
        assert done.returncode == 0, self.files.supervisor_log.read_text()
        if go:
            create_json(self.gang.go, {"v": 1, "at_s": time.time()})
        found = self.files.supervisor()
        assert found is not None
        return found

    def foreground(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the supervisor as a child that stays, and return it once its ranks run."""
        argv = [sys.executable, "-m", "airflow_llmsched.agent.supervisor", "--foreground", *options]
        child = subprocess.Popen([*argv, str(self.gang.path), "n0"], env={**os.environ, **self.gang.marks(NAME, "n0")})
        create_json(self.gang.go, {"v": 1, "at_s": time.time()})
        wait_until(self.files.started.exists, 60)
        return child

    def end(self) -> dict[str, Any]:
        """Wait for the exit record."""
        wait_until(self.files.exit.exists, 60)
        record = read_json(self.files.exit)
        assert record is not None
        return record

    def processes(self) -> list[proc.Process]:
        return proc.marked(self.gang.marks(NAME, "n0"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    marks = GangDir(tmp_path / NAME).marks(NAME, "n0")
    proc.end_all(lambda: proc.marked(marks), grace_s=0.0)


def test_node_whose_ranks_exit_0_is_done_and_told_so_in_whole_reports(root: Path) -> None:
    node = Node(root, "print('bye')", num_ranks=2)
    node.start()
    record = node.end()
    assert (record["outcome"], record["fault"], record["reason"]) == ("done", None, "")
    assert [(end["rank"], end["exit_code"], end["log_tail"], end["forced"]) for end in record["ends"]] == [
        (0, 0, "bye", False),
        (1, 0, "bye", False),
    ]
    reports = [codec.from_plain(NodeReport, plain) for plain in LineReader(str(node.up)).read()]
    assert [report.seq for report in reports] == list(range(1, len(reports) + 1))
    assert [progress.rank for progress in reports[-1].ranks] == [0, 1]
    wait_until(lambda: node.processes() == [], 10)


def test_nothing_starts_before_go(root: Path) -> None:
    node = Node(root, "pass")
    node.start(go=False)
    wait_until(node.files.alive.exists, 60)
    wait_until(lambda: len(LineReader(str(node.up)).read()) >= 3, 60)
    assert list(node.files.spool.glob("*.jsonl")) == []
    create_json(node.gang.go, {"v": 1, "at_s": 0.0})
    assert node.end()["outcome"] == "done"


def test_go_that_never_comes_ends_the_wait_at_the_start_limit(root: Path) -> None:
    node = Node(root, "pass", start_limit_s=0.5)
    node.start(go=False)
    assert node.end()["fault"] == "start_timeout"


def test_second_supervisor_of_a_node_leaves_it_to_the_first(root: Path) -> None:
    node = Node(root, "import time; time.sleep(1e6)")
    first = node.start()
    wait_until(node.files.started.exists, 60)
    assert node.start() == first
    wait_until(lambda: len(node.processes()) == 3, 10)  # supervisor, wrapper, rank


def test_supervisor_stands_by_itself_in_a_session_of_its_own(root: Path) -> None:
    node = Node(root, "import time; time.sleep(1e6)")
    process = node.start()
    assert os.getsid(process.pid) == process.pid
    stat = proc.read_stat(process.pid)
    assert stat is not None
    assert stat.parent_pid not in (os.getpid(), 0)


def test_supervisor_told_to_end_ends_its_ranks_and_says_so(root: Path) -> None:
    node = Node(root, "import time; time.sleep(1e6)")
    process = node.start()
    wait_until(node.files.started.exists, 60)
    proc.send(process, signal.SIGTERM)
    record = node.end()
    assert (record["outcome"], record["fault"]) == ("terminated", "node_lost")
    assert [(end["signal"], end["forced"]) for end in record["ends"]] == [(signal.SIGTERM, True)]
    wait_until(lambda: node.processes() == [], 10)


def test_supervisor_in_the_foreground_is_the_one_who_was_started_and_stays_until_the_end(root: Path) -> None:
    node = Node(root, "import time; time.sleep(1e6)")
    child = node.foreground()
    supervisor_of_node = node.files.supervisor()
    assert supervisor_of_node is not None
    assert supervisor_of_node.pid == child.pid
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=60) == 0
    assert node.end()["outcome"] == "terminated"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_platform_that_gives_notice_is_heard_once_and_ranks_go_on(root: Path, number: signal.Signals) -> None:
    node = Node(root, "import time; time.sleep(1e6)")
    child = node.foreground("--notice-grace-s=600")
    child.send_signal(number)
    wait_until(node.files.notice.exists, 60)
    notice = read_json(node.files.notice)
    assert notice is not None
    assert notice["deadline_s"] == pytest.approx(notice["at_s"] + 600.0)
    child.send_signal(number)
    heard_s = time.time()
    wait_until(lambda: (read_json(node.files.alive) or {})["at_s"] > heard_s + 0.3, 60)
    assert read_json(node.files.notice) == notice
    assert child.poll() is None
    create_json(node.gang.stop, {"v": 1, "at_s": time.time(), "grace_s": 0.1})
    assert child.wait(timeout=60) == 0
    assert node.end()["outcome"] == "stopped"


def test_rank_whose_wrapper_was_killed_counts_as_killed(root: Path) -> None:
    node = Node(root, "import time; time.sleep(1e6)")
    node.start()
    wait_until(node.files.started.exists, 60)
    _, start = LineReader(str(node.files.spool / "rank-0.jsonl")).read()
    proc.send(proc.Process.parse(start["wrapper"]), signal.SIGKILL)
    record = node.end()
    assert record["fault"] == "rank_failed"
    assert [(end["signal"], end["forced"]) for end in record["ends"]] == [(signal.SIGKILL, False)]
    wait_until(lambda: node.processes() == [], 10)


def test_node_that_its_cloud_announced_to_take_was_preempted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(root, "import time; time.sleep(1e6)")
    with MetadataService() as service:
        monkeypatch.setenv(wire.METADATA, "azure")
        monkeypatch.setenv(wire.METADATA_ADDRESS, service.address)
        node.start()
        wait_until(node.files.started.exists, 60)
        assert not node.files.notice.exists()
        service.azure = [azure_event("Preempt", NAME_OF_MACHINE, not_before="")]
        wait_until(lambda: (read_json(node.files.spool / wire.ORDERS) or {}).get("checkpoint_seq") == 1, 60)
    _, start = LineReader(str(node.files.spool / "rank-0.jsonl")).read()
    proc.send(proc.Process.parse(start["wrapper"]), signal.SIGKILL)
    assert node.end()["fault"] == "preempted"


def test_cloud_that_has_no_known_metadata_service_fails_the_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(root, "pass")
    monkeypatch.setenv(wire.METADATA, "ibm")
    with pytest.raises(AssertionError):
        node.start()
    assert node.files.supervisor() is None


def test_channel_that_cannot_be_made_fails_the_start_and_names_the_path(root: Path) -> None:
    (root / "channel").write_text("a file is in the way")
    node = Node(root, "pass")
    node.start()
    record = node.end()
    assert record["fault"] == "start_failed"
    assert str(root / "channel") in record["reason"]


def test_gang_stopped_before_it_began_starts_no_rank_though_told_to_go(root: Path) -> None:
    """The submitter was stopped between its look for a stop and its go; the gang's successor may be up already."""
    node = Node(root, "import time; time.sleep(1e6)")
    create_json(node.gang.stop, {"v": 1, "at_s": time.time(), "grace_s": 5.0})
    create_json(node.gang.go, {"v": 1, "at_s": time.time()})
    node.start(go=False)
    assert node.end()["outcome"] == "stopped"
    assert list(node.files.spool.glob("rank-*")) == []
    assert not node.files.launcher_log.exists()


def test_gang_whose_directory_was_deleted_ends(root: Path) -> None:
    """Its engine calls it lost from then on, and control starts another: it must not train beside that one."""
    node = Node(root, "import time; time.sleep(1e6)")
    supervisor_process = node.start()
    wait_until(node.files.started.exists, 60)
    node.gang.path.rename(root / "deleted")  # at once: a supervisor writes on while rmtree goes through
    wait_until(lambda: not proc.alive(supervisor_process), 60)
    assert node.processes() == []


def test_clock_set_back_an_hour_does_not_silence_the_node(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(root, "pass")
    request = read_json(node.gang.request)
    assert request is not None
    written: list[float] = []
    link = supervisor.open_link(request["body"], node="n0")
    peers = FilePeers(node.gang, nodes=["n0"], node="n0")
    one = supervisor.Supervisor(node.gang, request, node="n0", identity=proc.myself(), link=link, peers=peers)
    monkeypatch.setattr(one, "_flush", written.append)
    real_s = time.time()
    wait_until(lambda: one._step() is None and len(written) > 1, 60)
    monkeypatch.setattr(time, "time", lambda: real_s - 3600)
    wait_until(lambda: one._step() is None and written[-1] < real_s - 3000, 10)


FAILS_WHEN_TOLD = "import os, time\nwhile not os.path.exists('fail'): time.sleep(0.05)\nraise SystemExit(3)"


def test_channel_that_breaks_later_costs_reports_and_hides_no_failure(root: Path) -> None:
    node = Node(root, FAILS_WHEN_TOLD)
    node.start()
    wait_until(lambda: node.files.started.exists() and node.up.exists(), 60)
    shutil.rmtree(root / "channel")
    (root / "channel").write_text("a file is in the way")
    broken_s = time.time()
    wait_until(lambda: (read_json(node.files.alive) or {})["at_s"] > broken_s + 0.5, 60)
    (node.files.path / "fail").touch()
    assert node.end()["fault"] == "rank_failed"


@pytest.mark.parametrize("record", ["stop.json", "abort.json", "nodes/n0/notice.json"])
def test_record_that_cannot_be_read_for_a_while_ends_no_gang(root: Path, record: str) -> None:
    """A shared disk answers EIO or ESTALE now and then. What can be provoked anywhere is a link to itself."""
    node = Node(root, FAILS_WHEN_TOLD)
    supervisor_process = node.start()
    wait_until(node.files.started.exists, 60)
    path = node.gang.path / record
    path.symlink_to(path.name)
    wait_until(lambda: "Too many levels of symbolic links" in node.files.supervisor_log.read_text(), 60)
    blind_s = time.time()
    wait_until(lambda: (read_json(node.files.alive) or {})["at_s"] > blind_s + 0.5, 60)
    assert proc.alive(supervisor_process)
    assert len(node.files.supervisor_log.read_text().splitlines()) == 1  # once, not with every tick
    path.unlink()
    (node.files.path / "fail").touch()
    assert node.end()["fault"] == "rank_failed"


def test_gang_fails_and_leaves_nothing_while_records_cannot_be_read(root: Path) -> None:
    node = Node(root, FAILS_WHEN_TOLD)
    node.start()
    wait_until(node.files.started.exists, 60)
    node.gang.stop.symlink_to(node.gang.stop.name)
    (node.files.path / "fail").touch()
    record = node.end()
    assert (record["fault"], [end["exit_code"] for end in record["ends"]]) == ("rank_failed", [3])
    wait_until(lambda: node.processes() == [], 10)


def test_wrong_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert supervisor.main(["only one"]) == 2
    assert "usage" in capsys.readouterr().err


def test_directory_that_is_no_attempt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes" / "n0").mkdir(parents=True)
    argv = [sys.executable, "-m", "airflow_llmsched.agent.supervisor", str(tmp_path), "n0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "is no attempt's directory" in done.stderr
