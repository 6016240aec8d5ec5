"""Gives back all that a run has rented: what its book knows, and what carries the run's key and is in no book.

Whatever cannot be given back, or looked at, keeps nothing else from it, and is told in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from airflow_llmsched.control.lease_book import LeaseBook, Rental, RentalEnding
from airflow_llmsched.control.open_clouds import OpenClouds, by_cloud
from airflow_llmsched.domain.identity import LeaseKey
from airflow_llmsched.domain.lease import Lease, LeaseId
from airflow_llmsched.errors import (
    CouldNotLookError,
    InternalError,
    LeftoverError,
    LlmschedError,
    PartlySeenError,
    StoreError,
)
from airflow_llmsched.ports import Clock

log = logging.getLogger(__name__)


class LeaseRelease:
    """One teardown of one run. ``since_s`` is when it set out (Unix seconds): what is rented later is left alone.

    Of what is in no book, only that is ended which does not say that it is another deployment's than
    ``deployment_id``'s (None: whoever says the run's key is taken to be ours, as the key follows from the deployment).
    """

    def __init__(
        self, book: LeaseBook, clouds: OpenClouds, clock: Clock, *, since_s: float, deployment_id: str | None = None
    ) -> None:
        self._book = book
        self._clouds = clouds
        self._clock = clock
        self._since_s = since_s
        self._deployment_id = deployment_id
        self._released: list[str] = []
        self._left: list[str] = []
        self._unseen: list[str] = []

    def run(self, reason: str, *, others: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
        """Close the book, end everything, and return the ids of what was still there.

        ``others`` are clouds (name and options, as intents have them) in which what the book has lost may be: they are
        looked at only if it names a rental of which neither record can be read.

        Raises:
            LeftoverError: names all that clouds did not remove.
            CouldNotLookError: something could not be looked at, or its cloud not be opened; or what the book has lost
                was found nowhere. Try again.
        """
        try:
            self._book.close(at_s=self._since_s)
        except StoreError as error:  # a full disk keeps no machine: the caller comes again, and closes the book then
            self._unseen.append(str(error))
        pages = self._book.read_open()
        for rental in pages.rentals:
            if rental.intent.since_s <= self._since_s:
                self._attempt(partial(self._known, rental, reason))
        named = list(by_cloud(self._book.read().rentals))
        lost = set(pages.lost)
        for name, options in dict.fromkeys([*named, *(others if lost else ())]):
            found: list[Lease] = []
            self._attempt(partial(self._find, name, options, found, is_late=bool(lost)))
            for lease in found:
                self._attempt(partial(self._unknown, name, options, lease, lost))
        if lost:
            self._unseen += pages.damage
        return self._told()

    def _known(self, rental: Rental, reason: str) -> None:
        intent, cloud = rental.intent, self._clouds.of(rental)
        try:
            is_listed = intent.lease_id in cloud.leases([intent.lease_id])
        except InternalError as error:  # the cloud said something of it that its adapter does not know: so it is there
            log.warning("lease %s is given back unseen: %s", intent.lease_id, error)
            is_listed = True
        if not is_listed:  # yet, perhaps
            self._clock.sleep(max(0.0, intent.at_s + cloud.consistency_s - self._clock.now_s()))
        cloud.release(intent.lease_id)
        self._book.end(intent.key, RentalEnding.RELEASED, reason=reason, at_s=self._clock.now_s())
        self._released += [str(intent.lease_id)] if is_listed else []

    def _find(self, name: str, options: str, found: list[Lease], *, is_late: bool) -> None:
        """Find what carries the run's key: what was lost, or another's of the same key. ``is_late``: wait for lists."""
        cloud = self._clouds.named(name, options)
        if is_late:  # nobody knows when the lost one was rented
            self._clock.sleep(cloud.consistency_s)
        silent: CouldNotLookError | None = None
        try:
            leases = cloud.find(self._book.run)
        except PartlySeenError as error:
            leases, silent = error.seen, error
        # The book is read after the look: whoever rents notes it before it can be found.
        later = {each.intent.lease_id for each in self._book.read().rentals if each.intent.since_s > self._since_s}
        found += [lease for lease in leases if lease.id not in later]
        if silent is not None:
            raise silent

    def _unknown(self, name: str, options: str, lease: Lease, lost: set[LeaseKey]) -> None:
        whose = self._deployment_id if lease.origin is None else lease.origin.deployment_id
        if self._deployment_id is not None and whose != self._deployment_id:
            told = f"lease {lease.id} in {name} has the key of run {self._book.run} and belongs to deployment {whose}"
            raise CouldNotLookError(f"{told}: it was left alone. Look at it by hand")
        self._clouds.named(name, options).release(LeaseId(lease.id))
        self._released.append(str(lease.id))
        if lease.key in lost:
            lost.discard(lease.key)
            reason = f"found in {name} by the run's key, as its own record is damaged"
            log.warning("lease %s was %s: it is given back", lease.id, reason)
            self._book.end(lease.key, RentalEnding.RELEASED, reason=reason, at_s=self._clock.now_s())

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except LeftoverError as error:
            self._left += error.ids
        except Exception as error:  # noqa: BLE001  (whatever an SDK raises for one lease keeps no other)
            self._unseen.append(str(error) if isinstance(error, LlmschedError) else f"{type(error).__name__}: {error}")

    def _told(self) -> tuple[str, ...]:
        """Return what was released, or raise for what was not."""
        if self._left:
            told = f"could not look at all that it rented ({'; '.join(self._unseen)}), and " if self._unseen else ""
            message = f"run {self._book.run} {told}has left behind what its clouds do not remove"
            raise LeftoverError(message, ids=tuple(dict.fromkeys(self._left)))
        if self._unseen:
            raise CouldNotLookError("; ".join(self._unseen))
        return tuple(dict.fromkeys(self._released))
