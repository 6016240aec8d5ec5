from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.clouds.gcp import record
from airflow_llmsched.clouds.gcp.record import Place, Record, Way
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.lease import LeaseId
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import SpecError
from tests.support.gcp_builders import place, spec

LABEL_KEY, LABEL_VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@given(way=st.sampled_from(Way), generation=st.integers(0, 10**6), rental=st.integers(1, 10**6))
def test_an_id_says_all_that_is_needed_to_find_the_lease(way: Way, generation: int, rental: int) -> None:
    key = LeaseKey(run=RunKey("ls-" + "z" * 20), generation=generation, rental=rental)
    made = Place(zone="europe-west4-b", way=way, name=key.name)
    assert record.parse_id(made.id) == made
    assert made.key == key
    assert made.region == "europe-west4"


@pytest.mark.parametrize(
    "text", ["", "us-central1-a/ls-a-g1-r1", "a/vm/b", "us-central1-a/mule/ls-a-g1-r1", "a/vm/ls-a-g1"]
)
def test_an_id_that_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="no id of a lease"):
        record.parse_id(LeaseId(text))


@given(dag_id=st.text(max_size=250), run_id=st.text(max_size=250), expires_at_s=st.floats(0, 1e11))
def test_a_record_keeps_ids_of_any_spelling(dag_id: str, run_id: str, expires_at_s: float) -> None:
    made = Record(
        place=place(),
        shape="a3-highgpu-8g",
        capacity_type=CapacityType.SPOT,
        num_nodes=3,
        expires_at_s=expires_at_s,
        origin=RunOrigin(deployment_id="d", run=RunKey("ls-x"), dag_id=dag_id, run_id=run_id),
    )
    assert record.decode(record.encode(made)) == made


@pytest.mark.parametrize("text", ["", "a machine", "{}", "[]", "null", '{"lease": 3}', '{"lease": "x/vm/ls-a-g1-r1"}'])
def test_a_description_of_somebody_elses_is_not_ours(text: str) -> None:
    assert record.decode(text) is None
    assert record.of_instance({"metadata": {"items": [{"key": record.METADATA_KEY, "value": text}]}}) is None


def test_labels_and_names_are_such_as_google_allows() -> None:
    key = LeaseKey(run=RunKey("ls-" + "z" * 20), generation=10**6, rental=10**6)
    longest = Record(
        place=Place(zone="us-central1-a", way=Way.MACHINES, name=key.name),
        shape="a3-highgpu-8g",
        capacity_type=CapacityType.ON_DEMAND,
        num_nodes=10**4,
        expires_at_s=1.7e9,
        origin=spec().origin,
    )
    for label, value in record.labels(longest).items():
        assert LABEL_KEY.fullmatch(label)
        assert LABEL_VALUE.fullmatch(value)
    assert NAME.fullmatch(record.node_name(longest.place, 9999))


def test_an_expiry_is_never_stated_sooner_than_it_is() -> None:
    assert record.expiry({record.EXPIRY_LABEL: record.expiry_label(100.2)}) == 101.0
    assert record.expiry({}) is None
    assert record.expiry({record.EXPIRY_LABEL: "soon"}) is None


def test_a_request_id_is_the_keys_own_and_the_effects() -> None:
    one, other = place(), Place(zone="us-central1-b", way=Way.MACHINES, name=place().name)
    assert one.request_id("machines") == place().request_id("machines")
    assert len({one.request_id("machines"), one.request_id("request"), other.request_id("machines")}) == 3
