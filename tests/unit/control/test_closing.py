"""A driver without spec, data or planner ends a run like any other, and can do nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.closing import SPEC_FILE, open_closing_driver
from airflow_llmsched.control.runs import MovedOnError, RunDriver
from airflow_llmsched.control.task_files import task_file_key
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.errors import InternalError
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.sim_house import RUN, SimHouse, workload_of

SPEC = task_file_key(RUN, SPEC_FILE, try_number=2)


def closing(house: SimHouse) -> RunDriver:
    return open_closing_driver(house.store, RUN, engine=house.engine, clock=house.clock, dag_id="d", run_id="r")


@pytest.fixture
def house() -> SimHouse:
    house = SimHouse(training=SimTraining(num_steps=10_000))
    house.driver().start()
    return house


@pytest.mark.parametrize("spec", [None, b"damaged", b"{}"])
def test_run_is_released_whether_or_not_its_spec_can_be_read(house: SimHouse, spec: bytes | None) -> None:
    if spec is not None:
        house.store.put(SPEC, spec)
    assert closing(house).release() == (f"{RUN}-g1-a1",)
    assert house.kinds()[-3:] == ["cancel_requested", "run_cancelled", "released"]
    assert house.live() == ()
    assert closing(house).release() == ()


def test_ranks_get_the_specs_grace(house: SimHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workload_of()
    house.store.put(SPEC, codec.to_json(replace(workload, launcher=replace(workload.launcher, grace_s=77.0))))
    graces_s: list[float] = []
    stop = house.engine.stop
    monkeypatch.setattr(
        house.engine, "stop", lambda handle, grace_s: (graces_s.append(grace_s), stop(handle, grace_s=grace_s))
    )
    closing(house).release()
    assert graces_s == [77.0]


def test_it_cannot_go_on_with_a_run(house: SimHouse) -> None:
    house.driver().release()
    with pytest.raises(InternalError, match="opened to end a run"):
        closing(house).start()


def test_release_of_what_was_judged_leaves_alone_what_moved_on(house: SimHouse) -> None:
    seen = house.journal.num_records()
    house.note_span(Span(bucket=Bucket.QUEUE, start_s=1.0, end_s=2.0, label="x"))
    with pytest.raises(MovedOnError, match="judge it again"):
        closing(house).release(num_records=seen)
    assert len(house.live()) == 1
    assert closing(house).release(num_records=seen + 1) == (f"{RUN}-g1-a1",)


def test_release_is_not_recorded_in_a_generation_that_opened_meanwhile(
    house: SimHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = closing(house)
    finish = driver._finish_cancel

    def finish_and_clear(session: object, stopped: list[str]) -> None:
        finish(session, stopped)  # type: ignore[arg-type]
        house.driver(generation=1).start()

    monkeypatch.setattr(driver, "_finish_cancel", finish_and_clear)
    driver.release()
    assert not any(isinstance(event, ev.Released) for event in house.journal.read())
    assert len(house.live()) == 1
    assert not house.driver().state().released


def test_what_was_stopped_is_told_by_whoever_stopped_it_though_another_was_first_to_record_the_end(
    house: SimHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, others = house.engine.stop, []

    def stop_and_meet_another(handle: GangHandle, *, grace_s: float) -> None:
        stop(handle, grace_s=grace_s)
        if not others:
            others.append(None)
            others.append(closing(house).release())

    monkeypatch.setattr(house.engine, "stop", stop_and_meet_another)
    assert closing(house).release() == (f"{RUN}-g1-a1",)
    assert others == [None, ()]
    kinds = [event.kind for event in house.journal.read()]
    assert [kinds.count(kind) for kind in ("cancel_requested", "run_cancelled", "released")] == [1, 1, 1]


def test_a_teardown_that_stood_still_leaves_a_run_alone_that_was_begun_anew_meanwhile(
    house: SimHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = closing(house)
    end = driver._end_for_release

    def stand_still(*arguments: object) -> object:
        if house.driver().state().asked_generation == 0:
            house.clock.sleep(60.0)
            house.driver(generation=1, owner="try-2", owner_since_s=house.clock.now_s()).start()
        return end(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "_end_for_release", stand_still)
    with pytest.raises(MovedOnError, match="begun anew after this teardown had set out"):
        driver.release()
    assert [handle.key.generation for handle in house.live()] == [2]
    assert closing(house).release() == (f"{RUN}-g2-a1",)
