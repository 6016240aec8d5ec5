from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llmsched.agent.seal import SEAL_NAME, read_seal
from airflow_llmsched.errors import DataError
from airflow_llmsched.trainers.folders import STATE_NAME, CheckpointFolders, TrainerState, damage, read_state


def folders(
    root: Path, *, generation: int = 1, attempt: int = 1, keep_last: int = 2, resumed_from: Path | None = None
) -> CheckpointFolders:
    return CheckpointFolders(
        str(root),
        generation=generation,
        attempt=attempt,
        keep_last=keep_last,
        resumed_from=str(resumed_from) if resumed_from else None,
    )


def save(where: CheckpointFolders, step: int, content: bytes = b"weights") -> Path:
    where.prepare(step)
    (where.unfinished(step) / "__0_0.distcp").write_bytes(content)
    where.publish(state(step), world_size=2)
    return where.finished(step)


def state(step: int) -> TrainerState:
    return TrainerState(step=step, num_tokens_seen=step * 10, dataset_digest="d", settings={"seed": 1})


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_published_checkpoint_is_sealed_whole_and_says_how_far_it_is(tmp_path: Path) -> None:
    path = save(folders(tmp_path), 7)

    assert path == tmp_path / "step-00000007"
    assert damage(path) is None
    assert read_state(path) == state(7)
    seal = read_seal(path)
    assert seal is not None
    assert (seal.step, seal.world_size) == (7, 2)
    assert {file.path for file in seal.files} == {"__0_0.distcp", STATE_NAME}


def test_an_unfinished_save_is_not_seen_as_a_checkpoint(tmp_path: Path) -> None:
    where = folders(tmp_path)
    where.prepare(7)

    assert not where.finished(7).exists()
    assert [name for name in names(tmp_path) if not name.startswith(".")] == []


def test_what_a_killed_save_of_the_same_step_left_does_not_get_into_the_next(tmp_path: Path) -> None:
    where = folders(tmp_path)
    where.prepare(7)
    (where.unfinished(7) / "__9_0.distcp").write_bytes(b"left over")

    path = save(where, 7)

    assert not (path / "__9_0.distcp").exists()
    assert names(tmp_path) == ["step-00000007"]


def test_a_torn_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    torn = tmp_path / "step-00000007"
    torn.mkdir()
    (torn / "__0_0.distcp").write_bytes(b"half")

    path = save(folders(tmp_path), 7)

    assert damage(path) is None
    assert (path / "__0_0.distcp").read_bytes() == b"weights"


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    path = save(folders(tmp_path), 7)
    (path / "__0_0.distcp").write_bytes(b"WEIGHTS")

    save(folders(tmp_path, attempt=2), 7)

    assert damage(path) is None


def test_a_sound_checkpoint_of_the_same_step_is_never_replaced(tmp_path: Path) -> None:
    path = save(folders(tmp_path), 7, b"first")

    save(folders(tmp_path, attempt=2), 7, b"second")

    assert (path / "__0_0.distcp").read_bytes() == b"first"
    assert names(tmp_path) == ["step-00000007"]


def test_only_the_newest_are_kept_by_number_not_by_text(tmp_path: Path) -> None:
    where = folders(tmp_path, keep_last=2)
    for step in (9_000, 99_999_999, 100_000_000):
        save(where, step)

    where.prune(saved_step=100_000_000)

    assert names(tmp_path) == ["step-100000000", "step-99999999"]


def test_the_checkpoint_resumed_from_is_kept(tmp_path: Path) -> None:
    first = save(folders(tmp_path), 1)
    where = folders(tmp_path, attempt=2, keep_last=1, resumed_from=first)
    for step in (2, 3):
        save(where, step)

    where.prune(saved_step=3)

    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_torn_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    where = folders(tmp_path, keep_last=1)
    whole = save(where, 1)
    (tmp_path / "step-00000002").mkdir()

    where.prune(saved_step=1)

    assert damage(whole) is None


def test_damaged_checkpoints_that_were_passed_over_do_not_crowd_out_new_ones(tmp_path: Path) -> None:
    """Step 9 is sealed but damaged, so training went on from step 3: with it, each new save was deleted at once."""
    used = save(folders(tmp_path), 3)
    damaged = save(folders(tmp_path), 9)
    (damaged / "__0_0.distcp").write_bytes(b"WEIGHTS")
    where = folders(tmp_path, attempt=2, keep_last=1, resumed_from=used)
    for step in (4, 5):
        save(where, step)
        where.prune(saved_step=step)
    assert names(tmp_path) == ["step-00000003", "step-00000005", "step-00000009"]
    save(where, 9)
    where.prune(saved_step=9)
    assert names(tmp_path) == ["step-00000003", "step-00000009"]
    assert damage(tmp_path / "step-00000009") is None


def test_checkpoint_whose_seal_cannot_be_read_neither_stops_the_training_nor_is_deleted(tmp_path: Path) -> None:
    where = folders(tmp_path, keep_last=1)
    (save(where, 1) / SEAL_NAME).unlink()
    (where.finished(1) / SEAL_NAME).mkdir()
    save(where, 2)
    where.prune(saved_step=2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_leftovers_of_older_attempts_go_and_those_of_newer_ones_stay(tmp_path: Path) -> None:
    for generation, attempt in ((1, 9), (2, 1), (2, 3), (3, 1)):
        folders(tmp_path, generation=generation, attempt=attempt).prepare(5)
    (tmp_path / ".discarded-by-a-killed-process").mkdir()
    (tmp_path / "notes.txt").write_text("not ours")

    folders(tmp_path, generation=2, attempt=2).prune(saved_step=5)

    assert names(tmp_path) == [
        ".saving-step-00000005-g2-a3",
        ".saving-step-00000005-g3-a1",
        "notes.txt",
    ]


def test_damage_is_told_by_file_and_seen_by_the_reader_whose_share_it_is(tmp_path: Path) -> None:
    path = save(folders(tmp_path), 7)
    (path / "__0_0.distcp").write_bytes(b"WEIGHTS")

    problems = [damage(path, part=part, num_parts=2) for part in range(2)]

    assert damage(path) is not None
    assert [problem for problem in problems if problem] == [damage(path)]
    assert "__0_0.distcp" in str(damage(path))


@pytest.mark.parametrize(
    ("kind", "words"), [("absent", "no such directory"), ("unsealed", "no seal"), ("file", "not a")]
)
def test_what_is_no_finished_checkpoint_is_told_apart(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "step-00000001"
    if kind == "unsealed":
        path.mkdir()
    if kind == "file":
        path.write_text("")

    assert words in str(damage(path))


def test_a_torn_seal_is_damage(tmp_path: Path) -> None:
    path = save(folders(tmp_path), 7)
    (path / SEAL_NAME).write_text("{")

    assert SEAL_NAME in str(damage(path))


@pytest.mark.parametrize("text", [None, "", "[]", '{"v": 1}', '{"v": 1, "step": 1, "other": 2}'])
def test_a_checkpoint_of_another_trainer_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / STATE_NAME).write_text(text)

    with pytest.raises(DataError, match="was not saved by this trainer"):
        read_state(tmp_path)


def test_a_checkpoint_of_another_version_is_refused_by_version(tmp_path: Path) -> None:
    path = save(folders(tmp_path), 7)
    plain = json.loads((path / STATE_NAME).read_text())
    (path / STATE_NAME).write_text(json.dumps(plain | {"v": 2}))

    with pytest.raises(DataError, match="version 2"):
        read_state(path)


def test_a_claimed_folder_is_there_before_anything_is_saved(tmp_path: Path) -> None:
    where = folders(tmp_path / "g0001-a0002", attempt=2)
    where.claim()
    where.claim()
    assert names(tmp_path) == ["g0001-a0002"]


def test_two_attempts_save_the_same_step_in_folders_of_their_own(tmp_path: Path) -> None:
    first = save(folders(tmp_path / "g0001-a0001"), 7, b"first")
    second = save(folders(tmp_path / "g0001-a0002", attempt=2), 7, b"second")
    assert (first / "__0_0.distcp").read_bytes() == b"first"
    assert (second / "__0_0.distcp").read_bytes() == b"second"


def test_pruning_counts_across_the_folders_of_attempts(tmp_path: Path) -> None:
    first = folders(tmp_path / "g0001-a0001")
    for step in (1, 2, 3):
        save(first, step)
    second = folders(tmp_path / "g0001-a0002", attempt=2, keep_last=2, resumed_from=first.finished(3))
    save(second, 4)
    second.prune(saved_step=4)
    assert (names(first.root), names(second.root)) == (["step-00000003"], ["step-00000004"])
