from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.agent.seal import SEAL_NAME, seal
from airflow_llmsched.checkpoints.scan import (
    Torn,
    check_rank_markers,
    check_ranks,
    file_sizes,
    looking_at,
    read_file,
    require_files,
    seal_of,
    size_of,
    step_directories,
)
from airflow_llmsched.errors import CouldNotLookError, SpecError
from tests.support.unprivileged import as_nobody, open_folder

STEP = re.compile(r"step-([0-9]{1,18})")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=st.sets(st.integers(0, 10**17), max_size=12))
def test_any_steps_come_newest_first_whatever_their_padding(
    steps: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")
    for number, step in enumerate(sorted(steps)):
        (root / f"step-{step:0{number}d}").mkdir()
    assert [found.step for found in step_directories(str(root), STEP)] == sorted(steps, reverse=True)


@pytest.mark.parametrize(
    "name",
    [
        "tmp-step-5",
        "tmp_step-5",
        ".tmp-step-5",
        ".step-5",
        "temp-step-5",
        "step-5.tmp",
        "step-5_tmp",
        "step-5.tmp.123",
        "step-5.orbax-checkpoint-tmp-17",
        "step-5.orbax-checkpoint-tmp",
        "step-5.partial",
        "step-5.incomplete",
        "step-5-unfinished",
    ],
)
def test_temporary_names_are_torn(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (found,) = step_directories(str(tmp_path), STEP)
    assert found.step == 5
    assert "did not finish" in str(found.torn_reason)


@pytest.mark.parametrize("name", ["step-", "step-x", "step--5", "step-5x", "xstep-5", "step-5.bak", "step-" + "1" * 19])
def test_other_names_are_no_steps(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert step_directories(str(tmp_path), STEP) == []


def test_an_unfinished_marker_tears_its_sibling_and_is_no_step_itself(tmp_path: Path) -> None:
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5-unfinished").mkdir()
    (found,) = step_directories(str(tmp_path), STEP)
    assert found.path == tmp_path / "step-5"
    assert "step-5-unfinished beside it" in str(found.torn_reason)


def test_a_uri_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="mount the bucket"):
        step_directories("gs://bucket/run", STEP)


def test_a_root_without_permission_is_not_an_empty_one() -> None:
    with open_folder() as root:
        (root / "step-5").mkdir()
        root.chmod(0)
        try:
            with as_nobody(), pytest.raises(CouldNotLookError, match="Permission denied; check that it is mounted"):
                step_directories(str(root), STEP)
        finally:
            root.chmod(0o755)


def test_a_directory_without_permission_is_not_a_torn_one() -> None:
    with open_folder() as root:
        directory = root / "step-5"
        directory.mkdir()
        (directory / "a").write_bytes(b"1")
        directory.chmod(0)
        try:
            with as_nobody():
                for call in (file_sizes, seal_of):
                    with pytest.raises(CouldNotLookError, match="Nothing is known"):
                        call(directory)
                for look in (size_of, read_file):
                    with pytest.raises(CouldNotLookError, match="Permission denied"):
                        look(directory, "a")
        finally:
            directory.chmod(0o755)


def test_sizes_of_files_are_listed_and_folders_end_in_a_slash(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "sub").mkdir()
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    assert file_sizes(tmp_path) == {"a": 3, "sub/": 0}


def test_a_directory_that_is_gone_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_sizes(tmp_path / "gone")


def test_a_file_in_place_of_a_directory_is_torn(tmp_path: Path) -> None:
    (tmp_path / "step-5").write_bytes(b"")
    with pytest.raises(Torn, match="step-5 is a file"):
        file_sizes(tmp_path / "step-5")
    assert size_of(tmp_path / "step-5", "a") is None
    assert read_file(tmp_path / "step-5", "a") is None


def test_what_stands_where_a_file_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for look in (size_of, read_file):
        with pytest.raises(Torn, match="folder is"):
            look(tmp_path, "folder")
        with pytest.raises(Torn, match="loop is a symbolic link that leads in a circle"):
            look(tmp_path, "loop")
        with pytest.raises(Torn, match="longer name"):
            look(tmp_path, "x" * 300)
        assert look(tmp_path, "gone") is None


def test_needed_files_must_be_there_and_long_enough(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    assert require_files(tmp_path, {"a": 3}, sizes=True) == {"a": 3}
    with pytest.raises(Torn, match="a has 3 bytes, at least 4 are needed"):
        require_files(tmp_path, {"a": 4}, sizes=True)
    assert require_files(tmp_path, {"a": 4}, sizes=False) == {"a": 3}
    with pytest.raises(Torn, match="b is missing"):
        require_files(tmp_path, {"a": 3, "b": 0}, sizes=False)


def test_missing_ranks_are_counted_and_named() -> None:
    check_ranks("a marker", {0, 1, 2}, range(3))
    with pytest.raises(Torn, match=r"only 7 of 8 ranks have a marker; missing: rank 5$"):
        check_ranks("a marker", set(range(8)) - {5}, range(8))
    with pytest.raises(Torn, match=r"missing: rank 1, 2, 3, 4, 5, 6, 7, 8, \.\.\.$"):
        check_ranks("a marker", {0}, range(100))


@pytest.mark.parametrize(
    "form", ["rank_{}.done", "rank{}.complete", ".rank-{}.done", "rank_{}_complete", "_rank_{}.ok"]
)
def test_completion_markers_of_many_forms_are_known(form: str) -> None:
    check_rank_markers([form.format(rank) for rank in range(8)], range(8))
    with pytest.raises(Torn, match=r"only 7 of 8 ranks have a completion marker; missing: rank 7"):
        check_rank_markers([form.format(rank) for rank in range(7)], range(8))
    with pytest.raises(Torn, match="rank 0"):
        check_rank_markers([form.format(1)], [])


def test_without_markers_nothing_is_asked() -> None:
    check_rank_markers(["rank_0.pt", "done", "rank_x.done"], range(8))


def test_a_seal_is_read_and_a_bad_one_is_torn(tmp_path: Path) -> None:
    assert seal_of(tmp_path) is None
    seal(tmp_path, step=3, world_size=2)
    found = seal_of(tmp_path)
    assert found
    assert found.step == 3
    (tmp_path / SEAL_NAME).write_bytes(b"{")
    with pytest.raises(Torn, match=SEAL_NAME):
        seal_of(tmp_path)


def test_an_error_of_the_disk_means_that_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(CouldNotLookError, match="Input/output error"), looking_at(tmp_path):
        raise OSError(5, os.strerror(5))
    with pytest.raises(Torn, match="is missing"), looking_at(tmp_path):
        raise FileNotFoundError(2, os.strerror(2))
