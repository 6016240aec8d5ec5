from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.clouds.gcp import record, render
from airflow_llmsched.clouds.gcp.record import Way
from airflow_llmsched.clouds.gcp.render import Reservation
from airflow_llmsched.domain.workload import CapacityType
from tests.support.gcp_builders import AT_S, instance, machine, spec
from tests.support.google_discovery import discovery

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "gcp_bulk_insert.json"
COMPUTE = discovery("compute.v1")
RICH = machine(
    max_run_s=7200.5,
    external_ip=True,
    service_account="trainer@llm.iam.gserviceaccount.com",
    startup_script="#!/bin/sh\necho hi",
    network_tags=("train",),
    nics=({"subnetwork": "s0", "nicType": "GVNIC"}, {"subnetwork": "s1", "nicType": "MRDMA"}),
    metadata={"enable-oslogin": "true"},
)


def problems(schema: str, body: dict[str, Any]) -> list[str]:
    return list(COMPUTE.problems({"$ref": schema}, body, is_request=True))


def test_a_bulk_insert_is_as_written_down() -> None:
    body = render.bulk_insert(spec(CapacityType.SPOT), machine=machine(), policy=spec().place.name)
    assert body == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("capacity_type", CapacityType)
@pytest.mark.parametrize("built", [machine(), RICH])
@pytest.mark.parametrize("reservation", [None, Reservation(name="r", is_bound=True)])
def test_googles_own_description_allows_every_body(
    capacity_type: CapacityType, built: render.Machine, reservation: Reservation | None
) -> None:
    made, queued = spec(capacity_type), spec(way=Way.QUEUE)
    body = render.bulk_insert(made, machine=built, policy="p", reservation=reservation)
    assert problems("BulkInsertInstanceResource", body) == []
    assert problems("ResourcePolicy", render.placement_policy(made)) == []
    assert problems("InstanceTemplate", render.template(queued, machine=built)) == []
    assert problems("InstanceGroupManager", render.group(queued, template_url="t")) == []
    assert problems("InstanceGroupManager", render.group_expiry(1.0)) == []
    assert problems("InstanceGroupManagerResizeRequest", render.resize_request(queued, machine=built)) == []
    assert problems("InstancesSetLabelsRequest", render.set_labels(instance(0, made), expires_at_s=9.0)) == []


def test_all_or_none_come_under_names_that_can_be_taken_once() -> None:
    body = render.bulk_insert(spec(num_nodes=3), machine=machine())
    assert (body["count"], body["minCount"]) == ("3", "3")
    assert list(body["perInstanceProperties"]) == [record.node_name(spec().place, index) for index in range(3)]


def test_what_costs_money_says_whose_it_is_in_the_creating_call() -> None:
    made = spec()
    shared = render.bulk_insert(made, machine=machine())["instanceProperties"]
    metadata = {each["key"]: each["value"] for each in shared["metadata"]["items"]}
    (boot,) = shared["disks"]
    assert record.decode(metadata[record.METADATA_KEY]) == made
    assert record.decode(boot["initializeParams"]["description"]) == made
    assert shared["labels"] == boot["initializeParams"]["labels"] == record.labels(made)
    assert boot["autoDelete"]


@pytest.mark.parametrize(
    ("capacity_type", "built", "reservation", "model", "action"),
    [
        (CapacityType.ON_DEMAND, machine(), None, "STANDARD", None),
        (CapacityType.SPOT, machine(), None, "SPOT", "STOP"),
        (CapacityType.SPOT, RICH, None, "SPOT", "DELETE"),
        (CapacityType.ON_DEMAND, RICH, None, "STANDARD", "DELETE"),
        (CapacityType.RESERVED, machine(), Reservation(name="r", is_bound=False), "STANDARD", None),
        (CapacityType.RESERVED, machine(), Reservation(name="r", is_bound=True), "RESERVATION_BOUND", "DELETE"),
    ],
)
def test_capacity_is_rented_in_the_way_its_type_says(
    capacity_type: CapacityType,
    built: render.Machine,
    reservation: Reservation | None,
    model: str,
    action: str | None,
) -> None:
    made = render.scheduling(capacity_type, machine=built, reservation=reservation)
    assert made["provisioningModel"] == model
    assert made.get("instanceTerminationAction") == action
    assert made["automaticRestart"] is False


def test_the_longest_run_is_a_limit_that_google_itself_keeps() -> None:
    assert render.scheduling(CapacityType.SPOT, machine=RICH)["maxRunDuration"] == {"seconds": "7201"}
    assert "maxRunDuration" not in render.scheduling(CapacityType.SPOT, machine=machine())
    assert render.queued_run_s(machine()) == render.queued_run_s(machine(max_run_s=1e9)) == 7 * 86_400.0


def test_a_reservation_is_named() -> None:
    body = render.bulk_insert(spec(), machine=machine(), reservation=Reservation(name="mine", is_bound=False))
    assert body["instanceProperties"]["reservationAffinity"]["values"] == ["mine"]
    assert "reservationAffinity" not in render.bulk_insert(spec(), machine=machine())["instanceProperties"]


def test_only_the_first_interface_has_an_address_outside() -> None:
    first, second = render.properties(spec(), machine=RICH)["networkInterfaces"]
    assert first["accessConfigs"]
    assert "accessConfigs" not in second


def test_a_renewal_changes_one_label_and_stands_on_what_was_read() -> None:
    row = instance(0, spec())
    body = render.set_labels(row, expires_at_s=AT_S + 9000.0)
    assert body["labelFingerprint"] == row["labelFingerprint"]
    assert {**body["labels"], record.EXPIRY_LABEL: ""} == {**row["labels"], record.EXPIRY_LABEL: ""}
    assert record.expiry(body["labels"]) == AT_S + 9000.0


def test_times_and_filters_are_as_google_reads_them() -> None:
    assert render.timestamp(AT_S) == "2025-06-15T15:06:40Z"
    assert render.any_of("name", ["a", "b"]) == '(name = "a") OR (name = "b")'


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"nodeCount": 3}, "unknown field"),
        ({"minCount": 2}, "no string"),
        ({"count": "two"}, "no whole number"),
        ({"instanceProperties": {"scheduling": {"provisioningModel": "CHEAP"}}}, "none of"),
        ({"instanceProperties": {"scheduling": {"maxRunDuration": {"minutes": "2"}}}}, "unknown field"),
        ({"instanceProperties": {"labels": {"a": 1}}}, "no string"),
        ({"instanceProperties": {"disks": {"boot": True}}}, "no list"),
        ({"instanceProperties": {"disks": [{"index": 1}]}}, "is told by Google"),
    ],
)
def test_the_check_against_googles_description_has_teeth(change: dict[str, Any], told: str) -> None:
    body = {**render.bulk_insert(spec(), machine=machine()), **change}
    (problem,) = problems("BulkInsertInstanceResource", body)
    assert told in problem
