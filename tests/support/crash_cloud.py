"""The crash harness on clouds: a run that rents, keeps and gives back, shot once, and what follows.

All of it under a virtual clock in one process, as in ``crash_sim``; adapters speak HTTP to servers of that process.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import pytest

from airflow_llmsched.errors import LlmschedError
from tests.support.crash_combos import Combination, Findings
from tests.support.crashing import Gun, Recorder, Shot, WorkerDied, listening
from tests.support.lease_house import LeaseHouse, reap_after_expiry
from tests.support.lease_ordeals import CLOUDS

ENGINE = "cloud"
_STILL_S = 60.0


def combinations() -> Iterator[Combination]:
    """Yield every combination: runs are played unharmed, once in a process, to see which points they pass."""
    yield from _combinations()


@functools.cache
def _combinations() -> tuple[Combination, ...]:
    found = []
    for cloud in CLOUDS:
        for course in COURSES:
            with _house(cloud) as house:
                recorder = Recorder()
                with listening(recorder):
                    COURSES[course](house, generation=0)
            for shot, _ in recorder.first_and_last():
                found += [Combination(ENGINE, f"{cloud}-{course}", shot, follow_up) for follow_up in _FOLLOW_UPS]
    return tuple(found)


def run(combination: Combination) -> Findings:
    """Shoot, follow up, and check. Raises ``AssertionError`` when anything is not as it must be."""
    cloud, _, course = combination.scenario.rpartition("-")
    shot, follow_up = combination.shot, _FOLLOW_UPS[combination.follow_up]
    with _house(cloud) as house:
        if combination.follow_up.startswith("thawed"):
            with _standing_still(house, COURSES[course], shot) as thaw:
                follow_up(house, thaw)
        else:
            _shoot(house, COURSES[course], shot)
            follow_up(house, lambda: None)
        house.harness.wait(lambda: house.harness.billed() == frozenset())
        assert house.book().open() == (), "the book says that something is still rented"
    return Findings(engine=ENGINE, follow_up=combination.follow_up, max_alive=1, alive_after=0, steps_beyond=0)


@contextlib.contextmanager
def _house(cloud: str) -> Iterator[LeaseHouse]:
    """Have a run on a fresh cloud whose first offer is too small for it, so that it is refused once."""
    harness = CLOUDS[cloud]()
    try:
        harness.run_short(harness.offer(), num_nodes=1)
        yield LeaseHouse(harness)
    finally:
        harness.close()


def _shoot(house: LeaseHouse, course: Course, shot: Shot) -> None:
    def die() -> None:
        raise WorkerDied(str(shot))

    with listening(Gun(shot, die)), pytest.raises(WorkerDied):
        course(house, generation=0)
    house.harness.advance(20.0)


@contextlib.contextmanager
def _standing_still(house: LeaseHouse, course: Course, shot: Shot) -> Iterator[Callable[[], None]]:
    """Have a run stand still at the shot inside of the block; what it yields lets it go on to its end."""
    stands, thaw = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands.set()
        assert thaw.wait(_STILL_S)

    def be_the_first() -> None:
        with contextlib.suppress(LlmschedError):  # Airflow runs no more of it: how it ends is nobody's business
            course(house, generation=0)

    first = threading.Thread(target=be_the_first)

    def go_on() -> None:
        thaw.set()
        first.join(_STILL_S)
        assert not first.is_alive()

    gun = Gun(shot, stand_still)
    with listening(gun):
        first.start()
        assert stands.wait(_STILL_S)
        try:
            house.harness.advance(20.0)
            yield go_on
        finally:
            go_on()


def _retried(house: LeaseHouse, _thaw: Callable[[], None]) -> None:
    house.rent_keep_and_give_back()


def _cleared(house: LeaseHouse, _thaw: Callable[[], None]) -> None:
    house.rent_keep_and_give_back(generation=1)


def _released(house: LeaseHouse, _thaw: Callable[[], None]) -> None:
    """The teardown comes; once more, to see that it finds nothing."""
    house.renter().release()
    assert house.renter().release() == ()


def _left(house: LeaseHouse, _thaw: Callable[[], None]) -> None:
    """Nobody comes: everything expires, and the reaper passes by once. It ends what the cloud has, and notes it."""
    assert reap_after_expiry(house) == frozenset()
    house.renter().release()  # what was only noted costs nothing: the teardown closes it, whenever it comes


def _thawed(house: LeaseHouse, thaw: Callable[[], None]) -> None:
    """The first goes on once another has rented in its place."""
    house.renter().rent(house.wanted())
    thaw()
    house.renter().release()


def _thawed_late(house: LeaseHouse, thaw: Callable[[], None]) -> None:
    """The first goes on once the run was torn down: it rents nothing, or gives it back."""
    house.renter().release()
    thaw()
    house.harness.advance(house.harness.cloud.consistency_s)


class Course(Protocol):
    """What the workers of a run do, one after another."""

    def __call__(self, house: LeaseHouse, *, generation: int) -> None:
        """Do it."""


COURSES: Mapping[str, Course] = {
    "rented": LeaseHouse.rent_keep_and_give_back,
    "taken": LeaseHouse.rent_and_lose_a_node,
}
_FOLLOW_UPS: dict[str, Callable[[LeaseHouse, Callable[[], None]], None]] = {
    "retried": _retried,
    "cleared": _cleared,
    "released": _released,
    "left": _left,
    "thawed": _thawed,
    "thawed_late": _thawed_late,
}
