from __future__ import annotations

import pytest

from airflow_llmsched.domain.lease import LeasedNodeState, LeaseState
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import AbandonedError, CapacityError, QuotaError, SpecError
from airflow_llmsched.testing.cloud_contract import LEASE_S
from tests.support.cloud_faults import CallKind, CloudFault
from tests.support.gcp_cloud import SHAPE, ZONE, GcpCloudHarness, gcp_offer
from tests.support.gcp_fixtures import harness, rent
from tests.support.gcp_world import API, PROJECT, Json

__all__ = ["harness"]  # a fixture is used by its name

RESERVED = gcp_offer(ZONE, CapacityType.RESERVED)


def reservation(*, count: int, until: str = "") -> Json:
    return {
        "name": "block-7",
        "zone": f"{API}/projects/{PROJECT}/zones/{ZONE}",
        "status": "READY",
        "specificReservationRequired": True,
        "specificReservation": {"count": str(count), "inUseCount": "0", "instanceProperties": {"machineType": SHAPE}},
        **({"deleteAtTime": until} if until else {}),
    }


def scheduled(harness: GcpCloudHarness) -> list[Json]:
    return [each.row["scheduling"] for each in harness.world.things["instances"].values()]


def test_machines_of_one_lease_are_kept_close(harness: GcpCloudHarness) -> None:
    lease = rent(harness, num_nodes=3)
    used = {name for each in harness.world.things["instances"].values() for name in each.row["resourcePolicies"]}
    assert used == {lease.key.name}
    (policy,) = harness.world.things["resourcePolicies"].values()
    assert policy.row["groupPlacementPolicy"] == {"collocation": "COLLOCATED", "vmCount": 3}


def test_one_machine_needs_no_policy(harness: GcpCloudHarness) -> None:
    rent(harness, num_nodes=1)
    assert harness.world.things["resourcePolicies"] == {}


def test_why_too_few_came_is_looked_for_in_the_parts(harness: GcpCloudHarness) -> None:
    """Field case E8: one of two came, the whole does not say why, and the parts say quota."""
    harness.limit_quota(harness.offer(), num_nodes=1)
    with pytest.raises(QuotaError, match="NVIDIA_H100_GPUS"):
        rent(harness)
    assert harness.billed() == frozenset()


def test_nothing_without_a_word_is_a_shortage(harness: GcpCloudHarness) -> None:
    """Field case E5."""
    harness.run_short(harness.offer(), num_nodes=0)
    with pytest.raises(CapacityError, match="did not say why"):
        rent(harness)
    assert harness.cloud.find_all() == []


def test_a_lease_that_was_refused_is_refused_again_and_stays_empty(harness: GcpCloudHarness) -> None:
    harness.run_short(harness.offer(), num_nodes=1)
    for _ in range(2):
        with pytest.raises(CapacityError):
            rent(harness)
        harness.run_short(harness.offer(), num_nodes=8)
    assert harness.billed() == frozenset()


def test_a_key_that_was_released_rents_nothing_again(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    harness.cloud.release(lease.id)
    with pytest.raises(AbandonedError, match="under its key again"):
        rent(harness)
    assert harness.cloud.find_all() == []


def test_a_duplicate_that_google_does_not_recognise_any_more_leaves_the_lease_alone(harness: GcpCloudHarness) -> None:
    """Request ids are good for an hour. Names are good for as long as the machines are there."""
    lease = rent(harness, lease_s=9 * LEASE_S)
    harness.world.begun.clear()
    for each in [key for key, op in harness.world.things["operations"].items() if "clientOperationId" in op.row]:
        harness.world.things["operations"].pop(each)
    billed = harness.billed()
    again = rent(harness, lease_s=9 * LEASE_S)
    assert {node.id for node in again.nodes} == {node.id for node in lease.nodes}
    assert harness.billed() == billed


def test_time_that_ran_out_while_the_policy_was_made_rents_nothing(harness: GcpCloudHarness) -> None:
    with pytest.raises(AbandonedError, match="before it began"):
        rent(harness, lease_s=1.0)
    assert "resourcePolicies.insert" in harness.server.calls
    assert "instances.bulkInsert" not in harness.server.calls


def test_a_reservation_is_used_by_its_name(harness: GcpCloudHarness) -> None:
    harness.world.shelf.reservations = [reservation(count=2)]
    lease = rent(harness, offer=RESERVED)
    assert lease.pool.capacity_type is CapacityType.RESERVED
    assert {each["provisioningModel"] for each in scheduled(harness)} == {"STANDARD"}


def test_a_reservation_that_ends_takes_its_machines_along(harness: GcpCloudHarness) -> None:
    harness.world.shelf.reservations = [reservation(count=2, until="2030-01-01T00:00:00Z")]
    rent(harness, offer=RESERVED)
    assert {each["provisioningModel"] for each in scheduled(harness)} == {"RESERVATION_BOUND"}


def test_a_reservation_without_room_is_a_shortage(harness: GcpCloudHarness) -> None:
    harness.world.shelf.reservations = [reservation(count=1)]
    with pytest.raises(CapacityError, match="no reservation"):
        rent(harness, offer=RESERVED)
    assert harness.world.things["resourcePolicies"] == {}


def test_a_request_that_google_never_accepts_is_to_be_corrected() -> None:
    harness = GcpCloudHarness(machine={"nics": [{"network": "global/networks/default", "nicType": "PIGEON"}]})
    try:
        with pytest.raises(SpecError, match="PIGEON"):
            rent(harness)
        assert harness.cloud.find_all() == []
    finally:
        harness.close()


def test_google_ends_what_nobody_ends_after_the_longest_run() -> None:
    harness = GcpCloudHarness(machine={"max_run_s": 7200.0})
    try:
        rent(harness, offer=harness.spot_offer())
        harness.advance(7100.0)
        assert harness.billed()
        harness.advance(200.0)
        assert harness.billed() == frozenset()
    finally:
        harness.close()


def test_a_preempted_machine_that_google_deletes_is_told_from_a_lost_one() -> None:
    """Field case E13, where nothing of the machine is left to ask."""
    harness = GcpCloudHarness(machine={"max_run_s": 7200.0})
    try:
        lease = rent(harness, offer=harness.spot_offer())
        harness.preempt(lease.nodes[0].id)
        harness.advance(60.0)
        seen = harness.cloud.leases([lease.id])[lease.id]
        assert seen.state is LeaseState.BROKEN
        assert [node.state for node in seen.nodes] == [LeasedNodeState.PREEMPTED, LeasedNodeState.RUNNING]
    finally:
        harness.close()


def test_a_machine_whose_host_failed_is_lost_not_preempted(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    harness.world.break_host(ZONE, lease.nodes[1].id)
    seen = harness.cloud.leases([lease.id])[lease.id]
    assert [node.state.is_gone for node in seen.nodes] == [False, True]
    assert seen.nodes[1].state is LeasedNodeState.LOST


def test_a_lost_answer_is_asked_for_again_by_the_same_request(harness: GcpCloudHarness) -> None:
    harness.plan.order(CloudFault.UNANSWERED, num_calls=2, kinds=frozenset({CallKind.CREATE}))
    lease = rent(harness)
    assert harness.server.calls.count("instances.bulkInsert") == 3
    assert len(harness.world.things["instances"]) == len(lease.nodes) == 2


def test_machines_that_take_long_are_a_pending_lease(harness: GcpCloudHarness) -> None:
    harness.world.create_s = harness.world.boot_s = 5000.0
    lease = rent(harness)
    assert lease.state is LeaseState.PENDING
    assert lease.num_nodes == 2
