from __future__ import annotations

import pytest

from airflow_llmsched.domain.lease import LeaseState
from airflow_llmsched.errors import PartlySeenError
from airflow_llmsched.testing.cloud_contract import LEASE_S, RUN
from tests.support.gcp_cloud import SHAPE, GcpCloudHarness
from tests.support.gcp_fixtures import harness, rent

__all__ = ["harness"]  # a fixture is used by its name


def test_many_leases_of_a_zone_are_seen_by_one_call(harness: GcpCloudHarness) -> None:
    ids = [rent(harness, rental).id for rental in (1, 2, 3)]
    harness.server.calls.clear()
    assert set(harness.cloud.leases(ids)) == set(ids)
    assert set(harness.server.calls) == {"instances.list"}


def test_leases_of_several_zones_are_seen_by_one_call(harness: GcpCloudHarness) -> None:
    ids = [rent(harness, 1, num_nodes=1).id, rent(harness, 2, num_nodes=1, offer=harness.spot_offer()).id]
    harness.server.calls.clear()
    assert set(harness.cloud.leases(ids)) == set(ids)
    assert harness.server.calls == ["instances.aggregatedList"]


def test_preemptions_are_asked_for_only_where_a_machine_is_gone(harness: GcpCloudHarness) -> None:
    kept, broken = rent(harness, 1), rent(harness, 2, offer=harness.spot_offer())
    harness.preempt(broken.nodes[0].id)
    harness.server.calls.clear()
    looked = harness.cloud.leases([kept.id, broken.id])
    assert looked[broken.id].state is LeaseState.BROKEN
    assert harness.server.calls.count("zoneOperations.list") == 1


def test_a_zone_that_cannot_be_reached_is_not_empty(harness: GcpCloudHarness) -> None:
    rent(harness)
    harness.server.unreachable = "us-central1-a"
    for look in (lambda: harness.cloud.find(RUN), harness.cloud.find_all):
        with pytest.raises(PartlySeenError, match="us-central1-a cannot be reached") as caught:
            look()
        assert (caught.value.seen, caught.value.unseen) == ((), ("us-central1-a",))


@pytest.mark.parametrize("queued_shapes", [(), (SHAPE,)])
def test_a_zone_somewhere_else_that_cannot_be_reached_keeps_no_lease_from_being_seen_renewed_and_given_back(
    queued_shapes: tuple[str, ...],
) -> None:
    """The lists of everywhere are then not whole, for as long as that lasts: of places where we do not rent."""
    harness = GcpCloudHarness(queued_shapes=queued_shapes)
    try:
        lease = rent(harness)
        harness.advance(120.0)
        harness.server.unreachable = "asia-east1-a"
        assert [each.id for each in harness.cloud.find(RUN)] == [lease.id]
        seen = harness.cloud.leases([lease.id])[lease.id]
        until_s = harness.now_s() + 2 * LEASE_S
        assert harness.cloud.renew(seen, until_s=until_s).expires_at_s >= until_s
        harness.cloud.release(lease.id)
        assert harness.billed() == frozenset()
        assert harness.cloud.leases([lease.id]) == {}
        harness.server.unreachable = ""
        assert harness.cloud.find_all() == []
    finally:
        harness.close()


def test_a_disk_alone_is_found_and_goes(harness: GcpCloudHarness) -> None:
    """Field case E15: the machine was deleted by hand, and its disk was kept."""
    lease = rent(harness, num_nodes=1)
    harness.world.keeps_disks = True
    harness.world.delete_instance(f"zones/us-central1-a/instances/{lease.nodes[0].id}")
    (found,) = harness.reopen().find_all()
    assert found.leftovers == (f"zones/us-central1-a/disks/{lease.nodes[0].id}",)
    assert found.origin == lease.origin
    harness.cloud.release(lease.id)
    assert harness.billed() == frozenset()


def test_a_template_alone_is_found_and_goes() -> None:
    harness = GcpCloudHarness(queued_shapes=[SHAPE])
    try:
        lease = rent(harness)
        (group,) = harness.world.things["instanceGroupManagers"]
        harness.world.things["instanceGroupManagers"].pop(group)
        harness.world.things["resizeRequests"].clear()
        harness.advance(60.0)
        (found,) = harness.reopen().find_all()
        assert found.leftovers == (f"regions/us-central1/instanceTemplates/{lease.key.name}",)
        harness.cloud.release(lease.id)
        assert harness.cloud.find_all() == []
    finally:
        harness.close()


def test_a_zone_that_falls_silent_between_two_calls_is_unseen_and_no_other(harness: GcpCloudHarness) -> None:
    """Whether Google took a machine that is gone is asked zone by zone."""
    kept, taken = rent(harness, 1), rent(harness, 2, offer=harness.spot_offer())
    harness.preempt(taken.nodes[0].id)
    harness.server.dark_path = f"/zones/{taken.pool.zone}/operations"
    with pytest.raises(PartlySeenError, match=f"{taken.pool.zone} cannot be reached") as caught:
        harness.cloud.find_all()
    assert [each.id for each in caught.value.seen] == [kept.id]
