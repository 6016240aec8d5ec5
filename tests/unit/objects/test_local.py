from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_llmsched.errors import ObjectExistsError, ObjectMissingError, StoreError
from airflow_llmsched.objects.keys import TEMP_PREFIX
from airflow_llmsched.objects.local import LocalStore

NUM_RACERS = 16
NUM_RACES = 20

RACER = """
import sys
from airflow_llmsched.errors import ObjectExistsError
from airflow_llmsched.objects.local import LocalStore
root, me = sys.argv[1:]
store = LocalStore(root)
print("ready", flush=True)
for line in sys.stdin:
    try:
        store.create(line.strip(), me.encode())
        print("won", flush=True)
    except ObjectExistsError:
        print("lost", flush=True)
"""

WRITER = """
import sys
from airflow_llmsched.objects.local import LocalStore
store = LocalStore(sys.argv[1])
for number in range(10**6):
    store.create(f"j/{number:08d}", b"x" * 3_000_000)
    store.put("latest", b"y" * 3_000_000)
"""

LIMITED = """
import resource, signal, sys
from airflow_llmsched.errors import StoreError
from airflow_llmsched.objects.local import LocalStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = LocalStore(sys.argv[1])
for call in (store.create, store.put):
    try:
        call("big", b"x" * 1_000_000)
    except StoreError as error:
        print(error)
"""


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(TEMP_PREFIX)]


def test_of_many_processes_that_create_one_key_exactly_one_wins(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "store"), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(NUM_RACERS)
    ]
    try:
        for racer in racers:
            assert racer.stdout
            assert racer.stdout.readline() == "ready\n"
        for race in range(NUM_RACES):
            for racer in racers:
                assert racer.stdin
                racer.stdin.write(f"deep/{race}/key\n")
                racer.stdin.flush()
            answers = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
            assert sorted(answers) == ["lost"] * (NUM_RACERS - 1) + ["won"]
            winner = answers.index("won")
            assert LocalStore(str(tmp_path / "store")).get(f"deep/{race}/key") == str(winner).encode()
    finally:
        for racer in racers:
            racer.communicate(timeout=30)
    assert leftovers(tmp_path) == []


def test_a_writer_killed_in_mid_write_leaves_whole_objects_only(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    try:
        deadline_s = time.monotonic() + 60
        while len(list(store.list("j/"))) < 3:
            assert time.monotonic() < deadline_s
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    found = list(store.list(""))
    assert len(found) >= 4
    assert {info.num_bytes for info in found} == {3_000_000}
    assert all(len(set(store.get(info.key))) == 1 for info in found)


def test_unfinished_writes_are_never_listed(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("a/k", b"1")
    (tmp_path / "a" / f"{TEMP_PREFIX}123").write_bytes(b"half")
    (tmp_path / f"{TEMP_PREFIX}456").write_bytes(b"half")
    assert [info.key for info in store.list("")] == ["a/k"]
    assert [info.key for info in store.list("a/")] == ["a/k"]


def test_what_nfs_keeps_of_an_object_that_was_deleted_while_it_was_read_is_never_listed(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("records/00000002.json", b"1")
    (tmp_path / "records" / ".nfs00000000034a01f30000000b").write_bytes(b"gone")
    assert [info.key for info in store.list("records/")] == ["records/00000002.json"]


def test_a_write_that_the_system_cuts_short_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.count("cannot write 'big'") == 2
    assert "File too large" in done.stdout
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("code", "next_step"),
    [
        (errno.ENOSPC, "the disk is full: free space"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "permissions"),
        (errno.ESTALE, "check the mount"),
        (errno.EIO, "mounted and healthy"),
    ],
)
def test_a_write_error_says_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, next_step: str
) -> None:
    store = LocalStore(str(tmp_path))
    store.put("k", b"old")

    def fail(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=next_step) as caught:
        store.put("k", b"new")
    assert "'k'" in str(caught.value)
    assert store.uri in str(caught.value)
    with pytest.raises(StoreError, match=next_step):
        store.create("fresh", b"new")
    monkeypatch.undo()
    assert store.get("k") == b"old"
    assert [info.key for info in store.list("")] == ["k"]
    assert leftovers(tmp_path) == []


def test_a_folder_store_without_hard_links_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", no_links)
    store = LocalStore(str(tmp_path))
    with pytest.raises(StoreError, match="no hard links: use an object store URI"):
        store.create("k", b"1")
    assert list(store.list("")) == []


def test_a_create_whose_answer_nfs_lost_is_known_to_have_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def answer_lost(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", answer_lost)
    store = LocalStore(str(tmp_path))
    store.create("k", b"mine")
    assert store.get("k") == b"mine"
    monkeypatch.undo()
    with pytest.raises(ObjectExistsError):
        store.create("k", b"mine")


@pytest.mark.parametrize("trouble", ["file", "loop", "below a file"])
def test_a_root_that_cannot_be_read_is_not_an_empty_store(tmp_path: Path, trouble: str) -> None:
    root = tmp_path / "root"
    if trouble == "loop":
        root.symlink_to(root)
    else:
        root.write_bytes(b"")
    store = LocalStore(str(root / "deeper" if trouble == "below a file" else root))
    calls = (
        lambda: store.get("k"),
        lambda: list(store.list("")),
        lambda: list(store.list("a/")),
        lambda: store.delete("k"),
        lambda: store.put("k", b""),
        lambda: store.create("k", b""),
    )
    for call in calls:
        with pytest.raises(StoreError, match="cannot"):
            call()


def test_a_link_loop_inside_the_root_is_an_error_only_for_its_own_key(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("good", b"1")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "up").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="lead in a circle"):
        store.get("loop")
    assert store.get("good") == b"1"


def test_linked_files_are_listed_and_linked_folders_are_not(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "store"))
    store.put("a", b"1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b").write_bytes(b"22")
    (tmp_path / "store" / "file").symlink_to(tmp_path / "elsewhere" / "b")
    (tmp_path / "store" / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "store" / "up").symlink_to(tmp_path / "store")
    assert [(info.key, info.num_bytes) for info in store.list("")] == [("a", 1), ("file", 2)]


def test_a_key_cannot_be_the_folder_of_other_keys_and_the_error_says_so(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("a/b", b"1")
    for call in (store.put, store.create):
        with pytest.raises(StoreError, match="cannot also be the folder"):
            call("a", b"2")
        with pytest.raises(StoreError, match="choose another key"):
            call("a/b/c", b"2")
    assert [info.key for info in store.list("")] == ["a/b"]
    with pytest.raises(ObjectMissingError):
        store.get("a")


def test_folders_and_objects_are_flushed_so_that_they_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    LocalStore(str(tmp_path / "new")).create("a/k", b"1")
    assert synced[:2] == [str(tmp_path), str(tmp_path / "new")]  # the parents of the folders it made
    assert Path(synced[2]).name.startswith(TEMP_PREFIX)
    assert synced[3:] == [str(tmp_path / "new" / "a")]
