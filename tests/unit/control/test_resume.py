"""Which checkpoint a launch resumes from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.control.places import CheckpointPlace, CheckpointPlaces
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
    return CheckpointShelf(house.checkpoints, CheckpointPlaces(ROOT, {}), depth)


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


AWAY, HERE = "mem/away/run", "mem/here/run"


class Storages:
    """Two storages beside the run's own folder, of which either can be away."""

    def __init__(self) -> None:
        self.checkpoints = SimHouse().checkpoints
        self.away: set[str] = set()
        self.asked: list[str] = []
        places = {name: CheckpointPlace(root=root, node_root=root) for name, root in (("a", AWAY), ("b", HERE))}
        self.shelf = CheckpointShelf(self, CheckpointPlaces(ROOT, places), VerifyDepth.CONTENT)
        self.name = "sim"
        self.verify, self.can_resume = self.checkpoints.verify, self.checkpoints.can_resume

    def scan(self, root: str) -> Iterator[CheckpointRef]:
        self.asked.append(root)
        if root in self.away:
            raise CouldNotLookError(f"{root} does not answer")
        return self.checkpoints.scan(root)

    def save(self, root: str, by: SavedBy, *steps: int) -> None:
        for step in steps:
            self.checkpoints.finish_save(
                self.checkpoints.begin_save(f"{root}/{by.folder}", step=step, world_size=LAYOUT.world_size)
            )

    def chosen(self, line: CheckpointLine) -> str | None:
        event = self.shelf.choose(LAYOUT, line=line, newest=None, required=False, at_s=1.0)
        assert isinstance(event, ev.CheckpointChosen)
        return event.checkpoint.path if event.checkpoint else None


def launched(by: SavedBy, root: str, *, step: int = 0, line: CheckpointLine = ANY) -> CheckpointLine:
    return line.launched(by, step=step, own_folder=True, root=root)


def test_newest_of_all_storages_is_chosen() -> None:
    storages = Storages()
    storages.save(HERE, FIRST, 10, 20)
    storages.save(AWAY, SECOND, 30)
    line = launched(SECOND, AWAY, step=20, line=launched(FIRST, HERE))
    assert storages.chosen(line) == f"{AWAY}/g0001-a0002/step-00000030"


def test_storage_of_the_last_launch_must_answer_before_anything_older_is_taken() -> None:
    storages = Storages()
    storages.save(HERE, FIRST, 10)
    storages.away = {AWAY}
    line = launched(SECOND, AWAY, step=10, line=launched(FIRST, HERE))
    with pytest.raises(CouldNotLookError, match="does not answer"):
        storages.chosen(line)
    with pytest.raises(CouldNotLookError, match="does not answer"):
        storages.shelf.newest_sound(line)


def test_no_other_storage_is_asked_while_the_last_launchs_has_what_it_went_on_from() -> None:
    storages = Storages()
    storages.save(AWAY, FIRST, 10)
    storages.save(HERE, FIRST, 10)  # as it was brought here
    storages.away = {AWAY}
    line = launched(SECOND, HERE, step=10, line=launched(FIRST, AWAY))
    assert storages.chosen(line) == f"{HERE}/g0001-a0001/step-00000010"
    found = storages.shelf.newest_sound(line)
    assert found is not None
    assert found[0].step == 10
    assert set(storages.asked) == {HERE}


def test_a_damaged_copy_sends_the_run_back_to_where_it_was_made_from() -> None:
    storages = Storages()
    storages.save(AWAY, FIRST, 10)
    storages.save(HERE, FIRST, 10)
    storages.checkpoints.damage(f"{HERE}/g0001-a0001/step-00000010")
    line = launched(SECOND, HERE, step=10, line=launched(FIRST, AWAY))
    assert storages.chosen(line) == f"{AWAY}/g0001-a0001/step-00000010"


def test_a_run_that_was_never_launched_waits_for_no_storage() -> None:
    storages = Storages()
    storages.away = {AWAY}
    assert storages.chosen(ANY) is None


def test_a_storage_that_is_not_mounted_is_not_an_empty_one(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    place = CheckpointPlace(root=f"{mount}/run", node_root="/x/run", storage="disk", mount=str(mount))
    places = CheckpointPlaces(ROOT, {"a": place})
    shelf = CheckpointShelf(SimHouse().checkpoints, places, VerifyDepth.CONTENT)
    line = launched(FIRST, place.root)
    with pytest.raises(CouldNotLookError, match="storage disk is not mounted"):
        shelf.newest_sound(line)
    mount.mkdir()
    assert shelf.newest_sound(line) is None
