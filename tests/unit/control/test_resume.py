"""Which checkpoint a launch resumes from."""

from __future__ import annotations

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.control.resume import CheckpointShelf
from airflow_llmsched.domain.checkpoint import CheckpointRef, SavedBy, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.errors import CouldNotLookError
from tests.support.sim_house import ROOT, SimHouse

LAYOUT = ParallelLayout(dp=2)
ANY = CheckpointLine()
FIRST, SECOND = SavedBy(generation=1, attempt=1), SavedBy(generation=1, attempt=2)


def house_with(*steps: int, torn: tuple[int, ...] = (), resharding: bool = True, world_size: int = 2) -> SimHouse:
    house = SimHouse(resharding=resharding)
    for step in steps:
        path = house.checkpoints.begin_save(ROOT, step=step, world_size=world_size)
        if step not in torn:
            house.checkpoints.finish_save(path)
    return house


def shelf(house: SimHouse, depth: VerifyDepth = VerifyDepth.CONTENT) -> CheckpointShelf:
    return CheckpointShelf(house.checkpoints, ROOT, depth)


def choose(
    house: SimHouse, *, line: CheckpointLine = ANY, newest: CheckpointRef | None = None, required: bool = False
) -> object:
    return shelf(house).choose(LAYOUT, line=line, newest=newest, required=required, at_s=1.0)


def test_highest_step_wins_by_number() -> None:
    chosen = choose(house_with(9000, 10000))
    assert isinstance(chosen, ev.CheckpointChosen)
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, chosen.note, chosen.skipped) == (10000, "", ())


def test_torn_and_damaged_ones_are_passed_over_with_their_reasons() -> None:
    house = house_with(10, 20, 30, torn=(30,))
    house.checkpoints.damage(f"{ROOT}/step-00000020")
    chosen = choose(house)
    assert isinstance(chosen, ev.CheckpointChosen)
    assert chosen.checkpoint is not None
    assert chosen.checkpoint.step == 10
    assert [each.step for each in chosen.skipped] == [30, 20]
    assert "step 30: no seal" in chosen.note
    assert "step 20" in chosen.note


def test_shallow_look_cannot_see_damage() -> None:
    house = house_with(10)
    house.checkpoints.damage(f"{ROOT}/step-00000010")
    assert shelf(house, VerifyDepth.LISTING).newest_sound(ANY) is not None
    assert shelf(house).newest_sound(ANY) is None


def test_first_launch_starts_at_step_0_and_says_so() -> None:
    """Field case G6, without require_resume."""
    for house in (house_with(), house_with(10, torn=(10,))):
        chosen = choose(house)
        assert isinstance(chosen, ev.CheckpointChosen)
        assert chosen.checkpoint is None
        assert "starts at step 0" in chosen.note


def test_required_resume_is_refused_with_what_was_found() -> None:
    """Field case G6, with require_resume."""
    missing = choose(house_with(10, torn=(10,)), required=True)
    assert isinstance(missing, ev.CheckpointMissing)
    assert "require_resume" in missing.reason
    assert "step-00000010" in missing.reason


def test_checkpoint_that_was_seen_before_must_not_be_forgotten() -> None:
    known = CheckpointRef(step=40, path=f"{ROOT}/step-00000040", format="sim")
    missing = choose(house_with(), newest=known)
    assert isinstance(missing, ev.CheckpointMissing)
    assert "step 40" in missing.reason


def test_layout_that_cannot_load_it_is_told_why() -> None:
    """Field case G16."""
    missing = choose(house_with(10, resharding=False, world_size=8), required=True)
    assert isinstance(missing, ev.CheckpointMissing)
    assert "saved by 8 ranks, cannot be loaded by 2" in missing.reason


def test_storage_that_cannot_be_read_is_not_empty() -> None:
    house = house_with(10)
    house.checkpoints.blind(for_s=10.0)
    with pytest.raises(CouldNotLookError):
        choose(house)


def test_each_checkpoint_is_verified_once() -> None:
    house = house_with(10)
    kept = shelf(house)
    assert kept.newest_sound(ANY) is not None
    house.checkpoints.damage(f"{ROOT}/step-00000010")
    assert kept.newest_sound(ANY) is not None


def test_newer_unsound_ones_are_listed() -> None:
    house = house_with(10, 20, 30, torn=(30,))
    house.checkpoints.damage(f"{ROOT}/step-00000020")
    reasons = shelf(house).unsound(ANY, above_step=10)
    assert len(reasons) == 2
    assert "no seal" in reasons[0]
    assert "checksum" in reasons[1]


def house_with_a_zombies_save() -> tuple[SimHouse, CheckpointLine]:
    """The first attempt saved 10, and 20 after the second had gone on from 10."""
    house = SimHouse()
    for step in (10, 20):
        root = f"{ROOT}/{FIRST.folder}"
        house.checkpoints.finish_save(house.checkpoints.begin_save(root, step=step, world_size=2))
    line = CheckpointLine().launched(FIRST, step=0, own_folder=True)
    return house, line.launched(SECOND, step=10, own_folder=True)


def test_late_save_of_an_earlier_attempt_is_passed_over_and_named() -> None:
    house, line = house_with_a_zombies_save()
    chosen = choose(house, line=line)
    assert isinstance(chosen, ev.CheckpointChosen)
    assert chosen.checkpoint is not None
    assert (chosen.checkpoint.step, chosen.checkpoint.saved_by) == (10, FIRST)
    assert "step 20: not in the run's line: g0001-a0002 took over from g0001-a0001 at step 10" in chosen.note
    newest = shelf(house).newest_sound(line)
    assert newest is not None
    assert newest[0].step == 10
    assert shelf(house).unsound(line, above_step=10) == ()


def test_late_save_is_no_way_out_when_nothing_else_is_left() -> None:
    house, line = house_with_a_zombies_save()
    house.checkpoints.damage(f"{ROOT}/{FIRST.folder}/step-00000010")
    missing = choose(house, line=line, required=True)
    assert isinstance(missing, ev.CheckpointMissing)
    assert "took over" in missing.reason
