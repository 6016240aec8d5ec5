"""Each cloud is opened once, whatever the order of its options."""

from __future__ import annotations

from airflow_llmsched.control.lease_book import Rental
from airflow_llmsched.control.open_clouds import OpenClouds, by_cloud, plain_options
from airflow_llmsched.domain.identity import LeaseKey
from airflow_llmsched.ports import Cloud
from airflow_llmsched.testing.cloud_contract import RUN
from tests.support.lease_house import LeaseHouse, intent_of
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
