from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent.seal import read_seal, seal
from airflow_llmsched.checkpoints.inspection import Inventory, check_seal, inspect, modified_at_s, scan_steps, weigh
from airflow_llmsched.checkpoints.scan import Torn
from airflow_llmsched.domain.checkpoint import CheckpointRef, Compatibility, Damaged, Sound, VerifyDepth
from airflow_llmsched.errors import CouldNotLookError

STEP = re.compile(r"step-([0-9]+)")
WHOLE = Inventory(digest="d", num_bytes=7, world_size=2, saved_at_s=1.5)


def take_stock(directory: Path, step: int, depth: VerifyDepth) -> Inventory:
    """Stands for a format: steps 1 and 2 are told apart by number."""
    if step == 1:
        raise Torn("shard is missing")
    if step == 2:
        raise FileNotFoundError
    if step == 3:
        raise CouldNotLookError("no disk")
    return WHOLE


def scan(root: Path, *steps: int) -> Iterator[CheckpointRef]:
    for step in steps:
        (root / f"step-{step}").mkdir()
    return scan_steps(str(root), name_pattern=STEP, format_name="f", take_stock=take_stock)


def test_each_step_becomes_a_reference_with_what_its_format_found(tmp_path: Path) -> None:
    newest, older = scan(tmp_path, 9, 1)
    assert newest == CheckpointRef(
        step=9, path=str(tmp_path / "step-9"), format="f", world_size=2, saved_at_s=1.5, torn_reason=None
    )
    assert (older.step, older.torn_reason, older.world_size) == (1, "shard is missing", None)


def test_a_directory_that_vanished_is_left_out(tmp_path: Path) -> None:
    assert [ref.step for ref in scan(tmp_path, 9, 2, 1)] == [9, 1]


def test_storage_that_fails_in_mid_scan_is_an_error_after_what_was_seen(tmp_path: Path) -> None:
    refs = scan(tmp_path, 9, 3)
    assert next(refs).step == 9
    with pytest.raises(CouldNotLookError, match="no disk"):
        next(refs)


def test_a_directory_that_its_name_tears_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "tmp-step-3").mkdir()
    (ref,) = scan(tmp_path)
    assert "temporary" in str(ref.torn_reason)


def test_a_verdict_says_its_depth_and_damage_names_its_cause(tmp_path: Path) -> None:
    def verdict(step: int) -> object:
        ref = CheckpointRef(step=step, path=str(tmp_path), format="f")
        return inspect(ref, depth=VerifyDepth.SIZES, take_stock=take_stock)

    assert verdict(9) == Sound(depth=VerifyDepth.SIZES, num_bytes=7, digest="d")
    assert verdict(1) == Damaged(reason="shard is missing")
    assert verdict(2) == Damaged(reason=f"{tmp_path} is missing")
    with pytest.raises(CouldNotLookError):
        verdict(3)


def test_only_a_whole_checkpoint_is_judged_for_resuming(tmp_path: Path) -> None:
    def judge(directory: Path) -> Compatibility:
        take_stock(directory, int(directory.name), VerifyDepth.LISTING)
        return Compatibility(ok=True, reason="fits")

    def weighed(step: int, torn_reason: str | None = None) -> Compatibility:
        return weigh(CheckpointRef(step=step, path=f"{tmp_path}/{step}", format="f", torn_reason=torn_reason), judge)

    assert weighed(9) == Compatibility(ok=True, reason="fits")
    assert weighed(9, "cut short") == Compatibility(ok=False, reason="cut short")
    assert weighed(1) == Compatibility(ok=False, reason="shard is missing")
    assert weighed(2) == Compatibility(ok=False, reason=f"{tmp_path}/2 is gone")
    with pytest.raises(CouldNotLookError):
        weighed(3)


def test_a_seal_of_another_step_or_with_another_size_tears(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    seal(tmp_path, step=5, world_size=3, saved_at_s=2.5)
    found = read_seal(tmp_path)
    assert found
    check_seal(tmp_path, found, step=5, depth=VerifyDepth.CONTENT)
    assert Inventory.of_seal(found) == Inventory(digest=found.digest, num_bytes=2, world_size=3, saved_at_s=2.5)
    with pytest.raises(Torn, match="of step 5, the directory of step 6"):
        check_seal(tmp_path, found, step=6, depth=VerifyDepth.LISTING)
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(Torn, match="a has 1 bytes"):
        check_seal(tmp_path, found, step=5, depth=VerifyDepth.SIZES)


def test_the_time_of_a_file_is_read_and_a_missing_one_tears(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert modified_at_s(tmp_path, "a") == (tmp_path / "a").stat().st_mtime
    with pytest.raises(Torn, match="b is missing"):
        modified_at_s(tmp_path, "b")
