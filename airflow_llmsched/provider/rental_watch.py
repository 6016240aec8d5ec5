"""What triggers look at for a rental: the lease itself, or the market. Errors that time may mend are no answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.control.renting import Renter
from airflow_llmsched.domain.lease import LeaseState
from airflow_llmsched.errors import TransientError
from airflow_llmsched.provider.lease_watch import Watched
from airflow_llmsched.provider.rentals import CapacityRequest, RentalSettings, ask, open_renter

log = logging.getLogger(__name__)


class RentalWatch:
    """One pending rental, from a trigger's arguments. For one thread at a time."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = codec.from_plain(RentalSettings, settings)
        self._renter: Renter | None = None

    @property
    def watched(self) -> Watched:
        """Return whose leases are to be kept meanwhile."""
        return Watched(scope=self._settings.scope)

    def look(self) -> dict[str, Any] | None:
        """Return what to hand over, None while the lease is pending or cannot be seen."""
        try:
            self._renter = self._renter or open_renter(self._settings.scope)
            lease = self._renter.look(self._settings.purpose, waits_for_new=True)
        except TransientError as error:
            log.warning("the lease of %s could not be looked at: %s", self._settings.purpose, error)
            self._renter = None  # the next look opens its cloud anew
            return None
        if lease is None:
            return {"seen": "nothing"}
        return None if lease.state is LeaseState.PENDING else {"seen": str(lease.state)}


def best_quote(request: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the best quote in codec form, or None (nothing serves, nobody could be asked), and the market in words."""
    try:
        market = ask(codec.from_plain(CapacityRequest, request))
    except TransientError as error:
        log.warning("the market could not be asked: %s", error)
        return None, str(error)
    return (codec.to_plain(market.quotes[0]) if market.quotes else None), market.explain()
