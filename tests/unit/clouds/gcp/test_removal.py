from __future__ import annotations

import pytest

from airflow_llmsched.clouds.gcp.removal import CREATION_LIMIT_S
from airflow_llmsched.errors import CouldNotLookError, LeftoverError
from airflow_llmsched.testing.cloud_contract import LEASE_S, lease_key, origin
from tests.support.cloud_faults import CallKind, CloudFault
from tests.support.gcp_cloud import SHAPE, GcpCloudHarness
from tests.support.gcp_fixtures import harness, rent
from tests.support.gcp_world import Json, Refused

__all__ = ["harness"]  # a fixture is used by its name


def test_machines_go_before_the_policy_that_they_use(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    harness.server.calls.clear()
    harness.cloud.release(lease.id)
    changes = [each for each in harness.server.calls if each.endswith(".delete")]
    assert changes == ["instances.delete", "instances.delete", "resourcePolicies.delete"]
    assert harness.cloud.find_all() == []


def test_disks_that_do_not_go_with_their_machine_go_after_it(harness: GcpCloudHarness) -> None:
    """Field case E15."""
    lease = rent(harness)
    harness.world.keeps_disks = True
    harness.cloud.release(lease.id)
    assert harness.billed() == frozenset()
    assert harness.server.calls.count("disks.delete") == 2


def test_a_stopped_machine_and_its_disk_go_too(harness: GcpCloudHarness) -> None:
    """Field case E13: a preempted machine is stopped, and its disk is billed."""
    lease = rent(harness, offer=harness.spot_offer())
    for node in lease.nodes:
        harness.preempt(node.id)
    assert harness.billed()
    harness.cloud.release(lease.id)
    assert harness.billed() == frozenset()
    assert harness.world.things["instances"] == {}


def test_machines_that_are_not_listed_yet_are_removed_by_their_names(harness: GcpCloudHarness) -> None:
    harness.hide_new()
    harness.plan.order(CloudFault.UNANSWERED, num_calls=4, kinds=frozenset({CallKind.CREATE}))
    with pytest.raises(CouldNotLookError):
        rent(harness, num_nodes=3)
    assert len(harness.world.things["instances"]) == 3
    harness.reopen().release(harness.cloud.lease_id(harness.offer().pool, lease_key()))
    assert harness.billed() == frozenset()


def test_machines_that_are_never_finished_are_not_passed_over_in_silence(harness: GcpCloudHarness) -> None:
    harness.plan.order(CloudFault.UNANSWERED, num_calls=4, kinds=frozenset({CallKind.CREATE}))
    with pytest.raises(CouldNotLookError):
        rent(harness)
    (operation,) = [
        each.row for each in harness.world.things["operations"].values() if each.row["operationType"] == "bulkInsert"
    ]
    harness.world.due = [each for each in harness.world.due if each[0] > harness.now_s() + 20.0]
    before_s = harness.now_s()
    with pytest.raises(LeftoverError, match="goes on making") as caught:
        harness.cloud.release(harness.cloud.lease_id(harness.offer().pool, lease_key()))
    assert harness.now_s() - before_s >= CREATION_LIMIT_S
    assert caught.value.ids == (f"zones/us-central1-a/operations/{operation['name']}",)


def test_what_another_process_removes_already_is_waited_for(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    harness.world.instances_delete({"zone": "us-central1-a", "instance": lease.nodes[0].id}, None, "")
    harness.cloud.release(lease.id)
    assert harness.billed() == frozenset()


def test_a_request_in_a_state_that_nobody_knows_keeps_no_machine(harness: GcpCloudHarness) -> None:
    """Google may refuse to cancel it: its group goes all the same, and the machines with it."""
    queue = harness.reopen(queued_shapes=[SHAPE])
    lease = queue.acquire(
        harness.offer(), key=lease_key(), origin=origin(), num_nodes=2, until_s=harness.now_s() + LEASE_S
    )
    harness.wait(lambda: len(harness.world.things["instances"]) == 2)
    harness.server.new_words.add("DOZING")
    for each in harness.world.things["resizeRequests"].values():
        each.row["state"] = "DOZING"
    queue.release(lease.id)
    assert harness.billed() == frozenset()
    assert queue.find_all() == []


def test_a_refusal_that_nobody_knows_keeps_no_other_machine(
    harness: GcpCloudHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = rent(harness)
    whole, kept = harness.world.instances_delete, lease.nodes[0].id

    def refusing(at: dict[str, str], body: Json | None, request_id: str) -> Json:
        if at["instance"] == kept:
            raise Refused(409, "machineIsDreaming", "come back later")
        return whole(at, body, request_id)

    monkeypatch.setattr(harness.world, "instances_delete", refusing)
    with pytest.raises(LeftoverError, match="machineIsDreaming"):
        harness.cloud.release(lease.id)
    assert {name.rpartition("/")[2] for name in harness.world.things["instances"]} == {kept}


def test_all_that_is_left_is_named(harness: GcpCloudHarness) -> None:
    """Field case E7."""
    lease = rent(harness)
    harness.refuse_removal(num_calls=10_000)
    with pytest.raises(LeftoverError) as caught:
        harness.cloud.release(lease.id)
    assert len(caught.value.ids) == 3
    assert caught.value.ids[2] == f"regions/us-central1/resourcePolicies/{lease.key.name}"
