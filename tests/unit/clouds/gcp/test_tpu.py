from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_llmsched.domain.lease import LeasedNodeState, LeaseState
from airflow_llmsched.errors import AbandonedError, CouldNotLookError, QuotaError, SpecError
from airflow_llmsched.testing.cloud_contract import lease_key
from airflow_llmsched.units import DAY_S
from tests.support.cloud_faults import CallKind, CloudFault
from tests.support.gcp_cloud import GcpCloudHarness, TpuHarness
from tests.support.gcp_fixtures import rent


@pytest.fixture
def harness() -> Iterator[TpuHarness]:
    harness = TpuHarness(queue_s=2 * DAY_S)
    yield harness
    harness.close()


def test_a_request_waits_for_longer_than_its_first_hold_and_then_has_all_slices(harness: TpuHarness) -> None:
    harness.run_short(harness.offer(), num_nodes=3)
    lease = rent(harness, num_nodes=4)
    harness.advance(DAY_S)
    (waiting,) = harness.reopen().find_all()
    assert (waiting.state, waiting.expires_at_s) == (LeaseState.PENDING, pytest.approx(lease.expires_at_s))
    harness.run_short(harness.offer(), num_nodes=4)
    harness.wait(lambda: harness.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE)


def test_a_request_that_waited_in_vain_is_given_up_by_google_itself(harness: TpuHarness) -> None:
    harness.run_short(harness.offer(), num_nodes=0)
    lease = rent(harness)
    assert harness.billed()
    harness.advance(2 * DAY_S + 60.0)
    assert harness.billed() == frozenset()
    (failed,) = harness.cloud.find_all()
    assert failed.state is LeaseState.BROKEN
    assert "no more capacity" in failed.reason
    harness.cloud.release(lease.id)
    assert harness.cloud.find_all() == []


def test_a_renewal_moves_slices_and_leaves_a_waiting_request_as_it_is(harness: TpuHarness) -> None:
    lease = rent(harness)
    later_s = harness.now_s() + 3 * DAY_S
    assert harness.cloud.renew(lease, until_s=later_s).expires_at_s == lease.expires_at_s
    harness.wait(lambda: harness.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE)
    assert harness.cloud.renew(lease, until_s=later_s).expires_at_s == pytest.approx(later_s, abs=1.0)
    harness.server.calls.clear()
    harness.cloud.renew(lease, until_s=later_s - 60.0)
    assert "nodes.patch" not in harness.server.calls


def test_a_quota_is_told_from_a_shortage_by_the_message(harness: TpuHarness) -> None:
    """Field case E8."""
    harness.limit_quota(harness.offer(), num_nodes=1)
    with pytest.raises(QuotaError, match="TPUV5s"):
        rent(harness)
    assert harness.cloud.find_all() == []


def test_a_shape_that_the_zone_does_not_have_is_to_be_corrected(harness: TpuHarness) -> None:
    offer = harness.offer()
    with pytest.raises(SpecError, match="v6e-8"):
        rent(harness, offer=replace(offer, pool=replace(offer.pool, shape="v6e-8")))


def test_slices_that_nobody_described_are_not_asked_for() -> None:
    plain, described = GcpCloudHarness(), TpuHarness()
    try:
        with pytest.raises(SpecError, match="runtime_version"):
            rent(plain, offer=described.offer())
    finally:
        plain.close()
        described.close()


def test_a_lost_answer_asks_for_nothing_twice(harness: TpuHarness) -> None:
    harness.plan.order(CloudFault.UNANSWERED, num_calls=4, kinds=frozenset({CallKind.CREATE}))
    with pytest.raises(CouldNotLookError):
        rent(harness)
    lease = rent(harness)
    harness.wait(lambda: harness.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE)
    assert len(harness.world.tpus.nodes) == 2


def test_a_key_that_was_released_asks_for_nothing_again(harness: TpuHarness) -> None:
    lease = rent(harness)
    harness.cloud.release(lease.id)
    with pytest.raises(AbandonedError):
        rent(harness)
    with pytest.raises(AbandonedError, match="before it began"):
        rent(harness, 2, lease_s=-1.0)
    assert harness.billed() == frozenset()


def test_a_preempted_slice_breaks_the_lease_and_all_goes(harness: TpuHarness) -> None:
    """Field case E11."""
    lease = rent(harness, offer=harness.spot_offer())
    harness.wait(lambda: harness.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE)
    harness.preempt(harness.cloud.leases([lease.id])[lease.id].nodes[0].id)
    broken = harness.cloud.leases([lease.id])[lease.id]
    assert [node.state for node in broken.nodes] == [LeasedNodeState.PREEMPTED, LeasedNodeState.RUNNING]
    harness.cloud.release(lease.id)
    assert harness.world.tpus.nodes == {}


def test_slices_whose_request_is_gone_are_deleted_one_by_one(harness: TpuHarness) -> None:
    lease = rent(harness)
    harness.wait(lambda: harness.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE)
    harness.world.tpus.queued.clear()
    assert [each.id for each in harness.cloud.find_all()] == [lease.id]
    harness.server.calls.clear()
    harness.cloud.release(lease.id)
    assert harness.server.calls.count("nodes.delete") == 2
    assert harness.billed() == frozenset()


def test_slices_that_are_not_listed_yet_are_seen_by_their_names(harness: TpuHarness) -> None:
    harness.hide_new()
    lease = rent(harness)
    harness.advance(80.0)
    harness.wait(lambda: harness.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE)
    for row in harness.world.tpus.nodes.values():
        row["_listed_s"] = harness.now_s() + 60.0
    assert harness.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE


def test_two_calls_see_all_leases_of_a_zone(harness: TpuHarness) -> None:
    ids = [rent(harness, rental, num_nodes=1).id for rental in (1, 2, 3)]
    harness.server.calls.clear()
    assert set(harness.cloud.leases(ids)) == set(ids)
    assert harness.server.calls == ["queuedResources.list", "nodes.list"]


def test_ids_of_slices_are_known_beforehand(harness: TpuHarness) -> None:
    assert rent(harness).id == harness.reopen().lease_id(harness.offer().pool, lease_key())
