from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.inspection import Inventory
from airflow_llmsched.checkpoints.scan import Torn
from airflow_llmsched.checkpoints.step_format import StepFormat
from airflow_llmsched.domain.checkpoint import CheckpointRef, Compatibility, Damaged, Sound, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.registry import AdapterGroup, load


class OneFile(StepFormat):
    """A checkpoint is a file ``ranks`` that holds the number of ranks."""

    name = "one_file"
    step_name = re.compile(r"at-([0-9]+)")

    def take_stock(self, directory: Path, step: int, depth: VerifyDepth) -> Inventory:
        path = directory / "ranks"
        if not path.exists():
            raise Torn("ranks is missing")
        return Inventory(digest=str(step), num_bytes=path.stat().st_size, world_size=None, saved_at_s=None)

    def compatibility(self, directory: Path, *, layout: ParallelLayout) -> Compatibility:
        saved = int((directory / "ranks").read_text())
        return Compatibility(ok=saved == layout.world_size, reason=f"saved by {saved}")


@pytest.fixture
def ref(tmp_path: Path) -> CheckpointRef:
    (tmp_path / "at-7").mkdir()
    (tmp_path / "at-7" / "ranks").write_text("4")
    (ref,) = OneFile().scan(str(tmp_path))
    return ref


def test_two_answers_about_one_directory_make_a_whole_format(ref: CheckpointRef) -> None:
    assert (ref.step, ref.format, ref.complete) == (7, "one_file", True)
    sound = Sound(depth=VerifyDepth.SIZES, num_bytes=1, digest="7")
    assert OneFile().verify(ref, depth=VerifyDepth.SIZES) == sound
    assert OneFile().can_resume(ref, ParallelLayout(dp=4)).ok
    assert OneFile().can_resume(ref, ParallelLayout(dp=2)) == Compatibility(ok=False, reason="saved by 4")


def test_what_is_torn_is_damaged_and_not_weighed(ref: CheckpointRef, tmp_path: Path) -> None:
    (tmp_path / "at-7" / "ranks").unlink()
    (torn,) = OneFile().scan(str(tmp_path))
    assert torn.torn_reason == "ranks is missing"
    assert OneFile().verify(ref, depth=VerifyDepth.LISTING) == Damaged(reason="ranks is missing")
    assert not OneFile().can_resume(torn, ParallelLayout(dp=4)).ok


@pytest.mark.parametrize("name", ["dcp", "hf_trainer"])
def test_the_shipped_formats_are_of_this_shape(name: str) -> None:
    assert isinstance(load(AdapterGroup.CHECKPOINT_FORMATS, name)(), StepFormat)
