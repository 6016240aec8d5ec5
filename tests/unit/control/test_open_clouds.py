"""Each cloud is opened once, whatever the order of its options."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.control import open_clouds
from airflow_llmsched.control.lease_book import Rental
from airflow_llmsched.control.open_clouds import OpenClouds, by_cloud, plain_options
from airflow_llmsched.domain.identity import LeaseKey
from airflow_llmsched.errors import SpecError
from airflow_llmsched.ports import Clock, Cloud, ObjectStore
from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.testing.cloud_contract import RUN
from tests.support.lease_house import LeaseHouse, intent_of
from tests.support.memory_store import MemoryStore
from tests.support.sim_cloud import SimCloudHarness


def rental(number: int) -> Rental:
    return Rental(intent=intent_of(LeaseKey(run=RUN, generation=0, rental=number)))


def test_a_cloud_is_opened_once_for_equal_options() -> None:
    opened: list[tuple[str, object]] = []

    def open_cloud(name: str, options: object) -> Cloud:
        opened.append((name, options))
        return LeaseHouse(SimCloudHarness()).harness.cloud

    clouds = OpenClouds(open_cloud)
    first = clouds.named("sim", plain_options({"b": 1, "a": [2]}))
    assert clouds.named("sim", plain_options({"a": [2], "b": 1})) is first
    assert clouds.named("sim", plain_options({})) is not first
    assert clouds.of(rental(1)) is clouds.named("sim", "{}")
    assert opened == [("sim", {"b": 1, "a": [2]}), ("sim", {})]


def test_rentals_are_grouped_by_what_opens_their_cloud() -> None:
    assert by_cloud([rental(1), rental(2)]) == {("sim", "{}"): [rental(1), rental(2)]}


class Adapter:
    """Takes what it is given."""

    needs_store = True

    def __init__(self, *, clock: Clock, store: ObjectStore | None = None, credentials: object = None) -> None:
        self.given = (clock, store, credentials)


class Storeless(Adapter):
    needs_store = False


@pytest.mark.parametrize("kind", [Adapter, Storeless])
def test_an_adapter_gets_the_store_if_it_keeps_records_and_credentials_if_there_are_some(
    monkeypatch: pytest.MonkeyPatch, kind: type[Adapter]
) -> None:
    monkeypatch.setattr(open_clouds, "load", lambda _group, _name: kind)
    store, clock = MemoryStore(), VirtualClock()
    opened: Any = open_clouds.open_adapter("x", {}, store=store, clock=clock, credentials="mine")
    assert opened.given == (clock, store if kind.needs_store else None, "mine")
    bare: Any = open_clouds.open_adapter("x", {}, store=store, clock=clock)
    assert bare.given[2] is None


def test_an_option_that_an_adapter_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_clouds, "load", lambda _group, _name: Adapter)
    with pytest.raises(SpecError, match="colour"):
        open_clouds.open_adapter("x", {"colour": "blue"}, store=MemoryStore(), clock=VirtualClock())
