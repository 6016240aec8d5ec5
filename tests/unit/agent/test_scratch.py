"""Folders that go with a node's processes, or, where all of those were killed, with the next look after the dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_llmsched.agent import scratch
from airflow_llmsched.agent.scratch import Scratch


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return _folder(tmp_path / "disk")


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return _folder(tmp_path / "memory")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def killed(disk: Path, memory: Path) -> list[Path]:
    """Return the folders of a process that was killed while it had some, with a file in each."""
    program = (
        "import sys; from pathlib import Path; from airflow_llmsched.agent.scratch import Scratch\n"
        "made = Scratch(disk=Path(sys.argv[1]), memory=Path(sys.argv[2]))\n"
        "for path in (made.disk, made.memory): (path / 'file').write_text('x')\n"
        "print(made.disk, made.memory, flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", program, str(disk), str(memory)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = [Path(each) for each in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
    assert [path.parent for path in made] == [disk, memory]
    assert all(path.exists() for path in made)
    return made


def test_folders_are_the_users_alone_and_go_with_what_is_in_them(disk: Path, memory: Path) -> None:
    made = Scratch(disk=disk, memory=memory)
    for path, base in ((made.disk, disk), (made.memory, memory)):
        assert path is not None
        assert path.parent == base
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "ompi.host.0").mkdir()
        (path / "ompi.host.0" / "segment").write_text("x")
    made.remove()
    assert [*disk.iterdir(), *memory.iterdir()] == []
    made.remove()  # nothing is left to go wrong


def test_name_is_short(disk: Path, memory: Path) -> None:
    made = Scratch(disk=disk, memory=memory)
    assert made.disk is not None
    # A socket's path has 107 characters: a session's own part of it, with a host's name of 64, has to fit as well.
    assert len(made.disk.name) <= 26


def test_next_one_removes_those_of_the_dead_and_leaves_those_of_the_living(disk: Path, memory: Path) -> None:
    alive = Scratch(disk=disk, memory=memory)
    dead = killed(disk, memory)
    new = Scratch(disk=disk, memory=memory)
    assert not any(path.exists() for path in dead)
    assert set(disk.iterdir()) == {alive.disk, new.disk}
    assert set(memory.iterdir()) == {alive.memory, new.memory}


def test_those_of_other_machines_and_what_only_looks_alike_are_left_alone(
    disk: Path, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = killed(disk, memory)
    kept = _folder(tmp_path / "kept")
    (kept / "file").write_text("x")
    link = dead[0].with_name(dead[0].name[:-1] + "~")
    link.symlink_to(kept)
    scratch.clear_after_the_dead(disk)
    assert not dead[0].exists()
    assert (kept / "file").exists()
    monkeypatch.setattr(scratch.socket, "gethostname", lambda: "another machine")
    scratch.clear_after_the_dead(memory)
    assert dead[1].exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own what others made")
def test_those_of_other_users_are_left_alone(disk: Path, memory: Path) -> None:
    dead = killed(disk, memory)
    os.chown(dead[0], 65534, 65534)
    scratch.clear_after_the_dead(disk, memory)
    assert [path.exists() for path in dead] == [True, False]


def test_place_where_none_can_be_made_is_done_without(disk: Path, tmp_path: Path) -> None:
    made = Scratch(disk=disk, memory=tmp_path / "nowhere")
    assert made.memory is None
    assert made.disk is not None
    made.remove()
    assert list(disk.iterdir()) == []


def test_making_and_clearing_at_once_never_takes_a_living_ones_folder(disk: Path, memory: Path) -> None:
    is_over = threading.Event()

    def clear() -> None:
        while not is_over.is_set():
            scratch.clear_after_the_dead(disk, memory)

    clearing = [threading.Thread(target=clear) for _ in range(2)]
    for thread in clearing:
        thread.start()
    try:
        made = [Scratch(disk=disk, memory=memory) for _ in range(100)]
    finally:
        is_over.set()
        for thread in clearing:
            thread.join()
    assert {each.disk for each in made} == set(disk.iterdir())
    assert {each.memory for each in made} == set(memory.iterdir())
    for each in made:
        each.remove()


def test_temporary_files_are_where_the_environment_says(tmp_path: Path) -> None:
    assert scratch.disk_of({"TMPDIR": "", "TEMP": str(tmp_path)}) == tmp_path
    assert scratch.disk_of({"TMPDIR": "/local", "TMP": str(tmp_path)}) == Path("/local")
    assert scratch.disk_of({}).is_dir()
