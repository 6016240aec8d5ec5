from __future__ import annotations

import math

import pytest

from airflow_llmsched.clouds.gcp import record
from airflow_llmsched.domain.lease import LeaseState
from airflow_llmsched.errors import CouldNotLookError, LeaseGoneError
from airflow_llmsched.testing.cloud_contract import LEASE_S
from tests.support.gcp_cloud import GcpCloudHarness
from tests.support.gcp_fixtures import harness, rent

__all__ = ["harness"]  # a fixture is used by its name


def whole(time_s: float) -> float:
    """Labels state whole seconds."""
    return float(math.ceil(time_s))


def labelled_s(harness: GcpCloudHarness) -> list[float | None]:
    return [record.expiry(each.row["labels"]) for each in harness.world.things["instances"].values()]


def test_every_machine_states_the_later_expiry(harness: GcpCloudHarness) -> None:
    lease = rent(harness, num_nodes=3)
    later_s = whole(harness.now_s() + 2 * LEASE_S)
    harness.cloud.renew(lease, until_s=later_s)
    assert labelled_s(harness) == [later_s] * 3


def test_a_renewal_that_is_there_already_costs_no_change(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    later_s = whole(harness.now_s() + 2 * LEASE_S)
    harness.cloud.renew(lease, until_s=later_s)
    harness.server.calls.clear()
    harness.cloud.renew(lease, until_s=later_s - 10.0)
    assert "instances.setLabels" not in harness.server.calls
    assert labelled_s(harness) == [later_s] * 2


def test_labels_that_others_changed_meanwhile_are_read_again_and_kept(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    rows = [each.row for each in harness.world.things["instances"].values()]
    original = harness.world.instances_setLabels

    def racing(at: dict[str, str], body: dict, request_id: str) -> dict:
        harness.world.instances_setLabels = original
        harness.world.relabel(rows[0], {**rows[0]["labels"], "team": "red"})
        return original(at, body, request_id)

    harness.world.instances_setLabels = racing
    later_s = whole(harness.now_s() + 2 * LEASE_S)
    harness.cloud.renew(lease, until_s=later_s)
    assert labelled_s(harness) == [later_s] * 2
    assert rows[0]["labels"]["team"] == "red"


def test_labels_that_never_stay_are_given_up(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    rows = [each.row for each in harness.world.things["instances"].values()]
    original = harness.world.instances_setLabels

    def racing(at: dict[str, str], body: dict, request_id: str) -> dict:
        for number, row in enumerate(rows):
            harness.world.relabel(row, {**row["labels"], "turn": f"{harness.plan.num_calls}-{number}"})
        return original(at, body, request_id)

    harness.world.instances_setLabels = racing
    with pytest.raises(CouldNotLookError, match="faster than they can be read"):
        harness.cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S)


def test_a_lease_that_broke_is_still_kept_until_it_is_released(harness: GcpCloudHarness) -> None:
    lease = rent(harness, offer=harness.spot_offer())
    harness.preempt(lease.nodes[0].id)
    renewed = harness.cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S)
    assert renewed.state is LeaseState.BROKEN


def test_what_is_not_listed_yet_is_not_gone(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    for thing in harness.world.things["instances"].values():
        thing.listed_at_s = harness.now_s() + 30.0
    with pytest.raises(CouldNotLookError, match="is listed yet"):
        harness.cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S)
    harness.advance(30.0)
    harness.cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S)


def test_a_policy_alone_is_not_renewed(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    harness.world.things["instances"].clear()
    harness.advance(120.0)
    with pytest.raises(LeaseGoneError):
        harness.cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S)
