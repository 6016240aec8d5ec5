from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.gangdir import GangDir, NodeDir, is_full
from airflow_llmsched.agent.spool import read_json, write_json
from tests.support.local_engine import wait_until


def test_node_is_claimed_once(tmp_path: Path) -> None:
    node = NodeDir(tmp_path / "n0")
    node.make()
    me = proc.myself()
    assert node.supervisor() is None
    assert node.port() is None
    assert node.claim(me, at_s=1.0, port=20001)
    assert not node.claim(me._replace(pid=1), at_s=2.0, port=20002)
    assert node.supervisor() == me
    assert node.port() == 20001


def test_marks_tell_deployments_apart_that_share_an_attempt_name(tmp_path: Path) -> None:
    one, two = (GangDir(tmp_path / root / "a-g1-a1").marks("a-g1-a1", "n0") for root in ("one", "two"))
    assert one[wire.ATTEMPT_NAME] == two[wire.ATTEMPT_NAME]
    assert one != two


def test_notices_are_those_of_the_nodes_asked_for(tmp_path: Path) -> None:
    gang = GangDir(tmp_path)
    for node in ("n0", "n1"):
        gang.node(node).make()
    write_json(gang.node("n1").notice, {"v": 1, "at_s": 1.0, "deadline_s": 9.0})
    assert gang.notices(["n0", "n1"]) == {"n1": 9.0}
    assert gang.notices(["n0"]) == {}


def test_last_words_fit_on_a_full_disk_because_room_was_kept_for_them(tmp_path: Path) -> None:
    """A real file system of one megabyte, filled to the last byte."""
    mount = tmp_path / "mount"
    mount.mkdir()
    program = """
import errno, os, sys
from pathlib import Path
from airflow_llmsched.agent.gangdir import GangDir, is_full
from airflow_llmsched.agent.spool import write_json
gang = GangDir(Path(sys.argv[1]) / "gang")
node = gang.node("n0")
node.make()
filler = os.open(Path(sys.argv[1]) / "filler", os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(filler, b"x" * 4096)
except OSError as error:
    assert is_full(error)
try:
    write_json(node.alive, {"at_s": 1.0})
except OSError as error:
    assert is_full(error), error
    print("full", str(error.filename).endswith("alive.json"))
node.write_last(node.exit, {"reason": "disk full"})
print(node.write_last(gang.abort, {"reason": "first"}, once=True), node.exit.read_text())
"""
    # A mount namespace of its own needs no root where user namespaces are allowed, and root needs no user namespace.
    command = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    argv = [*unshare, "sh", "-c", command, "sh", str(mount), sys.executable, program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["full True", 'True {"reason":"disk full"}'], done.stderr


def test_other_trouble_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    node = NodeDir(tmp_path / "n0")
    node.make()
    with pytest.raises(FileNotFoundError):
        node.write_last(tmp_path / "absent" / "exit.json", {})
    assert (node.path / "reserve").exists()
    assert is_full(OSError(errno.EDQUOT, "quota"))
    assert not is_full(OSError(errno.EIO, "broken"))


def test_record_written_once_keeps_its_first_value(tmp_path: Path) -> None:
    node = NodeDir(tmp_path / "n0")
    node.make()
    path = tmp_path / "abort.json"
    assert node.write_last(path, {"by": "n0"}, once=True)
    assert not node.write_last(path, {"by": "n1"}, once=True)
    assert read_json(path) == {"by": "n0"}


def test_node_finds_marked_processes_and_those_noted_to_carry_no_marks(tmp_path: Path) -> None:
    gang = GangDir(tmp_path)
    gang.node("n0").make()
    idle = [sys.executable, "-S", "-c", "import time; time.sleep(1e6)"]
    processes = [subprocess.Popen(idle, env=env) for env in (gang.marks("ls-a-g1-a1", "n0"), {}, {})]
    marked, noted, ended = (proc.identify(process.pid) for process in processes)
    assert marked is not None
    assert noted is not None
    assert ended is not None
    try:
        gang.node("n0").note_unmarked([noted, ended])
        processes[2].kill()
        processes[2].wait()
        wait_until(lambda: gang.processes("ls-a-g1-a1", "n0") == [marked, noted], 10)
        assert gang.processes("ls-a-g1-a1", "n1") == []
    finally:
        for process in processes:
            process.kill()
            process.wait()
