from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.bringing import Bringer
from airflow_llmsched.control.places import CheckpointPlace, CheckpointPlaces
from airflow_llmsched.control.resume import CheckpointShelf
from airflow_llmsched.domain.checkpoint import CheckpointRef, VerifyDepth
from airflow_llmsched.errors import CouldNotLookError, DataError, StoreError
from tests.support.sim_house import SimHouse, plan_of

ON_A, ON_B, ON_C = plan_of(("a/n0", 2)), plan_of(("b/n0", 2)), plan_of(("c/n0", 2))


class House:
    """Clusters ``a`` and ``c`` share a storage, ``b`` has another. Copying takes 3 s."""

    def __init__(self) -> None:
        self.house = SimHouse()
        self.copied: list[tuple[str, str]] = []
        shared = {"storage": "scratch", "root": "mem/scratch/run"}
        self.places = CheckpointPlaces(
            "mem/own",
            {
                "a": CheckpointPlace(node_root="/scratch/run", **shared),
                "b": CheckpointPlace(root="mem/project/run", node_root="/project/run", storage="project"),
                "c": CheckpointPlace(node_root="/elsewhere/run", **shared),
            },
        )
        self.shelf = CheckpointShelf(self.house.checkpoints, self.places, VerifyDepth.CONTENT)
        self.bringer = Bringer(self.places, shelf=self.shelf, copy=self.copy, clock=self.house.clock)

    def copy(self, source: str, target: str) -> int:
        self.copied.append((source, target))
        self.house.clock.sleep(3.0)
        self.house.checkpoints.copy(source, target)
        return 5 * 2**20

    def saved(self, root: str) -> CheckpointRef:
        path = self.house.checkpoints.begin_save(f"{root}/g0001-a0001", step=10, world_size=2)
        self.house.checkpoints.finish_save(path)
        return next(iter(self.house.checkpoints.scan(root)))

    def chosen(self, ref: CheckpointRef | None, note: str = "") -> ev.CheckpointChosen:
        return ev.CheckpointChosen(at_s=self.house.clock.now_s(), checkpoint=ref, note=note)


def test_a_checkpoint_is_copied_to_where_the_next_cluster_reads_and_the_note_says_how_long_it_took() -> None:
    house = House()
    ref = house.saved("mem/scratch/run")
    began_s = house.house.clock.now_s()
    brought = house.bringer.bring(house.chosen(ref, "resumes at step 10"), ON_B)
    assert brought.checkpoint is not None
    assert brought.checkpoint.path == "mem/project/run/g0001-a0001/step-00000010"
    assert brought.checkpoint.saved_by == ref.saved_by
    assert brought.at_s == began_s + 3.0
    assert brought.note == "resumes at step 10; brought from scratch to project: 5.0 MiB in 3.0 s"


def test_clusters_that_share_a_storage_need_no_copy() -> None:
    house = House()
    chosen = house.chosen(house.saved("mem/scratch/run"))
    assert house.bringer.bring(chosen, ON_A) == house.bringer.bring(chosen, ON_C) == chosen
    assert house.copied == []


def test_where_there_is_nothing_to_resume_from_nothing_is_brought() -> None:
    house = House()
    chosen = house.chosen(None)
    assert house.bringer.bring(chosen, ON_B) == chosen


def test_a_run_that_began_outside_the_fleets_storages_is_brought_into_one() -> None:
    house = House()
    brought = house.bringer.bring(house.chosen(house.saved("mem/own")), ON_B)
    assert "brought from the run's own folder to project" in brought.note


def test_a_copy_that_does_not_hold_is_no_checkpoint_until_it_does() -> None:
    house = House()
    ref = house.saved("mem/scratch/run")
    target = "mem/project/run/g0001-a0001/step-00000010"
    house.house.checkpoints.damage(target, "cut short")
    with pytest.raises(StoreError, match="cut short"):
        house.bringer.bring(house.chosen(ref), ON_B)
    house.house.checkpoints._damage.clear()
    assert house.bringer.bring(house.chosen(ref), ON_B).checkpoint is not None


def test_a_checkpoint_that_was_spoilt_while_it_was_copied_is_looked_for_again() -> None:
    house = House()

    def spoilt(source: str, target: str) -> int:
        raise DataError(f"{source} does not agree with its seal")

    bringer = Bringer(house.places, shelf=house.shelf, copy=spoilt, clock=house.house.clock)
    with pytest.raises(StoreError, match="seal"):
        bringer.bring(house.chosen(house.saved("mem/scratch/run")), ON_B)


def test_a_checkpoint_in_a_storage_that_was_taken_out_of_the_file_is_not_lost_silently() -> None:
    house = House()
    with pytest.raises(CouldNotLookError, match="no storage of the fleet file any more"):
        house.bringer.bring(house.chosen(house.saved("mem/gone/run")), ON_B)


def test_nothing_is_copied_to_a_storage_that_is_not_mounted(tmp_path: Path) -> None:
    house = House()
    away = CheckpointPlace(root="mem/away/run", node_root="/away/run", storage="away", mount=str(tmp_path / "away"))
    places = CheckpointPlaces("mem/own", {"b": away})
    bringer = Bringer(places, shelf=house.shelf, copy=house.copy, clock=house.house.clock)
    with pytest.raises(CouldNotLookError, match="storage away is not mounted"):
        bringer.bring(house.chosen(house.saved("mem/own")), ON_B)
    assert house.copied == []
