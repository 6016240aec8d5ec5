from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.clouds.azure import tags
from airflow_llmsched.clouds.azure.tags import LeaseTags
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.workload import CapacityType

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
LEASE = LeaseTags(
    key=LeaseKey(run=RUN, generation=2, rental=11),
    pool=Pool(
        cloud="azure",
        region="eastus",
        zone="eastus-2",
        shape="Standard_ND96isr_H100_v5",
        capacity_type=CapacityType.SPOT,
    ),
    num_nodes=4,
    expires_at_s=1_780_000_000.25,
    origin=RunOrigin(deployment_id="d" * 32, run=RUN, dag_id="Pre-train.ä", run_id="manual__2026-11-29T21:00:00+00:00"),
)

airflow_ids = st.text(st.characters(exclude_categories=["Cs"]), max_size=250)


def test_tags_say_a_lease_as_it_is() -> None:
    assert tags.from_tags(tags.to_tags(LEASE)) == LEASE


def test_a_bill_can_be_filtered_by_plain_words() -> None:
    assert tags.to_tags(LEASE) == {
        "llmsched-lease": "ls-aaaaaaaaaaaaaaaaaaaa-g2-r11",
        "llmsched-run": "ls-aaaaaaaaaaaaaaaaaaaa",
        "llmsched-deployment": "d" * 32,
        "llmsched-dag": "Pre-train.%C3%A4",
        "llmsched-dag-run": "manual__2026-11-29T21:00:00+00:00",
        "llmsched-expires": "2026-05-28T20:26:40.250+00:00",
        "llmsched-region": "eastus",
        "llmsched-zone": "eastus-2",
        "llmsched-shape": "Standard_ND96isr_H100_v5",
        "llmsched-capacity": "spot",
        "llmsched-nodes": "4",
    }


@given(dag_id=airflow_ids, run_id=airflow_ids)
def test_whatever_airflow_allows_in_ids_comes_back_and_fits(dag_id: str, run_id: str) -> None:
    origin = RunOrigin(deployment_id="d" * 32, run=RUN, dag_id=dag_id, run_id=run_id)
    said = tags.to_tags(replace(LEASE, origin=origin))
    assert tags.from_tags(said) == replace(LEASE, origin=origin)
    assert len(said) <= tags.MAX_TAGS
    assert all(len(value) <= tags.MAX_VALUE_SIZE and value.isascii() for value in said.values())


@given(until_s=st.floats(min_value=0.0, max_value=4e9))
def test_an_expiry_is_never_rounded_down(until_s: float) -> None:
    said = tags.from_tags(tags.to_tags(replace(LEASE, expires_at_s=until_s)))
    assert said is not None
    assert until_s - 1e-6 <= said.expires_at_s <= until_s + 0.002


@pytest.mark.parametrize("name", ["", "vm-1", "ls-short-g1-r1", "ls-aaaaaaaaaaaaaaaaaaaa-g1-r1x", "x" * 300])
def test_what_is_not_ours_says_nothing(name: str) -> None:
    assert tags.from_tags({"llmsched-lease": name}) is None


def test_a_child_is_known_by_the_name_it_begins_with() -> None:
    assert tags.parse_key("ls-aaaaaaaaaaaaaaaaaaaa-g2-r11_0_OsDisk_1_5f") == LEASE.key
    assert tags.parse_key("ls-aaaaaaaaaaaaaaaaaaaa-g2-r112") != LEASE.key


def test_tags_that_were_spoiled_by_hand_say_expired_and_nobodys() -> None:
    said = tags.to_tags(LEASE) | {"llmsched-expires": "soon", "llmsched-nodes": "some", "llmsched-capacity": "cheap"}
    del said["llmsched-run"]
    spoiled = tags.from_tags(said)
    assert spoiled is not None
    assert (spoiled.expires_at_s, spoiled.num_nodes, spoiled.origin) == (0.0, 0, None)
    assert spoiled.pool.capacity_type is CapacityType.ON_DEMAND


def test_an_expiry_without_a_zone_is_universal_time() -> None:
    said = tags.to_tags(LEASE) | {"llmsched-expires": "1970-01-01T00:01:00"}
    spoiled = tags.from_tags(said)
    assert spoiled is not None
    assert spoiled.expires_at_s == 60.0
