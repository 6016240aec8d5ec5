"""How creations and removals go when calls fail: beyond what the contract asks of every cloud."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_llmsched.domain.lease import Lease, LeaseState
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    CouldNotLookError,
    InternalError,
    LeaseGoneError,
    LeftoverError,
    QuotaError,
    SpecError,
    TransientError,
)
from airflow_llmsched.testing.cloud_contract import LEASE_S, RUN, lease_key, origin
from tests.support.azure_cloud import AzureCloudHarness
from tests.support.azure_server import RefusalError
from tests.support.cloud_faults import CallKind, CloudFault

CREATE = frozenset({CallKind.CREATE})
REMOVE = frozenset({CallKind.REMOVE})
NAME = lease_key().name


@pytest.fixture
def house() -> Iterator[AzureCloudHarness]:
    house = AzureCloudHarness()
    yield house
    house.close()


def acquire(house: AzureCloudHarness, *, num_nodes: int = 2, until_s: float | None = None) -> Lease:
    return house.reopen().acquire(
        house.offer(),
        key=lease_key(),
        origin=origin(),
        num_nodes=num_nodes,
        until_s=house.now_s() + LEASE_S if until_s is None else until_s,
    )


def test_a_creation_whose_answers_are_all_lost_happened_once(house: AzureCloudHarness) -> None:
    house.plan.order(CloudFault.UNANSWERED, num_calls=100, kinds=CREATE)
    with pytest.raises(CouldNotLookError, match="unknown whether"):
        acquire(house)
    assert {each.partition("_")[0] for each in house.billed()} == {NAME}
    house.plan.order(CloudFault.UNANSWERED, num_calls=0, kinds=CREATE)
    assert acquire(house).state is LeaseState.ACTIVE
    assert house.server.calls.count(f"PUT {path(house)}") == 5


def path(house: AzureCloudHarness) -> str:
    return house.server._row(house.server.sets[NAME])["id"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_azure_has_created_and_does_not_list_yet_is_waited_for(house: AzureCloudHarness, is_lost: bool) -> None:
    house.server.create_s = 5.0
    house.hide_new()
    if is_lost:
        house.lose_reply()
    lease = acquire(house)
    assert (lease.state, len(lease.nodes)) == (LeaseState.ACTIVE, 2)


def test_what_azure_claims_to_have_and_never_lists_is_not_taken_for_absent(house: AzureCloudHarness) -> None:
    house.server.consistency_s = 1e6
    house.hide_new()
    house.plan.order(CloudFault.UNANSWERED, num_calls=1, kinds=CREATE)
    with pytest.raises(CouldNotLookError, match="does not show it"):
        acquire(house)
    assert len(house.billed()) == 3


def test_a_refusal_of_what_an_unheard_call_has_created_already_is_none(house: AzureCloudHarness) -> None:
    """Azure may find the quota used up by the very set whose answer was lost."""
    put = house.server._put_set

    def put_once(*, name: str, **call: object):
        if name in house.server.sets:
            raise RefusalError(409, "QuotaExceeded")
        return put(name=name, **call)

    house.server._put_set = put_once
    house.lose_reply()
    assert acquire(house).state is LeaseState.ACTIVE
    assert len(house.billed()) == 3


def test_a_refused_set_that_is_there_all_the_same_is_removed(house: AzureCloudHarness) -> None:
    put = house.server._put_set

    def put_and_refuse(*, name: str, **call: object):
        put(name=name, **call)
        house.server.sets[name].error = {"code": "QuotaExceeded", "message": "too many"}
        house.server.sets[name].ready_at_s = house.now_s()
        raise RefusalError(409, "QuotaExceeded")

    house.server._put_set = put_and_refuse
    with pytest.raises(QuotaError):
        acquire(house)
    assert house.billed() == frozenset()


def test_a_creation_that_was_only_ever_throttled_created_nothing(house: AzureCloudHarness) -> None:
    house.plan.order(CloudFault.THROTTLED, num_calls=100, kinds=CREATE)
    with pytest.raises(TransientError) as caught:
        acquire(house)
    assert type(caught.value) is TransientError
    assert house.billed() == frozenset()


def test_a_creation_is_not_begun_again_once_its_time_has_come(house: AzureCloudHarness) -> None:
    house.plan.order(CloudFault.THROTTLED, num_calls=2, kinds=CREATE)
    with pytest.raises(AbandonedError):
        acquire(house, until_s=house.now_s() + 3.0)
    assert house.billed() == frozenset()


def test_a_quota_that_stops_some_machines_removes_the_others(house: AzureCloudHarness) -> None:
    """Field case E8: one came up, the other never would."""
    house.limit_quota(house.offer(), num_nodes=1)
    with pytest.raises(QuotaError, match="quota"):
        acquire(house)
    assert house.billed() == frozenset()


def test_what_azure_calls_whole_and_is_not_is_removed(house: AzureCloudHarness) -> None:
    """Field case E5: no machine, no error."""
    house.run_short(house.offer(), num_nodes=0)
    with pytest.raises(CapacityError, match="did not say why"):
        acquire(house)
    assert house.billed() == frozenset()


def test_a_creation_that_names_no_operation_is_read_from_the_set_itself(house: AzureCloudHarness) -> None:
    house.server._begin = lambda *_: ""
    house.run_short(house.offer(), num_nodes=0)
    with pytest.raises(CapacityError, match="did not say why"):
        acquire(house)
    assert house.billed() == frozenset()


def test_a_removal_that_fails_after_it_was_accepted_is_tried_again(house: AzureCloudHarness) -> None:
    lease = acquire(house)
    begin, fails = house.server._begin, [True, True, False]

    def begin_to_fail(ready_at_s: float, error: dict[str, str] | None) -> str:
        house.server.sets[NAME].deleted_at_s = None if fails[0] else ready_at_s
        return begin(ready_at_s, {"code": "Conflict", "message": "in use"} if fails.pop(0) else None)

    house.server._begin = begin_to_fail
    house.cloud.release(lease.id)
    assert (house.billed(), fails) == (frozenset(), [])


def test_a_removal_that_never_ends_names_what_is_left(house: AzureCloudHarness) -> None:
    lease = acquire(house)
    begin = house.server._begin

    def begin_for_ever(_ready_at_s: float, error: dict[str, str] | None) -> str:
        house.server.sets[NAME].deleted_at_s = 1e12
        return begin(1e12, error)

    house.server._begin = begin_for_ever
    with pytest.raises(LeftoverError, match="too long") as caught:
        house.cloud.release(lease.id)
    assert set(caught.value.ids) == house.billed()


def test_an_error_that_nobody_knows_is_loud_and_leaves_nothing(house: AzureCloudHarness) -> None:
    house.run_short(house.offer(), num_nodes=1)
    began = house.server._begin

    def begin(ready_at_s: float, error: dict[str, str] | None) -> str:
        return began(ready_at_s, error and {"code": "OutOfCheese", "message": "redo"})

    house.server._begin = begin
    with pytest.raises(InternalError, match="OutOfCheese"):
        acquire(house)
    assert house.billed() == frozenset()


def test_a_forgotten_operation_is_read_from_the_set_itself(house: AzureCloudHarness) -> None:
    house.run_short(house.offer(), num_nodes=1)
    begin = house.server._begin
    house.server._begin = lambda *wanted: begin(*wanted).replace("/operations/", "/operations/99")
    with pytest.raises(CapacityError, match="AllocationFailed"):
        acquire(house)


def test_a_request_that_azure_will_never_accept_is_the_specs_fault(house: AzureCloudHarness) -> None:
    wrong = AzureCloudHarness(subnets={"eastus": 7})
    try:
        with pytest.raises(SpecError, match="InvalidRequestContent"):
            acquire(wrong)
    finally:
        wrong.close()


def test_a_lease_that_is_being_released_is_not_rented_again(house: AzureCloudHarness) -> None:
    acquire(house)
    house.reopen()._client.send("DELETE", path(house), version="2026-04-01")
    with pytest.raises(AbandonedError, match="being released"):
        acquire(house)
    lease = house.cloud.find(RUN)[0]
    with pytest.raises(LeaseGoneError):
        house.cloud.renew(lease, until_s=house.now_s() + 2 * LEASE_S)


def test_a_lease_that_lost_a_machine_is_returned_as_it_is_not_removed(house: AzureCloudHarness) -> None:
    acquire(house)
    house.preempt(house.cloud.find(RUN)[0].nodes[0].id)
    house.advance(60.0)
    assert acquire(house).state is LeaseState.BROKEN
    assert len(house.billed()) == 2


def test_a_pending_lease_is_returned_when_it_takes_too_long(house: AzureCloudHarness) -> None:
    patient = AzureCloudHarness(wait_s=20.0)
    try:
        lease = acquire(patient)
        assert lease.state is LeaseState.PENDING
        patient.advance(60.0)
        assert patient.cloud.leases([lease.id])[lease.id].state is LeaseState.ACTIVE
    finally:
        patient.close()


def test_a_pending_lease_that_fails_later_is_broken_and_says_why(house: AzureCloudHarness) -> None:
    hasty = AzureCloudHarness(wait_s=1.0)
    try:
        hasty.run_short(hasty.offer(), num_nodes=1)
        lease = acquire(hasty)
        hasty.advance(60.0)
        seen = hasty.cloud.leases([lease.id])[lease.id]
        assert (seen.state, seen.reason[:16]) == (LeaseState.BROKEN, "AllocationFailed")
        hasty.cloud.release(lease.id)
        assert hasty.billed() == frozenset()
    finally:
        hasty.close()


def test_what_machines_leave_behind_goes_with_them(house: AzureCloudHarness) -> None:
    """Field case E15: network interface, disk and address remain, tagged or only named after the set."""
    house.server.leaves_behind = True
    lease = acquire(house)
    house.cloud.release(lease.id)
    assert house.billed() == frozenset()


def test_what_stays_behind_in_spite_of_all_is_named_found_and_released_later(house: AzureCloudHarness) -> None:
    """Field case E15, where removal fails."""
    house.server.leaves_behind = True
    lease = acquire(house)
    gone = house.server._delete_set
    house.server._delete_part = lambda **_: (409, {"error": {"code": "NicInUse", "message": "held"}}, {})
    with pytest.raises(LeftoverError) as caught:
        house.cloud.release(lease.id)
    assert set(caught.value.ids) == set(house.billed())
    (found,) = house.reopen().find_all()
    assert (found.id, found.state, found.nodes) == (lease.id, LeaseState.BROKEN, ())
    assert set(found.leftovers) == set(house.billed())
    assert gone is not None
    del house.server._delete_part
    house.reopen().release(found.id)
    assert house.billed() == frozenset()


def test_a_loose_part_beside_living_machines_is_a_leftover_of_their_lease(house: AzureCloudHarness) -> None:
    lease = acquire(house)
    disk = house.server.add_part("Microsoft.Compute/disks", f"{NAME}_data", tags={})
    house.server.add_part("Microsoft.Compute/disks", f"{NAME}_0_OsDisk", tags={}, managedBy="/vm/0")
    house.server.add_part("Microsoft.Compute/disks", "somebody-elses", tags={})
    (found,) = house.cloud.find(RUN)
    assert found.leftovers == (disk,)
    house.cloud.release(lease.id)
    assert {each.rpartition("/")[2] for each in house.billed()} == {"somebody-elses"}


def test_a_disk_that_is_listed_before_its_set_makes_no_lease_look_expired(house: AzureCloudHarness) -> None:
    acquire(house)
    house.server.add_part("Microsoft.Compute/disks", f"{NAME}_0_OsDisk", tags={}, managedBy="/vm/0")
    house.server._list_sets = lambda **_: (200, {"value": []}, {})
    (found,) = house.cloud.find_all()
    assert (len(found.nodes), found.expires_at_s > house.now_s()) == (2, True)


def test_a_renewal_that_meets_another_one_loses_to_the_later(house: AzureCloudHarness) -> None:
    lease = acquire(house)
    late_s = house.now_s() + 9 * LEASE_S

    def race(method: str) -> None:
        if method == "PATCH":  # the other one comes between this one's look and its change
            house.server.before = lambda _method: None
            house.reopen().renew(lease, until_s=late_s)

    house.server.before = race
    assert house.cloud.renew(lease, until_s=house.now_s() + 2 * LEASE_S).expires_at_s == pytest.approx(late_s, abs=1.0)
    assert house.cloud.find(RUN)[0].expires_at_s == pytest.approx(late_s, abs=1.0)


@pytest.mark.parametrize(("status", "code"), [(404, "ResourceNotFound"), (412, "PreconditionFailed")])
def test_a_set_that_is_gone_is_not_renewed_whichever_way_azure_says_so(
    house: AzureCloudHarness, status: int, code: str
) -> None:
    lease = acquire(house)
    house.cloud.release(lease.id)
    house.server._patch_set = lambda **_: RefusalError(status, code).reply
    with pytest.raises(LeaseGoneError):
        house.cloud.renew(lease, until_s=house.now_s() + 9 * LEASE_S)


def test_a_lease_is_renewed_before_it_is_listed(house: AzureCloudHarness) -> None:
    hasty = AzureCloudHarness(wait_s=1.0)
    try:
        hasty.hide_new()
        lease = acquire(hasty)
        later_s = hasty.now_s() + 5 * LEASE_S
        assert hasty.cloud.renew(lease, until_s=later_s).expires_at_s == later_s
        hasty.advance(60.0)
        assert hasty.cloud.find(RUN)[0].expires_at_s == pytest.approx(later_s, abs=1.0)
    finally:
        hasty.close()


def test_a_removal_that_is_never_answered_is_not_a_refusal(house: AzureCloudHarness) -> None:
    lease = acquire(house)
    house.plan.order(CloudFault.UNHEARD, num_calls=2, kinds=REMOVE)
    house.cloud.release(lease.id)
    assert house.billed() == frozenset()


def test_a_renewal_through_faults_of_every_kind_arrives(house: AzureCloudHarness) -> None:
    lease = acquire(house)
    for number, fault in enumerate(CloudFault, start=2):
        house.plan.order(fault, num_calls=2, kinds=frozenset({CallKind.CHANGE}))
        later_s = house.now_s() + number * 2 * LEASE_S
        assert house.cloud.renew(lease, until_s=later_s).expires_at_s == pytest.approx(later_s, abs=1.0)


def test_a_removal_of_which_azure_speaks_in_a_new_word_is_over_once_the_set_is_gone(
    house: AzureCloudHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = acquire(house)
    monkeypatch.setattr(house.server, "_get_operation", lambda **_: (200, {"status": "Dozing"}, {}))
    house.reopen().release(lease.id)
    assert house.billed() == frozenset()
