"""The crash harness on the simulated cloud: a run that rents, keeps and gives back, shot once, and what follows.

All of it under a virtual clock in one process, as in ``crash_sim``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from airflow_llmsched.errors import LlmschedError
from tests.support.crash_combos import Combination, Findings
from tests.support.crashing import Gun, Recorder, Shot, WorkerDied, listening
from tests.support.lease_house import LeaseHouse, reap_after_expiry
from tests.support.sim_cloud import SimCloudHarness

ENGINE, SCENARIO = "cloud", "rented"
_STILL_S = 60.0


def combinations() -> Iterator[Combination]:
    """Yield every combination: a run is played unharmed to see which points it passes."""
    recorder = Recorder()
    with listening(recorder):
        _house().rent_keep_and_give_back()
    for shot, _ in recorder.first_and_last():
        for follow_up in _FOLLOW_UPS:
            yield Combination(ENGINE, SCENARIO, shot, follow_up)


def run(combination: Combination) -> Findings:
    """Shoot, follow up, and check. Raises ``AssertionError`` when anything is not as it must be."""
    house = _house()
    shot, follow_up = combination.shot, _FOLLOW_UPS[combination.follow_up]
    if combination.follow_up.startswith("thawed"):
        with _standing_still(house, shot) as thaw:
            follow_up(house, thaw)
    else:
        _shoot(house, shot)
        follow_up(house, lambda: None)
    left = house.harness.billed()
    assert left == frozenset(), f"billed after the end: {sorted(left)}"
    assert house.book().open() == (), "the book says that something is still rented"
    return Findings(engine=ENGINE, follow_up=combination.follow_up, max_alive=1, alive_after=len(left), steps_beyond=0)


def _house() -> LeaseHouse:
    return LeaseHouse(SimCloudHarness())


def _shoot(house: LeaseHouse, shot: Shot) -> None:
    def die() -> None:
        raise WorkerDied(str(shot))

    with listening(Gun(shot, die)), pytest.raises(WorkerDied):
        house.rent_keep_and_give_back()
    house.harness.advance(20.0)


@contextlib.contextmanager
def _standing_still(house: LeaseHouse, shot: Shot) -> Iterator[Callable[[], None]]:
    """Have a run stand still at the shot inside of the block; what it yields lets it go on to its end."""
    stands, thaw = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands.set()
        assert thaw.wait(_STILL_S)

    def be_the_first() -> None:
        with contextlib.suppress(LlmschedError):  # Airflow runs no more of it: how it ends is nobody's business
            house.rent_keep_and_give_back()

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
    for rental in house.book().open():  # such as what was only noted: it costs nothing, and the teardown closes it
        house.renter().give_back(rental.intent.key, reason="reaped")


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


_FOLLOW_UPS: dict[str, Callable[[LeaseHouse, Callable[[], None]], None]] = {
    "retried": _retried,
    "cleared": _cleared,
    "released": _released,
    "left": _left,
    "thawed": _thawed,
    "thawed_late": _thawed_late,
}
