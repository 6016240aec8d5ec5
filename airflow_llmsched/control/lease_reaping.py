"""Takes back leases that nobody renews any more: the net below teardowns, for clouds.

Whoever needs a lease moves its expiry on, long before it comes. One that has expired is needed by nobody, whatever
Airflow says of its run: a worker may have died between two calls, and its successor rented anew. Only what says that it
is this deployment's is taken, or is what machines left behind that a run's book knows; what nobody knows is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.control.lease_book import LeaseBook, RentalEnding
from airflow_llmsched.control.reaper import Reap, Spare
from airflow_llmsched.domain.lease import Lease, LeaseId
from airflow_llmsched.errors import LeftoverError, LlmschedError, PartlySeenError, StoreError
from airflow_llmsched.ports import Clock, Cloud, ObjectStore

SKEW_S = 60.0
"""A lease must have expired for this long, so that clocks may differ."""


def judge_lease(lease: Lease, *, deployment_id: str, now_s: float) -> Reap | Spare:
    """Return what to do about a lease of which something is left. Pure."""
    if lease.origin is None:
        return Spare(reason="says not whose it is: look at it by hand")
    if lease.origin.deployment_id != deployment_id:
        return Spare(reason=f"belongs to deployment {lease.origin.deployment_id}: run its own reaper")
    expired_s = now_s - lease.expires_at_s
    if expired_s < SKEW_S:
        return Spare(reason=f"not expired: it holds for another {max(0.0, SKEW_S - expired_s):.0f} s unless renewed")
    return Reap(reason=f"expired {expired_s:.0f} s ago, and nobody renewed it")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFinding:
    """A lease of which something is left, and what is to be done about it."""

    lease: Lease
    verdict: Reap | Spare


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReaped:
    """What came of reaping one lease: whether it is gone, and why if not."""

    lease_id: LeaseId
    is_gone: bool
    trouble: str = ""


class LeaseReaper:
    """Looks after one deployment's leases in one cloud. Holds no state."""

    def __init__(self, *, store: ObjectStore, deployment_id: str, cloud: Cloud, clock: Clock) -> None:
        self._store = store
        self._deployment_id = deployment_id
        self._cloud = cloud
        self._clock = clock

    def look(self) -> tuple[LeaseFinding, ...]:
        """Judge every lease of which something is left. Ends nothing.

        Raises ``CouldNotLookError``; ``PartlySeenError`` with the findings elsewhere where parts of the cloud do not
        answer. What is there is judged once they do: it expires meanwhile, or somebody renews it.
        """
        try:
            return self._judged(self._cloud.find_all())
        except PartlySeenError as error:
            raise PartlySeenError(str(error), seen=self._judged(error.seen), unseen=error.unseen) from error

    def reap(self, finding: LeaseFinding) -> LeaseReaped:
        """Give back what ``finding`` condemned, if a second look condemns it again. Idempotent; raises nothing.

        What could not be done or seen is in the result, so that the next lease gets its turn.
        """
        lease_id = finding.lease.id
        try:
            again = self._cloud.leases([lease_id]).get(lease_id, finding.lease)
            verdict = self._judge(again)
            if not isinstance(verdict, Reap):
                return LeaseReaped(lease_id=lease_id, is_gone=False, trouble=f"spared after all: {verdict.reason}")
            self._cloud.release(lease_id)
            self._note(again, verdict.reason)
        except LeftoverError as error:
            return LeaseReaped(lease_id=lease_id, is_gone=False, trouble=str(error))
        except Exception as error:  # noqa: BLE001  (whatever an SDK raises for one lease: others get their turn)
            told = str(error) if isinstance(error, LlmschedError) else f"{type(error).__name__}: {error}"
            return LeaseReaped(lease_id=lease_id, is_gone=False, trouble=f"not known to be gone: {told}")
        return LeaseReaped(lease_id=lease_id, is_gone=True)

    def _judged(self, leases: Sequence[Lease]) -> tuple[LeaseFinding, ...]:
        return tuple(LeaseFinding(lease=lease, verdict=self._judge(lease)) for lease in leases)

    def _judge(self, lease: Lease) -> Reap | Spare:
        try:
            known = self._known(lease)
        except StoreError as error:
            return Spare(reason=f"says not whose it is, and its record in its run's book cannot be read: {error}")
        return judge_lease(known, deployment_id=self._deployment_id, now_s=self._clock.now_s())

    def _known(self, lease: Lease) -> Lease:
        """Return the lease with what its run's book says, where it is but disks and the like that say nothing."""
        if lease.origin is not None or lease.nodes:
            return lease
        intent = LeaseBook(self._store, lease.key.run).intent(lease.key)
        if intent is None:
            return lease
        return replace(lease, origin=intent.origin, expires_at_s=max(lease.expires_at_s, intent.until_s))

    def _note(self, lease: Lease, reason: str) -> None:
        """Note the end in the run's book, where it has the lease open: so that its cost stops there."""
        book = LeaseBook(self._store, lease.key.run)
        if book.is_open(lease.key):
            book.end(lease.key, RentalEnding.RELEASED, reason=f"reaped: {reason}", at_s=self._clock.now_s())
