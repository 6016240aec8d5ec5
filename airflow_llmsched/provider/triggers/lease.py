"""Waits for a lease that is on its way, or for a market that has what a run needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_llmsched.provider.executor import run_blocking
from airflow_llmsched.provider.settling import settle

if TYPE_CHECKING:
    from airflow_llmsched.provider.lease_watch import LeaseAlarm, Watched
    from airflow_llmsched.provider.rental_watch import RentalWatch


class LeaseTrigger(BaseTrigger):
    """Keeps a pending lease until it is there whole, or will never be: ``{"seen": state}``, or ``{"late": true}``.

    What nobody foresaw is ``{"broken": words}``: the task then looks for itself. A task that is failed or cleared
    meanwhile needs nothing done here: the teardown gives back what the run rented, another generation does so first of
    all, and an expiry that nobody moves on ends it in any case.

    Args:
        settings: ``provider.rentals.RentalSettings`` in codec form.
        poll_interval_s: seconds between looks.
        until_s: when to stop waiting, in Unix seconds.
        settle_s: the event comes no sooner than this many seconds after the wait began (``provider.settling``).
    """

    def __init__(
        self, *, settings: Mapping[str, Any], poll_interval_s: float, until_s: float, settle_s: float = 0.0
    ) -> None:
        super().__init__()
        self.settings = dict(settings)
        self.poll_interval_s = poll_interval_s
        self.until_s = until_s
        self.settle_s = settle_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and JSON-safe arguments. Nothing secret is among them."""
        return (
            "airflow_llmsched.provider.triggers.lease.LeaseTrigger",
            {
                "settings": self.settings,
                "poll_interval_s": self.poll_interval_s,
                "until_s": self.until_s,
                "settle_s": self.settle_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is something to say. A cloud that cannot be asked is asked again."""
        started_s = time.monotonic()
        try:
            event = await self._watch()
        except Exception as error:
            self.log.exception("the watch of this lease broke; handing over")
            event = broken(error)
        await settle(since_s=started_s, settle_s=self.settle_s)
        yield TriggerEvent(event)

    async def _watch(self) -> dict[str, Any]:
        watching_leases, watch = await run_blocking("rental", _open_rental, self.settings)
        with watching_leases(watch.watched):
            while True:
                event = await run_blocking("rental", watch.look)
                if event is not None:
                    return event
                left_s = self.until_s - time.time()
                if left_s <= 0:
                    return {"late": True}
                await asyncio.sleep(min(self.poll_interval_s, left_s))


class CapacityTrigger(BaseTrigger):
    """Fires once something that serves is on offer: ``{"quote": {...}}``, or ``{"late": true, "market": words}``.

    What nobody foresaw is ``{"broken": words}``: the task then looks for itself.

    Args:
        request: ``provider.rentals.CapacityRequest`` in codec form.
        poll_interval_s: seconds between looks at the market.
        until_s: when to stop waiting, in Unix seconds.
        not_before_s: no look before this time (Unix seconds): the market has just said no.
    """

    def __init__(
        self,
        *,
        request: Mapping[str, Any],
        poll_interval_s: float,
        until_s: float,
        not_before_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.request = dict(request)
        self.poll_interval_s = poll_interval_s
        self.until_s = until_s
        self.not_before_s = not_before_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and JSON-safe arguments. Nothing secret is among them."""
        return (
            "airflow_llmsched.provider.triggers.lease.CapacityTrigger",
            {
                "request": self.request,
                "poll_interval_s": self.poll_interval_s,
                "until_s": self.until_s,
                "not_before_s": self.not_before_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until an offer serves or time is up. A market that cannot be asked is asked again."""
        await asyncio.sleep(max(0.0, min(self.not_before_s, self.until_s) - time.time()))
        try:
            event = await self._watch()
        except Exception as error:
            self.log.exception("the watch of this market broke; handing over")
            event = broken(error)
        yield TriggerEvent(event)

    async def _watch(self) -> dict[str, Any]:
        while True:
            quote, words = await run_blocking("market", _best_quote, self.request)
            if quote is not None:
                return {"quote": quote}
            left_s = self.until_s - time.time()
            if left_s <= 0:
                return {"late": True, "market": words}
            await asyncio.sleep(min(self.poll_interval_s, left_s))


def broken(error: Exception) -> dict[str, Any]:
    """Return the event of a watch that broke."""
    return {"broken": f"{type(error).__name__}: {error}"}


# These run on a thread, imports included: they take longer than the event loop may stand still.
def _open_rental(
    settings: Mapping[str, Any],
) -> tuple[Callable[[Watched], AbstractContextManager[LeaseAlarm]], RentalWatch]:
    from airflow_llmsched.provider.lease_watch import watching_leases
    from airflow_llmsched.provider.rental_watch import RentalWatch

    return watching_leases, RentalWatch(settings)


def _best_quote(request: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    from airflow_llmsched.provider.rental_watch import best_quote

    return best_quote(request)
