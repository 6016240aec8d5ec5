"""Several workers of one run at once, or one that stood still meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.faults import fault_of
from airflow_llmsched.control.journal import Journal, JournalRaceError
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.sim.scripts import RankFails
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import RUN, SimHouse, workload_of


def test_try_that_stood_still_before_its_first_record_takes_nothing_from_a_later_one() -> None:
    house = SimHouse()
    frozen = house.driver(owner="try-1")
    outcome: list[Outcome] = []

    def stand_still(_key: str) -> None:
        house.store.before_create = lambda _key: None
        house.clock.sleep(120.0)
        outcome.append(house.driver(owner="try-2").start())

    house.store.before_create = stand_still
    thawed = frozen.start()
    assert isinstance(thawed, Failed)
    assert "superseded" in thawed.reason
    assert house.driver().state().owner == "try-2"
    assert isinstance(house.finish(outcome[0], owner="try-2"), Succeeded)
    assert house.kinds().count("launched") == 1


def test_of_two_tries_that_set_out_at_once_the_last_to_begin_owns_the_run() -> None:
    """Clocks may differ by seconds, so seconds do not say who is later."""
    house = SimHouse()
    first = house.driver(owner="try-1")

    def be_overtaken(_key: str) -> None:
        house.store.before_create = lambda _key: None
        house.clock.sleep(5.0)
        house.driver(owner="try-2").start()

    house.store.before_create = be_overtaken
    assert isinstance(first.start(), Watch)
    assert house.driver().state().owner == "try-1"


def test_try_that_stood_still_reopens_no_generation_that_has_failed_meanwhile() -> None:
    house = SimHouse(workload=workload_of(retries=RetrySpec(max_code_failures=0)))
    house.engine.faults = [RankFails(at_step=3)]
    frozen = house.driver(owner="try-1")

    def stand_still(_key: str) -> None:
        house.store.before_create = lambda _key: None
        house.clock.sleep(120.0)
        assert isinstance(house.run(owner="try-2"), Failed)

    house.store.before_create = stand_still
    assert isinstance(frozen.start(), Failed)
    assert house.kinds()[-1] == "run_failed"
    assert house.live() == ()


def test_worker_that_loses_every_append_gives_up_for_now() -> None:
    store = MemoryStore()
    house = SimHouse(store=store)

    def always_second(key: str) -> None:
        store.objects.setdefault(key, store.objects.get(key) or _noted_record(house, key))

    store.before_create = always_second
    with pytest.raises(JournalRaceError, match="appends in a row"):
        house.driver().start()
    assert house.live() == ()


def test_worker_that_was_cancelled_while_it_submitted_gives_the_gang_back() -> None:
    store = MemoryStore()
    house = SimHouse(store=store)
    original = house.engine.submit

    def submit_then_be_cancelled(request: object, *, key: AttemptKey) -> GangHandle:
        house.driver().cancel("marked failed")
        return original(request, key=key)  # type: ignore[arg-type]

    house.engine.submit = submit_then_be_cancelled  # type: ignore[method-assign, assignment]
    outcome = house.driver().start()
    assert isinstance(outcome, Failed)
    assert outcome.cancelled
    assert house.live() == ()


@pytest.mark.parametrize("late", ["start", "release", "cancel"])
def test_worker_that_stood_still_while_the_run_went_on_leaves_the_new_gang_alone(late: str) -> None:
    """It had read the journal and was about to look for gangs; meanwhile its gang failed and another was launched."""
    house = SimHouse()
    house.engine.faults = [RankFails(at_step=12)]
    outcome = house.driver(owner="try-1").start()
    assert isinstance(outcome, Watch)
    find, moved = house.engine.find, []

    def stand_still_once(key: RunKey) -> Sequence[GangHandle]:
        if not moved:
            moved.append(key)
            if late == "start":
                house.clock.sleep(20.0)
                status = house.engine.poll([outcome.state.handle])[outcome.state.handle]
                fault = fault_of(status, last_step=12, num_steps=40)
                ended = ev.GangEnded(at_s=house.clock.now_s(), key=status_key, status=status, fault=fault)
                assert isinstance(house.driver(owner="try-2").handle(ended), Watch)
            else:  # somebody clears the task after the cancel was recorded
                assert isinstance(house.driver(owner="try-1", generation=1).start(), Watch)
        return find(key)

    assert outcome.state.handle is not None
    status_key = outcome.state.handle.key
    house.engine.find = stand_still_once  # type: ignore[method-assign]
    driver = house.driver(owner="try-2" if late == "start" else "try-1")
    {"start": driver.start, "release": driver.release, "cancel": lambda: driver.cancel("marked failed")}[late]()
    assert moved
    (handle,) = house.live()
    expected = (1, 2) if late == "start" else (2, 1)
    assert (handle.key.generation, handle.key.attempt) == expected
    assert house.driver().state().history.num_code_faults <= 1


def test_two_workers_that_start_at_once_share_one_gang() -> None:
    store = MemoryStore()
    house = SimHouse(store=store)
    racing: list[str] = []

    def other_starts_first(key: str) -> None:
        if len(racing) < 1:
            racing.append(key)
            house.driver().start()

    store.before_create = other_starts_first
    outcome = house.driver().start()
    assert racing
    assert isinstance(outcome, Watch)
    assert len(house.live()) == 1
    assert isinstance(house.finish(outcome), Succeeded)
    assert house.max_live == 1


def _noted_record(house: SimHouse, key: str) -> bytes:
    """Return what another worker's journal record under ``key`` would hold."""
    other = MemoryStore()
    number = int(key.rsplit("/", 1)[1].removesuffix(".json"))
    span = Span(bucket=Bucket.QUEUE, start_s=0.0, end_s=1.0)
    Journal(other, RUN).append([ev.SpanNoted(at_s=1.0, span=span)], number=number)
    return other.objects[key]
