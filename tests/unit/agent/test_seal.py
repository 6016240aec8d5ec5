from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_llmsched.agent.seal import SEAL_NAME, Seal, SealError, check, read_seal, seal


def sealed(folder: Path, **options: bool) -> Seal:
    seal(folder, step=7, world_size=4, saved_at_s=12.5, **options)
    found = read_seal(folder)
    assert found
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b").write_bytes(b"bb")
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "sub" / "c").write_bytes(b"c" * 10_000_000)
    return tmp_path


def test_a_seal_lists_every_file_with_size_and_digest_sorted_by_path(folder: Path) -> None:
    found = sealed(folder)
    assert (found.step, found.world_size, found.saved_at_s, found.hash_content) == (7, 4, 12.5, True)
    assert [(file.path, file.num_bytes) for file in found.files] == [("a", 0), ("b", 2), ("sub/c", 10_000_000)]
    assert found.files[1].sha256 == hashlib.sha256(b"bb").hexdigest()
    assert found.files[2].sha256 == hashlib.sha256(b"c" * 10_000_000).hexdigest()
    assert found.num_bytes == 10_000_002


def test_the_file_has_the_agreed_form(folder: Path) -> None:
    digest = seal(folder, step=7, world_size=4, saved_at_s=12.5)
    document = json.loads((folder / SEAL_NAME).read_text())
    assert document.keys() == {"v", "step", "world_size", "saved_at_s", "hash_content", "files", "digest"}
    assert (document["v"], document["digest"]) == (1, digest)
    assert [row.keys() for row in document["files"]] == [{"path", "num_bytes", "sha256"}] * 3


def test_the_digest_depends_on_content_and_names_and_on_nothing_else(folder: Path) -> None:
    digest = seal(folder, step=7, world_size=4)
    assert seal(folder, step=8, world_size=1, saved_at_s=0.0) == digest
    (folder / "b").write_bytes(b"bx")
    changed = seal(folder, step=7, world_size=4)
    (folder / "b").rename(folder / "b2")
    assert len({digest, changed, seal(folder, step=7, world_size=4)}) == 3


def test_a_folder_without_a_seal_has_none(tmp_path: Path) -> None:
    assert read_seal(tmp_path) is None


def test_an_unreadable_seal_is_not_an_absent_one(tmp_path: Path) -> None:
    (tmp_path / SEAL_NAME).mkdir()
    with pytest.raises(OSError, match="directory"):
        read_seal(tmp_path)


def test_a_whole_folder_passes_at_every_depth_and_more_files_do_not_matter(folder: Path) -> None:
    found = sealed(folder)
    (folder / "later").write_bytes(b"a note")
    for depth in ("listing", "sizes", "content"):
        assert check(folder, found, depth=depth) is None


def test_each_depth_sees_what_it_says_and_names_the_file(folder: Path) -> None:
    found = sealed(folder)
    (folder / "sub" / "c").write_bytes(b"c" * 9_999_999 + b"d")
    assert check(folder, found, depth="sizes") is None
    assert "sub/c has other content" in str(check(folder, found, depth="content"))
    (folder / "sub" / "c").write_bytes(b"c")
    assert check(folder, found, depth="listing") is None
    assert check(folder, found, depth="sizes") == "sub/c has 1 bytes, its seal says 10000000"
    (folder / "sub" / "c").unlink()
    assert check(folder, found, depth="listing") == "sub/c is missing"
    (folder / "sub" / "c").mkdir()
    assert check(folder, found, depth="listing") == "sub/c is not a file"


def test_an_unknown_depth_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="unknown depth"):
        check(folder, sealed(folder), depth="deep")


def test_sizes_alone_can_be_sealed_and_the_seal_says_so(folder: Path) -> None:
    found = sealed(folder, hash_content=False)
    assert not found.hash_content
    assert {file.sha256 for file in found.files} == {None}
    (folder / "b").write_bytes(b"xx")
    assert check(folder, found, depth="content") is None
    (folder / "b").write_bytes(b"xxx")
    assert check(folder, found, depth="content") == "b has 3 bytes, its seal says 2"


def test_sealing_again_leaves_out_the_old_seal(folder: Path) -> None:
    first = sealed(folder)
    (folder / f"{SEAL_NAME}.123.tmp").write_bytes(b"left by a crash")
    assert sealed(folder).files == first.files


def test_a_pipe_is_no_content_and_does_not_block(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert "pipe" not in {file.path for file in sealed(folder).files}


def test_a_link_to_nowhere_is_an_error_and_no_seal_is_written(folder: Path) -> None:
    (folder / "link").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        seal(folder, step=1, world_size=1)
    assert read_seal(folder) is None


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        seal(tmp_path / "no", step=1, world_size=1)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"digest": "0" * 64},
        {"files": []},
        {"files": [{"path": "../x", "num_bytes": 1, "sha256": None}]},
        {"files": [{"path": "/x", "num_bytes": 1, "sha256": None}]},
        {"files": [{"path": "x\0", "num_bytes": 1, "sha256": None}]},
        {"files": [{"path": "\ud800", "num_bytes": 1, "sha256": None}]},
        {"files": [{"path": "x", "num_bytes": -1, "sha256": None}]},
        {"files": [{"path": "x", "num_bytes": 1, "sha256": 3}]},
        {"files": None},
        {"step": "x"},
    ],
)
def test_a_seal_that_was_altered_is_an_error(folder: Path, change: dict[str, object]) -> None:
    sealed(folder)
    document = json.loads((folder / SEAL_NAME).read_text())
    (folder / SEAL_NAME).write_text(json.dumps(document | change))
    with pytest.raises(SealError, match=SEAL_NAME):
        read_seal(folder)


def test_a_torn_seal_is_an_error_wherever_it_was_torn(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    seal(tmp_path, step=1, world_size=1)
    whole = (tmp_path / SEAL_NAME).read_bytes()
    for keep in range(len(whole)):
        (tmp_path / SEAL_NAME).write_bytes(whole[:keep])
        with pytest.raises(SealError):
            read_seal(tmp_path)


def test_readers_see_the_old_seal_or_the_new_never_a_mixture(folder: Path) -> None:
    first = sealed(folder)
    done = threading.Event()
    seen: list[object] = []

    def read() -> None:
        while not done.is_set():
            try:
                seen.append(read_seal(folder))
            except SealError as error:
                seen.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(8):
            seal(folder, step=7, world_size=4, saved_at_s=12.5, hash_content=False)
            seal(folder, step=7, world_size=4, saved_at_s=12.5)
    finally:
        done.set()
        reader.join()
    other = sealed(folder, hash_content=False)
    assert seen
    assert all(found in (first, other) for found in seen)


def test_files_are_flushed_before_the_seal_appears(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        assert not (folder / SEAL_NAME).exists() or synced[-1] == folder.name
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    seal(folder, step=1, world_size=1)
    assert set(synced[:3]) == {"a", "b", "c"}
    assert synced[3].startswith(SEAL_NAME)
    assert synced[4:] == [folder.name]


def test_it_needs_the_standard_library_only() -> None:
    code = "import sys, airflow_llmsched.agent.seal; print([m for m in sys.modules if m in ('pydantic', 'torch')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
