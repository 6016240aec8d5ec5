"""Rents for a run, keeps and gives back what it rented. Safe to die in anywhere: the book says what to do next.

What a cloud is asked for is in the book before, and what is in the book is looked at before anything new is asked for.
A lease that nobody renews expires, and the reaper takes it (``control.lease_reaping``): so nothing outlives its run for
long, even if nobody ever reads its book again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_llmsched.control.lease_book import LeaseBook, Rental, RentalEnding, RentalIntent
from airflow_llmsched.control.lease_release import LeaseRelease
from airflow_llmsched.control.open_clouds import OpenCloud, OpenClouds, by_cloud, plain_options
from airflow_llmsched.control.spending import Spend
from airflow_llmsched.domain.capacity import Offer, Quote
from airflow_llmsched.domain.identity import LeaseKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeaseId, LeaseState
from airflow_llmsched.domain.topology import NO_TERMS, NodeTerms, TopologyTree
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    CouldNotLookError,
    LeftoverError,
    LlmschedError,
    QuotaError,
    SpecError,
)
from airflow_llmsched.ports import Clock

T = TypeVar("T")

log = logging.getLogger(__name__)

MIN_LEFT_S = 60.0
"""An intent that ends sooner than this is not gone on with: its machines would expire before anyone renewed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudChoice:
    """A cloud by name, with JSON-safe options."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be rented: the first of ``quotes`` that can be had, for ``hold_s`` seconds at first.

    ``clouds`` says how to open the clouds that quotes name. ``purpose`` tells apart what a run rents at once, and
    ``since_s`` is when whoever asks set out (Unix seconds).
    """

    purpose: str
    generation: int
    since_s: float
    quotes: tuple[Quote, ...]
    clouds: Mapping[str, CloudChoice]
    origin: RunOrigin
    hold_s: float = 3600.0


class Renter:
    """Acts for one run."""

    def __init__(self, book: LeaseBook, *, open_cloud: OpenCloud, clock: Clock) -> None:
        self._book = book
        self._clouds = OpenClouds(open_cloud)
        self._clock = clock

    def rent(self, wanted: Wanted) -> Lease:
        """Return what is rented for the purpose, or rent it: the quotes in their order, all nodes of one or none.

        What earlier generations rented for the purpose is given back first, and so is what is broken. The lease may be
        pending: look again. A quote that expires while others are tried is not taken.

        Raises:
            CapacityError: no quote could be had. The message counts why.
            QuotaError: no quote could be had, and all for want of quota.
            SpecError: a cloud will never accept a request like this.
            AbandonedError: the run was torn down meanwhile.
            LeftoverError: something came, is of no use, and could not be removed. Nothing else was tried.
            TransientError: try again; what was noted is taken up then.
        """
        held = self._take_up(wanted)
        if held is not None:
            return held
        refusals: list[CapacityError | QuotaError] = []
        used_up: set[tuple[str, str]] = set()
        began_s = self._clock.now_s()
        for quote in wanted.quotes:
            pool = quote.offer.pool
            if (pool.cloud, pool.region) in used_up:
                continue
            if began_s < quote.valid_until_s <= self._clock.now_s():  # one that a list prices may be old from the start
                refusals.append(
                    CapacityError("its quote expired while others were tried: the market is to be asked again")
                )
                continue
            try:
                return self._rent(wanted, quote)
            except QuotaError as error:
                used_up.add((pool.cloud, error.region))
                refusals.append(error)
            except CapacityError as error:
                refusals.append(error)
        raise _none_to_be_had(refusals)

    def look(self, purpose: str, *, waits_for_new: bool = False) -> Lease | None:
        """Return the open lease for ``purpose`` as its cloud sees it.

        None when there is no open rental, or nothing of it is listed. Raises ``StoreError`` and ``CouldNotLookError``:
        with ``waits_for_new`` also for one that may only be too new to be listed.
        """
        for rental in self._book.open():
            intent = rental.intent
            if intent.purpose == purpose:
                cloud = self._clouds.of(rental)
                found = cloud.leases([intent.lease_id]).get(intent.lease_id)
                if waits_for_new and found is None and self._clock.now_s() < intent.at_s + cloud.consistency_s:
                    raise CouldNotLookError(f"lease {intent.lease_id} is not listed yet")
                return found
        return None

    def seen(self) -> tuple[tuple[RentalIntent, Lease | None], ...]:
        """Return all that is open, oldest first, each as its cloud sees it; None: the cloud lists nothing of it.

        Raises ``StoreError``, ``CouldNotLookError``.
        """
        rentals = self._book.open()
        seen: dict[LeaseId, Lease] = {}
        for name, mine in by_cloud(rentals).items():
            seen.update(self._clouds.named(*name).leases([each.intent.lease_id for each in mine]))
        return tuple((each.intent, seen.get(each.intent.lease_id)) for each in rentals)

    def active(self) -> tuple[Lease, ...]:
        """Return the run's leases whose nodes all run, oldest first. Raises ``StoreError``, ``CouldNotLookError``."""
        leases = [lease for _, lease in self.seen()]
        return tuple(lease for lease in leases if lease is not None and lease.state is LeaseState.ACTIVE)

    def offer_of(self, lease: Lease) -> Offer:
        """Return the offer that an open lease was rented by. Raises ``StoreError``."""
        return next(each.intent.offer for each in self._book.open() if each.intent.lease_id == lease.id)

    def terms_of(self, lease: Lease) -> NodeTerms:
        """Return price and interruptions of each node of a lease, as far as its offer told. Raises ``StoreError``.

        Both are one node's own. Nodes of a pool may be taken together: a sum of them over a gang is the most that it
        is interrupted.
        """
        offers = [each.intent.offer for each in self._book.open() if each.intent.lease_id == lease.id]
        if not offers:
            return NO_TERMS
        (offer,) = offers
        return NodeTerms(usd_per_hour=offer.usd_per_hour, failures_per_hour=offer.loss_per_hour or 0.0)

    def topology(self, lease: Lease) -> TopologyTree:
        """Return where the cloud says that a lease's nodes are. Raises ``StoreError``, ``CouldNotLookError``."""
        rental = next(each for each in self._book.open() if each.intent.lease_id == lease.id)
        return self._clouds.of(rental).topology(lease)

    def give_up(self, purpose: str, *, reason: str) -> None:
        """End what is rented for ``purpose``: all that can be ended, before anything is raised. Idempotent.

        Raises ``LeftoverError``, ``CouldNotLookError``; ``StoreError`` for a damaged record: it may have been for the
        purpose.
        """
        pages = self._book.read_open()
        mine = [rental for rental in pages.rentals if rental.intent.purpose == purpose]
        each_of(mine, lambda rental: self._give_back(rental, reason))
        pages.whole()

    def release(
        self,
        reason: str = "teardown",
        *,
        since_s: float | None = None,
        others: Sequence[CloudChoice] = (),
        deployment_id: str | None = None,
    ) -> tuple[str, ...]:
        """Close the book and give back all that the run rented, in it or not. Returns the ids of what was still there.

        Idempotent. What cannot be given back does not keep the others from it. ``since_s`` is when the caller set out
        (Unix seconds; None: now): what is rented for whoever set out later is left alone, so that a teardown that stood
        still through a clear takes nothing from those who came after it. ``others`` and ``deployment_id`` are as in
        ``control.lease_release``. Raises as ``LeaseRelease.run``.
        """
        since_s = self._clock.now_s() if since_s is None else since_s
        teardown = LeaseRelease(self._book, self._clouds, self._clock, since_s=since_s, deployment_id=deployment_id)
        return teardown.run(reason, others=[(each.name, plain_options(each.options)) for each in others])

    def spend(self) -> Spend:
        """Return what all rentals have cost by their offers' prices, and cost an hour now. Raises ``StoreError``."""
        now_s, rentals = self._clock.now_s(), self._book.rentals()
        return Spend(
            usd=sum(rental.cost_usd(now_s) for rental in rentals),
            usd_per_hour=sum(
                each.intent.num_nodes * each.intent.offer.usd_per_hour for each in rentals if each.end is None
            ),
        )

    def spent_usd(self) -> float:
        """Return what all rentals have cost by their offers' prices. Raises ``StoreError``."""
        return self.spend().usd

    def _take_up(self, wanted: Wanted) -> Lease | None:
        """Go on with what the purpose has in the book; give back whatever of it is of no use."""
        for rental in self._book.open():
            intent = rental.intent
            if intent.purpose != wanted.purpose or intent.key.generation > wanted.generation:
                continue
            lease = None
            reason = "another generation began"
            if intent.key.generation == wanted.generation:
                lease, reason = self._usable(rental)
            if lease is not None:
                return lease
            self._give_back(rental, reason)
        return None

    def _usable(self, rental: Rental) -> tuple[Lease | None, str]:
        """Return the lease of an earlier intent if it is, or can now be, of use; else None and why."""
        intent, cloud = rental.intent, self._clouds.of(rental)
        lease = cloud.leases([intent.lease_id]).get(intent.lease_id)
        if lease is None and intent.until_s - self._clock.now_s() < MIN_LEFT_S:
            return None, "not known to have been rented in time"
        try:
            lease = lease or self._acquire(rental)
        except (CapacityError, QuotaError, AbandonedError) as error:
            return None, str(error)
        if lease.state in (LeaseState.BROKEN, LeaseState.ENDED):
            return None, lease.reason or f"it was {lease.state}"
        return lease, ""

    def _rent(self, wanted: Wanted, quote: Quote) -> Lease:
        choice = wanted.clouds[quote.offer.pool.cloud]
        now_s = self._clock.now_s()
        cloud = self._clouds.named(choice.name, plain_options(choice.options))

        def make(key: LeaseKey) -> RentalIntent:
            return RentalIntent(
                key=key,
                lease_id=cloud.lease_id(quote.offer.pool, key),
                purpose=wanted.purpose,
                cloud=choice.name,
                cloud_options=plain_options(choice.options),
                offer=quote.offer,
                num_nodes=quote.num_nodes,
                until_s=now_s + wanted.hold_s,
                at_s=now_s,
                origin=wanted.origin,
                since_s=wanted.since_s,
            )

        intent = self._book.intend(make, generation=wanted.generation, since_s=wanted.since_s)
        try:
            lease = self._acquire(Rental(intent=intent))
        except (CapacityError, QuotaError, SpecError, AbandonedError) as error:
            self._book.end(intent.key, RentalEnding.REFUSED, reason=str(error), at_s=self._clock.now_s())
            raise
        if self._book.is_open(intent.key):
            return lease
        cloud.release(lease.id)  # the run was torn down while the cloud was asked
        raise AbandonedError(f"run {self._book.run} was torn down while lease {lease.id} was rented: it is given back")

    def _acquire(self, rental: Rental) -> Lease:
        intent = rental.intent
        return self._clouds.of(rental).acquire(
            intent.offer, key=intent.key, origin=intent.origin, num_nodes=intent.num_nodes, until_s=intent.until_s
        )

    def _give_back(self, rental: Rental, reason: str) -> None:
        self._clouds.of(rental).release(rental.intent.lease_id)
        self._book.end(rental.intent.key, RentalEnding.RELEASED, reason=reason, at_s=self._clock.now_s())


def each_of(things: Iterable[T], act: Callable[[T], None]) -> None:
    """Act on each of several, however the others fare. Raises the first error; one of what was left behind before."""
    errors: list[LlmschedError] = []
    for thing in things:
        try:
            act(thing)
        except LlmschedError as error:
            errors.append(error)
    if errors:
        raise next((error for error in errors if isinstance(error, LeftoverError)), errors[0])


def _none_to_be_had(refusals: Sequence[CapacityError | QuotaError]) -> CapacityError | QuotaError:
    quotas = [error for error in refusals if isinstance(error, QuotaError)]
    if quotas and len(quotas) == len(refusals):
        regions = ", ".join(sorted({error.region for error in quotas}))
        return QuotaError(f"the quota is used up in {regions}: {quotas[0]}", region=quotas[0].region)
    if not refusals:
        return CapacityError("nothing was offered: allow more regions, node shapes or capacity types, or wait")
    counted = Counter(str(error) for error in refusals)
    told = "; ".join(f"{text} (x{count})" if count > 1 else text for text, count in counted.items())
    return CapacityError(f"none of {len(refusals)} offers could be had: {told}")
