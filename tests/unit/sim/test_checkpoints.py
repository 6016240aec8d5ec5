"""Simulated checkpoints are torn, damaged and gone like real ones."""

from __future__ import annotations

import pytest

from airflow_llmsched.domain.checkpoint import Damaged, SavedBy, Sound, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.sim.checkpoints import SimCheckpoints
from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.sim.world import SimWorld


def checkpoints(*, resharding: bool = True) -> tuple[SimCheckpoints, VirtualClock]:
    clock = VirtualClock(50.0)
    return SimCheckpoints(SimWorld(clock), resharding=resharding), clock


def test_checkpoint_is_torn_until_its_save_has_finished() -> None:
    format_, clock = checkpoints()
    path = format_.begin_save("r", step=10, world_size=4)
    (torn,) = format_.scan("r")
    assert not torn.complete
    assert isinstance(format_.verify(torn, depth=VerifyDepth.LISTING), Damaged)
    assert format_.step_of(path) is None
    clock.sleep(3.0)
    format_.finish_save(path)
    (whole,) = format_.scan("r")
    assert whole.complete
    assert isinstance(format_.verify(whole, depth=VerifyDepth.CONTENT), Sound)
    assert format_.step_of(path) == 10


def test_scan_goes_from_the_highest_step_down_below_its_root_only() -> None:
    format_, _ = checkpoints()
    for root, step in (("r", 9000), ("r", 10000), ("r2", 1)):
        format_.finish_save(format_.begin_save(root, step=step, world_size=4))
    assert [ref.step for ref in format_.scan("r")] == [10000, 9000]
    assert list(format_.scan("absent")) == []


def test_saves_in_attempts_folders_are_found_from_the_root_and_of_one_step_the_latest_first() -> None:
    format_, _ = checkpoints()
    for root in ("r", "r/g0001-a0002", "r/g0001-a0010"):
        format_.finish_save(format_.begin_save(root, step=10, world_size=4))
    found = [(ref.path, ref.saved_by) for ref in format_.scan("r")]
    assert found == [
        ("r/g0001-a0010/step-00000010", SavedBy(generation=1, attempt=10)),
        ("r/g0001-a0002/step-00000010", SavedBy(generation=1, attempt=2)),
        ("r/step-00000010", None),
    ]


def test_damage_shows_on_reading_and_not_on_listing_and_a_new_save_heals_it() -> None:
    format_, _ = checkpoints()
    path = format_.begin_save("r", step=10, world_size=4)
    format_.finish_save(path)
    format_.damage(path)
    (ref,) = format_.scan("r")
    assert ref.complete
    assert isinstance(format_.verify(ref, depth=VerifyDepth.LISTING), Sound)
    assert isinstance(format_.verify(ref, depth=VerifyDepth.SIZES), Damaged)
    format_.finish_save(format_.begin_save("r", step=10, world_size=2))
    (ref,) = format_.scan("r")
    assert isinstance(format_.verify(ref, depth=VerifyDepth.CONTENT), Sound)


def test_removed_checkpoint_is_gone() -> None:
    format_, _ = checkpoints()
    path = format_.begin_save("r", step=10, world_size=4)
    format_.finish_save(path)
    (ref,) = format_.scan("r")
    format_.remove(path)
    assert list(format_.scan("r")) == []
    assert format_.verify(ref, depth=VerifyDepth.LISTING) == Damaged(reason="r/step-00000010: gone")


def test_format_without_resharding_needs_its_own_world_size() -> None:
    format_, _ = checkpoints(resharding=False)
    format_.finish_save(format_.begin_save("r", step=10, world_size=8))
    (ref,) = format_.scan("r")
    assert format_.can_resume(ref, ParallelLayout(dp=8)).ok
    refused = format_.can_resume(ref, ParallelLayout(dp=16))
    assert not refused.ok
    assert "8" in refused.reason


def test_unreadable_storage_is_an_error_for_as_long_as_it_lasts() -> None:
    format_, clock = checkpoints()
    format_.blind(for_s=10.0)
    with pytest.raises(CouldNotLookError):
        format_.scan("r")
    clock.sleep(10.0)
    assert list(format_.scan("r")) == []
