from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llmsched.agent.holds import CLOCK_SKEW_S, HOLDS, held, hold, release, root_of


def checkpoint(root: Path, *parts: str) -> Path:
    path = root.joinpath(*parts)
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("parts", [("step-5",), ("g0001-a0002", "step-5")])
def test_a_held_checkpoint_is_held_until_its_time_or_its_release(tmp_path: Path, parts: tuple[str, ...]) -> None:
    path = checkpoint(tmp_path, *parts)
    assert root_of(path) == tmp_path
    hold(path, name="evaluation-1", until_s=100.0)
    assert held(tmp_path, now_s=50.0) == {path}
    assert held(tmp_path, now_s=100.0 + CLOCK_SKEW_S / 2) == {path}
    assert held(tmp_path, now_s=101.0 + CLOCK_SKEW_S) == frozenset()
    release(path, name="evaluation-1")
    release(path, name="evaluation-1")
    assert held(tmp_path, now_s=50.0) == frozenset()


def test_holds_of_two_readers_are_apart_and_one_reader_has_one(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path, "step-1"), checkpoint(tmp_path, "step-2")
    hold(one, name="a", until_s=9.0)
    hold(two, name="b", until_s=9.0)
    assert held(tmp_path, now_s=1.0) == {one, two}
    hold(two, name="a", until_s=9.0)
    release(two, name="b")
    assert held(tmp_path, now_s=1.0) == {two}


def test_nothing_is_written_beside_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    hold(tmp_path / "no" / "step-1", name="a", until_s=9.0)
    hold(tmp_path / "step-1", name="a", until_s=9.0)
    assert list(tmp_path.iterdir()) == []
    assert held(tmp_path / "no", now_s=1.0) == frozenset()


def test_a_mark_that_says_nothing_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / HOLDS).mkdir()
    for number, text in enumerate(("", "[]", '{"v": 1}', '{"path": "step-1", "until_s": "late"}')):
        (tmp_path / HOLDS / f"{number}.json").write_text(text)
    assert held(tmp_path, now_s=0.0) == frozenset()


def test_marks_that_cannot_be_read_are_an_error_not_absence(tmp_path: Path) -> None:
    (tmp_path / HOLDS).symlink_to(HOLDS)
    with pytest.raises(OSError, match="symbolic links"):
        held(tmp_path, now_s=0.0)


def test_a_mark_is_plain_json_with_a_path_below_the_root(tmp_path: Path) -> None:
    hold(checkpoint(tmp_path, "g0001-a0001", "step-1"), name="a", until_s=9.5)
    (mark,) = (tmp_path / HOLDS).iterdir()
    assert json.loads(mark.read_text()) == {"v": 1, "path": "g0001-a0001/step-1", "until_s": 9.5}
