"""The contract must be able to fail: clouds that err in one way each are caught. Good ones are in tests/contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from airflow_llmsched.domain.capacity import Offer, Requirement
from airflow_llmsched.domain.identity import LeaseKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeaseId, LeaseState
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, LeftoverError, PartlySeenError
from airflow_llmsched.sim.cloud import SimCloud
from airflow_llmsched.testing.cloud_contract import NoticingCloudContract, SpreadCloudContract
from tests.support.sim_cloud import SimCloudHarness, spread_pools


class _Suite(NoticingCloudContract, SpreadCloudContract):
    __test__ = False

    @pytest.fixture
    def harness(self) -> SimCloudHarness:
        raise NotImplementedError


class KeepsWhatCame(SimCloud):
    """Returns a part of a gang as if it were a gang."""

    def acquire(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Lease:
        num_free = self.pool(offer.pool).num_free
        if not 0 < num_free < num_nodes:
            return super().acquire(offer, key=key, origin=origin, num_nodes=num_nodes, until_s=until_s)
        super().acquire(offer, key=key, origin=origin, num_nodes=num_free, until_s=until_s)
        raise CapacityError("too few came")


class ForgetsItsKeys(SimCloud):
    """Rents again under a key that has a lease."""

    def acquire(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Lease:
        with suppress(AbandonedError):
            lease = super().acquire(offer, key=key, origin=origin, num_nodes=num_nodes, until_s=until_s)
            self._requests[LeaseId(f"{lease.id}-{len(self._requests)}")] = self._requests.pop(lease.id)
            return lease
        raise AbandonedError("released")


class TakesBack(SimCloud):
    """Renews to what it is told, also backwards."""

    def renew(self, lease: Lease, *, until_s: float) -> Lease:
        super().renew(lease, until_s=until_s)
        request = self._requests[lease.id]
        request.lease = replace(request.lease, expires_at_s=until_s)
        return request.lease


class CallsBrokenActive(SimCloud):
    """Says that all is well as long as one node runs."""

    def leases(self, ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        found = super().leases(ids)
        return {
            key: replace(lease, state=LeaseState.ACTIVE) if lease.state is LeaseState.BROKEN else lease
            for key, lease in found.items()
        }


class SaysNothingOfLeftovers(SimCloud):
    """Goes on silently when a removal fails for good."""

    def release(self, lease_id: LeaseId) -> None:
        with suppress(LeftoverError):
            super().release(lease_id)


class IsAnonymous(SimCloud):
    """Does not say whose its machines are."""

    def find_all(self) -> Sequence[Lease]:
        return [replace(lease, origin=None) for lease in super().find_all()]


class HidesAllForOneRegion(SimCloud):
    """Sees nothing while a region does not answer."""

    def find_all(self) -> Sequence[Lease]:
        try:
            return super().find_all()
        except PartlySeenError as error:
            raise CouldNotLookError(str(error)) from error


class TakesSilenceForAbsence(SimCloud):
    """Leaves out what is in a region that does not answer, without a word."""

    def find_all(self) -> Sequence[Lease]:
        try:
            return super().find_all()
        except PartlySeenError as error:
            return error.seen

    def offers(self, need: Requirement) -> Sequence[Offer]:
        try:
            return super().offers(need)
        except PartlySeenError as error:
            return error.seen


def harness_of(kind: type[SimCloud]) -> SimCloudHarness:
    harness = SimCloudHarness(*spread_pools())
    harness.cloud = kind(harness.world, harness.pools)
    return harness


_hides_nothing = _Suite.test_a_silent_part_hides_no_lease_elsewhere_is_named_and_nothing_is_concluded_of_it

CAUGHT: list[tuple[type[SimCloud], Callable[[_Suite, SimCloudHarness], None]]] = [
    (KeepsWhatCame, lambda suite, harness: suite.test_too_few_nodes_are_none(harness, 3)),
    (ForgetsItsKeys, lambda suite, harness: suite.test_one_key_rents_once_however_often_it_is_asked(harness)),
    (TakesBack, lambda suite, harness: suite.test_a_renewal_moves_the_expiry_and_never_back(harness)),
    (
        CallsBrokenActive,
        lambda suite, harness: suite.test_a_node_that_is_taken_breaks_the_lease_and_is_named(harness),
    ),
    (SaysNothingOfLeftovers, lambda suite, harness: suite.test_what_can_not_be_removed_is_named(harness)),
    (HidesAllForOneRegion, _Suite.test_a_silent_part_hides_no_lease_elsewhere_is_named_and_nothing_is_concluded_of_it),
    (
        TakesSilenceForAbsence,
        _Suite.test_a_silent_part_hides_no_lease_elsewhere_is_named_and_nothing_is_concluded_of_it,
    ),
    (
        TakesSilenceForAbsence,
        lambda suite, harness: suite.test_a_silent_part_is_named_beside_what_the_others_offer(harness),
    ),
    (IsAnonymous, lambda suite, harness: suite.test_what_is_rented_says_whose_it_is_and_until_when(harness)),
]


@pytest.mark.parametrize(("kind", "prove"), CAUGHT, ids=[kind.__name__ for kind, _ in CAUGHT])
def test_a_cloud_that_errs_is_caught(kind: type[SimCloud], prove: Callable[[_Suite, SimCloudHarness], None]) -> None:
    prove(_Suite(), harness_of(SimCloud))
    with pytest.raises((AssertionError, CouldNotLookError, pytest.fail.Exception)):
        prove(_Suite(), harness_of(kind))
