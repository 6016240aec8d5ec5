from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.holds import hold
from airflow_llmsched.agent.retention import prune
from airflow_llmsched.agent.seal import SEAL_NAME, seal

NOW_S = 1000.0


def folder_of(root: Path, attempt: tuple[int, int]) -> Path:
    return root / wire.attempt_folder(generation=attempt[0], attempt=attempt[1])


def save(folder: Path, step: int, *, sealed: bool = True, name: str = "step-{:08d}") -> Path:
    path = folder / name.format(step)
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"w")
    if sealed:
        seal(path, step=step, world_size=1)
    return path


def pruned(
    root: Path,
    attempt: tuple[int, int],
    saved_step: int,
    *,
    keep_last: int = 2,
    resumed_from: Path | None = None,
    own_folder: bool = True,
) -> list[str]:
    """Prune and return what is left, relative to the root."""
    prune(
        folder_of(root, attempt) if own_folder else root,
        attempt=attempt,
        keep_last=keep_last,
        saved_step=saved_step,
        resumed_from=resumed_from,
        now_s=NOW_S,
    )
    return left(root)


def left(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_dir() and path.name.startswith(("step-", "checkpoint-"))
    )


def test_the_newest_of_all_attempts_are_kept_by_number(tmp_path: Path) -> None:
    base = save(tmp_path, 90)  # from before attempts had folders
    old = save(folder_of(tmp_path, (1, 1)), 999)
    for step in (1000, 10_000, 100_000_000):
        save(folder_of(tmp_path, (1, 2)), step)
    kept = pruned(tmp_path, (1, 2), 100_000_000, keep_last=2, resumed_from=old)
    assert kept == ["g0001-a0001/step-00000999", "g0001-a0002/step-00010000", "g0001-a0002/step-100000000"]
    assert not base.exists()


def test_one_listing_is_enough_for_the_trainers_of_others(tmp_path: Path) -> None:
    old = save(folder_of(tmp_path, (1, 1)), 5, name="checkpoint-{}")
    new = save(folder_of(tmp_path, (1, 2)), 10, name="checkpoint-{}")
    save(folder_of(tmp_path, (1, 1)), 4, name="checkpoint-{}")
    assert pruned(tmp_path, (1, 2), 10, keep_last=1, resumed_from=old) == [
        f"g0001-a0001/{old.name}",
        f"g0001-a0002/{new.name}",
    ]


def test_what_is_held_stays(tmp_path: Path) -> None:
    first = save(folder_of(tmp_path, (1, 1)), 1)
    save(folder_of(tmp_path, (1, 1)), 2)
    hold(first, name="evaluation", until_s=NOW_S + 1)
    third = save(folder_of(tmp_path, (1, 2)), 3)
    assert pruned(tmp_path, (1, 2), 3, keep_last=1, resumed_from=tmp_path / "x" / "step-2") == [
        f"g0001-a0001/{first.name}",
        f"g0001-a0002/{third.name}",
    ]


def test_nothing_is_deleted_while_nobody_can_tell_what_is_held(tmp_path: Path) -> None:
    (tmp_path / ".held").symlink_to(".held")
    for step in (1, 2, 3):
        save(folder_of(tmp_path, (1, 1)), step)
    with pytest.raises(OSError, match="symbolic links"):
        pruned(tmp_path, (1, 1), 3, keep_last=1)
    assert len(left(tmp_path)) == 3


def test_attempt_that_sees_a_later_one_deletes_nothing(tmp_path: Path) -> None:
    """It has been taken for dead, and the later one may be reading what it would delete."""
    for step in (1, 2, 3):
        save(folder_of(tmp_path, (1, 1)), step)
    folder_of(tmp_path, (2, 1)).mkdir()
    assert len(pruned(tmp_path, (1, 1), 3, keep_last=1)) == 3
    assert len(pruned(tmp_path, (1, 1), 3, keep_last=1, own_folder=False)) == 3


def test_what_an_earlier_attempt_has_above_the_takeover_goes_once_training_is_there_again(tmp_path: Path) -> None:
    """Damaged, torn, or saved late: nobody goes on from it, and nothing replaces it."""
    first = folder_of(tmp_path, (1, 1))
    used = save(first, 10)
    late, torn = save(first, 20), save(first, 30, sealed=False)
    save(folder_of(tmp_path, (1, 2)), 15)
    assert len(pruned(tmp_path, (1, 2), 15, keep_last=9, resumed_from=used)) == 4
    save(folder_of(tmp_path, (1, 2)), 25)
    pruned(tmp_path, (1, 2), 25, keep_last=9, resumed_from=used)
    assert (used.exists(), late.exists(), torn.exists()) == (True, False, True)
    save(folder_of(tmp_path, (1, 2)), 30)
    pruned(tmp_path, (1, 2), 30, keep_last=9, resumed_from=used)
    assert not torn.exists()


def test_what_an_earlier_attempt_has_above_the_takeover_does_not_crowd_out_what_counts(tmp_path: Path) -> None:
    first = folder_of(tmp_path, (1, 1))
    used = save(first, 10)
    for step in (40, 50, 60):
        save(first, step)
    for step in (15, 20):
        save(folder_of(tmp_path, (1, 2)), step)
        kept = pruned(tmp_path, (1, 2), step, keep_last=1, resumed_from=used)
        assert f"g0001-a0002/step-{step:08d}" in kept


def test_what_someone_put_into_the_root_above_all_steps_stays(tmp_path: Path) -> None:
    put = save(tmp_path, 500)
    save(folder_of(tmp_path, (1, 1)), 10)
    assert put.name in pruned(tmp_path, (1, 1), 10, keep_last=1)


def test_checkpoint_whose_name_tells_no_step_makes_it_careful(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(folder_of(tmp_path, (1, 1)), step)
    save(folder_of(tmp_path, (1, 2)), 4)
    assert len(pruned(tmp_path, (1, 2), 4, keep_last=1, resumed_from=tmp_path / "latest")) == 4


def test_emptied_folders_and_half_finished_saves_of_earlier_attempts_go(tmp_path: Path) -> None:
    for attempt in ((1, 1), (1, 2)):
        (folder_of(tmp_path, attempt) / ".saving-step-00000005-g1-a1").mkdir(parents=True)
        (folder_of(tmp_path, attempt) / ".discarded-x").mkdir()
    (folder_of(tmp_path, (1, 2)) / "notes.txt").write_text("not ours")
    save(folder_of(tmp_path, (1, 3)), 6)
    pruned(tmp_path, (1, 3), 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g0001-a0002", "g0001-a0003"]
    assert [path.name for path in folder_of(tmp_path, (1, 2)).iterdir()] == ["notes.txt"]


def test_one_that_is_read_and_that_the_run_left_behind_takes_no_place_of_those_to_go_on_from(tmp_path: Path) -> None:
    first = save(folder_of(tmp_path, (1, 1)), 1)
    left_behind = save(folder_of(tmp_path, (1, 1)), 2)
    hold(left_behind, name="evaluation", until_s=NOW_S + 1)
    second = save(folder_of(tmp_path, (1, 2)), 2)  # the second attempt went on from step 1
    third = save(folder_of(tmp_path, (1, 3)), 3)
    pruned(tmp_path, (1, 3), 3, keep_last=3, resumed_from=second)
    assert all(path.exists() for path in (first, left_behind, second, third))


def test_at_least_one_has_to_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_last is 0"):
        prune(tmp_path, attempt=(1, 1), keep_last=0, saved_step=1, resumed_from=None, now_s=NOW_S)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_attempts_did_the_line_keeps_its_newest_and_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A life of attempts that save, are taken over anywhere on their line, and prune after each save."""
    root = tmp_path_factory.mktemp("run")
    keep_last = data.draw(st.integers(1, 3))
    line: list[Path] = []  # the sealed checkpoints the run can go on from, oldest first, as far as they were kept
    reading: Path | None = None
    for number in range(1, data.draw(st.integers(2, 5)) + 1):
        resumed_from = data.draw(st.sampled_from(line[-2:])) if line else None
        line = line[: line.index(resumed_from) + 1] if resumed_from else []
        step = int(resumed_from.name.removeprefix("step-")) if resumed_from else 0
        for _ in range(data.draw(st.integers(0, 4))):
            step += data.draw(st.integers(1, 9))
            line.append(save(folder_of(root, (1, number)), step))
            if reading is None and data.draw(st.booleans()):
                reading = line[-1]
                hold(reading, name="evaluation", until_s=NOW_S + 1)
            pruned(root, (1, number), step, keep_last=keep_last, resumed_from=resumed_from)
            survivors = [path for path in line if (path / SEAL_NAME).exists()]
            assert line[-keep_last:] == survivors[-keep_last:]
            must_stay = {resumed_from, reading} - {None}
            assert all(path.exists() for path in must_stay if path)
            num_left = sum((path / SEAL_NAME).exists() for path in root.glob("*/step-*") if path in line)
            assert num_left <= keep_last + len(must_stay)
            line = survivors
    shutil.rmtree(root)
