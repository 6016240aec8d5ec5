from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_llmsched.domain.lease import LeaseState
from airflow_llmsched.errors import AbandonedError, QuotaError
from airflow_llmsched.testing.cloud_contract import LEASE_S
from airflow_llmsched.units import DAY_S
from tests.support.gcp_cloud import SHAPE, GcpCloudHarness
from tests.support.gcp_fixtures import rent


@pytest.fixture
def harness() -> Iterator[GcpCloudHarness]:
    harness = GcpCloudHarness(queued_shapes=[SHAPE])
    harness.run_short(harness.offer(), num_nodes=0)
    yield harness
    harness.close()


def test_a_queued_lease_waits_for_days_and_then_has_all_of_its_machines(harness: GcpCloudHarness) -> None:
    lease = rent(harness, num_nodes=4, lease_s=5 * DAY_S)
    harness.advance(3 * DAY_S)
    assert harness.reopen().leases([lease.id])[lease.id].state is LeaseState.PENDING
    harness.run_short(harness.offer(), num_nodes=4)
    harness.wait(lambda: harness.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE)
    assert len(harness.cloud.leases([lease.id])[lease.id].nodes) == 4


def test_only_on_demand_capacity_of_the_shapes_named_is_queued_for(harness: GcpCloudHarness) -> None:
    assert "/flex/" in rent(harness, 1).id
    assert "/vm/" in rent(harness, 2, offer=harness.spot_offer()).id


def test_what_waits_says_whose_it_is_and_is_renewed(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    later_s = harness.now_s() + 4 * LEASE_S
    assert harness.cloud.renew(lease, until_s=later_s).expires_at_s == later_s
    (found,) = harness.reopen().find_all()
    assert (found.origin, found.expires_at_s, found.state) == (lease.origin, later_s, LeaseState.PENDING)


def test_machines_inherit_the_expiry_that_was_moved_while_they_were_waited_for(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    later_s = harness.now_s() + 4 * LEASE_S
    harness.cloud.renew(lease, until_s=later_s)
    harness.run_short(harness.offer(), num_nodes=8)
    harness.advance(120.0)
    labels = [each.row["labels"] for each in harness.world.things["instances"].values()]
    assert [float(each["llmsched-expires"]) for each in labels] == [later_s, later_s]


def test_a_request_that_was_withdrawn_is_not_made_again_under_its_key(harness: GcpCloudHarness) -> None:
    lease = rent(harness)
    harness.cloud.release(lease.id)
    harness.advance(120.0)
    with pytest.raises(AbandonedError):
        rent(harness)
    assert harness.cloud.find_all() == []


def test_a_quota_is_told_at_once_and_nothing_waits(harness: GcpCloudHarness) -> None:
    harness.limit_quota(harness.offer(), num_nodes=1)
    with pytest.raises(QuotaError):
        rent(harness)
    assert harness.cloud.find_all() == []
    assert harness.world.things["instanceTemplates"] == {}


def test_time_that_ran_out_asks_for_nothing(harness: GcpCloudHarness) -> None:
    with pytest.raises(AbandonedError):
        rent(harness, lease_s=3.0)
    assert "instanceGroupManagerResizeRequests.insert" not in harness.server.calls


def test_machines_from_the_queue_go_after_a_week_whoever_forgets_them(harness: GcpCloudHarness) -> None:
    harness.run_short(harness.offer(), num_nodes=8)
    lease = rent(harness)
    harness.advance(120.0)
    assert harness.billed()
    harness.advance(7 * DAY_S)
    assert harness.billed() == frozenset()
    harness.cloud.release(lease.id)
    assert harness.cloud.find_all() == []
