from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.trainers.preflight import storage
from airflow_llmsched.trainers.preflight.storage import check_folder


def test_a_folder_that_can_be_written_and_read_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    found = check_folder(str(tmp_path / "new"), node="n0", num_bytes=100_000)
    assert found["outcome"] == "ok"
    assert found["value"] > 0
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_cannot_be_made_says_what_stands_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = check_folder(str(tmp_path / "file"), node="n0", num_bytes=1000)
    assert found["outcome"] == "bad"
    assert str(tmp_path / "file") in found["detail"]


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.secrets, "token_hex", lambda _: "x")
    found = check_folder("/dev/full", node="n0", num_bytes=1000)
    assert found["outcome"] == "bad"


def test_what_reads_back_different_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(number: int) -> None:
        for path in tmp_path.iterdir():
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    monkeypatch.setattr(storage.os, "fsync", torn)
    monkeypatch.setattr(storage.secrets, "token_bytes", lambda size: b"x" * size)
    found = check_folder(str(tmp_path), node="n0", num_bytes=1000)
    assert (found["outcome"], found["detail"]) == ("bad", "what was read back is not what was written")
    assert list(tmp_path.iterdir()) == []
