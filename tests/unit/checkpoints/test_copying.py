from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_llmsched.agent import seal
from airflow_llmsched.checkpoints.copying import copy_checkpoint
from airflow_llmsched.effect_points import Side
from airflow_llmsched.errors import DataError, StoreError
from tests.support.crashing import Gun, Shot, WorkerDied, listening


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sealed checkpoint of two shards and an empty one, in a folder of its own."""
    folder = tmp_path / "a" / "g0001-a0001" / "step-00000010"
    (folder / "deep").mkdir(parents=True)
    (folder / "shard-0").write_bytes(os.urandom(300_000))
    (folder / "deep" / "shard 1").write_bytes(os.urandom(1000))
    (folder / "empty").touch()
    seal.seal(folder, step=10, world_size=2)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "b" / "g0001-a0001" / "step-00000010"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_is_the_same_byte_for_byte_and_leaves_nothing_else(source: Path, target: Path) -> None:
    num_bytes = copy_checkpoint(str(source), str(target))
    assert files(target) == files(source)
    assert num_bytes == sum(map(len, files(source).values()))
    assert [path.name for path in target.parent.iterdir()] == ["step-00000010"]


def test_what_is_there_already_is_not_copied_again(source: Path, target: Path) -> None:
    copy_checkpoint(str(source), str(target))
    before = target.stat().st_ino
    assert copy_checkpoint(str(source), str(target)) == 0
    assert target.stat().st_ino == before


@pytest.mark.parametrize("harm", ["torn", "damaged", "another"])
def test_what_stands_in_the_way_and_is_not_the_same_is_replaced(source: Path, target: Path, harm: str) -> None:
    copy_checkpoint(str(source), str(target))
    if harm == "torn":
        (target / seal.SEAL_NAME).unlink()
    elif harm == "damaged":
        (target / "shard-0").write_bytes(b"x" * 300_000)
    else:
        (target / "shard-0").write_bytes(b"other")
        seal.seal(target, step=10, world_size=2)
    assert copy_checkpoint(str(source), str(target)) > 0
    assert files(target) == files(source)


def test_a_source_that_contradicts_its_seal_is_not_brought_anywhere(source: Path, target: Path) -> None:
    (source / "shard-0").write_bytes(b"x" * 300_000)
    with pytest.raises(DataError, match="shard-0"):
        copy_checkpoint(str(source), str(target))
    assert list(target.parent.iterdir()) == []


def test_a_seal_that_nobody_can_read_is_bad_data(source: Path, target: Path) -> None:
    (source / seal.SEAL_NAME).write_text("{")
    with pytest.raises(DataError, match="choose an older checkpoint"):
        copy_checkpoint(str(source), str(target))


def test_a_checkpoint_without_a_seal_is_copied_by_its_sizes(source: Path, target: Path) -> None:
    (source / seal.SEAL_NAME).unlink()
    copy_checkpoint(str(source), str(target))
    assert files(target) == files(source)


def test_a_source_that_is_not_there_or_a_target_that_cannot_be_written_can_be_tried_again(
    source: Path, target: Path
) -> None:
    with pytest.raises(StoreError, match="try again"):
        copy_checkpoint(f"{source}-gone", str(target))
    target.parent.parent.mkdir(parents=True)
    target.parent.touch()
    with pytest.raises(StoreError, match="try again"):
        copy_checkpoint(str(source), str(target))


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize(
    "point", ["checkpoint.copy", "checkpoint.copy.file", "checkpoint.copy.publish", "checkpoint.copy.tidy"]
)
def test_a_worker_that_dies_leaves_the_whole_copy_or_none_and_the_next_one_makes_it(
    source: Path, target: Path, point: str, side: Side
) -> None:
    def die() -> None:
        raise WorkerDied

    gun = Gun(Shot(point, side, 1), die)
    with listening(gun), pytest.raises(WorkerDied):
        copy_checkpoint(str(source), str(target))
    assert not target.exists() or files(target) == files(source)
    copy_checkpoint(str(source), str(target))
    assert files(target) == files(source)


def test_what_dead_workers_left_is_cleared_away_after_hours_and_what_is_new_is_not(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True)
    old, new = (target.parent / f".llmsched-copy-{name}" for name in ("old", "new"))
    for each in (old, new):
        each.mkdir()
    os.utime(old, (time.time() - 7 * 3600, time.time() - 7 * 3600))
    copy_checkpoint(str(source), str(target))
    assert not old.exists()
    assert new.exists()
