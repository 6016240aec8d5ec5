"""What tasks and triggers do about a run's rentals: rent, keep, look, give back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.lease_book import LeaseBook
from airflow_llmsched.control.market import Market, ask_market
from airflow_llmsched.control.renting import CloudChoice, Renter, Wanted
from airflow_llmsched.domain.capacity import Quote, Requirement
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.errors import CapacityError, QuotaError, RelaxError, TransientError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.market.budget import Go, Standing, judge
from airflow_llmsched.planner.market.energy_terms import NO_ENERGY, EnergyTerms
from airflow_llmsched.planner.market.expected_prices import ExpectedPrices
from airflow_llmsched.ports import Cloud, PriceSource
from airflow_llmsched.prices.list_prices import ListPrices
from airflow_llmsched.prices.merged import AgedSource, MergedPrices
from airflow_llmsched.prices.snapshots import SnapshotPrices
from airflow_llmsched.provider.clouds import open_cloud
from airflow_llmsched.provider.config import state_root
from airflow_llmsched.provider.prices_seen import prices_seen
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.units import HOUR_S

log = logging.getLogger(__name__)

SNAPSHOT_MAX_AGE_S = 24 * HOUR_S
"""A snapshot's price older than this is no guide to a market."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """What is wanted of which clouds; JSON-safe through ``codec``, so that a trigger can carry it.

    ``clouds`` holds the options of each cloud adapter by its name. A node may cost ``max_usd_per_hour`` at most, and
    the run ``max_usd`` in all, for its ``num_tokens``. ``energy`` is what electricity and carbon count for.
    """

    clouds: Mapping[str, Mapping[str, Any]]
    need: Requirement
    max_usd_per_hour: float | None = None
    max_usd: float | None = None
    num_tokens: int = 0
    energy: EnergyTerms = NO_ENERGY


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalSettings:
    """How one task rents; JSON-safe through ``codec``. Times are Unix seconds."""

    scope: RunScope
    purpose: str
    request: CapacityRequest
    generation: int = 0
    since_s: float = 0.0
    hold_s: float = HOUR_S


def ask(request: CapacityRequest) -> Market:
    """Return what could be rented now. Raises ``CouldNotLookError``, ``SpecError``."""
    now_s = SystemClock().now_s()
    return ask_market(
        request.need,
        open_clouds_of(request),
        merged_prices,
        now_s=now_s,
        max_usd_per_hour=request.max_usd_per_hour,
        energy=request.energy,
        prices=ExpectedPrices(prices_seen(request.need, now_s=now_s), now_s=now_s),
    )


def open_clouds_of(request: CapacityRequest) -> list[Cloud]:
    """Open the clouds that a run may rent from. Raises as ``open_cloud``."""
    allowed = request.need.wish.clouds or tuple(request.clouds)
    return [open_cloud(name, options) for name, options in request.clouds.items() if name in allowed]


def open_book(scope: RunScope) -> LeaseBook:
    """Return the run's rentals."""
    return LeaseBook(scope.store(), scope.run_key)


def open_renter(scope: RunScope) -> Renter:
    """Return what rents for the run. Raises ``StoreError``."""
    return Renter(open_book(scope), open_cloud=open_cloud, clock=SystemClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of trying to rent: a lease, active or pending, or why there is none.

    ``asks`` says in words what somebody might buy, because it would be cheaper (``Market.asks``).
    """

    lease: Lease | None = None
    refusal: CapacityError | QuotaError | TransientError | None = None
    asks: str = ""

    @property
    def words(self) -> str:
        """Return why what was wanted is not there, for people."""
        if self.lease is None:
            return str(self.refusal)
        return f"lease {self.lease.id} is {self.lease.state}{f': {self.lease.reason}' if self.lease.reason else ''}"


def try_to_rent(settings: RentalSettings) -> Tried:
    """Rent the cheapest that can be had and paid for, or take up what an earlier try rented.

    Raises:
        RelaxError: all that is on offer would cost the run more than its budget.
        SpecError, AbandonedError, LeftoverError, TransientError: as ``Renter.rent``, and as :func:`ask`.
    """
    market, renter = ask(settings.request), open_renter(settings.scope)
    log.info("market: %s", market.explain())
    market, denial = _within_budget(settings.request, market, renter)
    try:
        return Tried(lease=renter.rent(_wanted(settings, market.quotes)), asks=market.asks)
    except CapacityError as error:
        if denial:
            hint = "raise budget.max_usd, or allow cheaper capacity"
            raise RelaxError(f"nothing was rented: {denial}; {hint}") from error
        return Tried(refusal=CapacityError(f"{error} ({market.explain()})"), asks=market.asks)
    except QuotaError as error:
        return Tried(refusal=error, asks=market.asks)


def _within_budget(request: CapacityRequest, market: Market, renter: Renter) -> tuple[Market, str]:
    """Return the market less what the budget denies, and the denial in words where it denies everything."""
    if request.max_usd is None or not market.quotes:
        return market, ""
    spent_usd = renter.spent_usd()
    verdicts = [judge(_standing(quote, request, spent_usd), max_usd=request.max_usd) for quote in market.quotes]
    quotes = tuple(quote for quote, each in zip(market.quotes, verdicts, strict=True) if isinstance(each, Go))
    return replace(market, quotes=quotes), "" if quotes else verdicts[0].words


def _standing(quote: Quote, request: CapacityRequest, spent_usd: float) -> Standing:
    """Return how the run would stand with a quote: the quote tells what the whole run costs, and for how long."""
    gang_usd_per_hour = quote.num_nodes * quote.usd_per_hour
    held_s = quote.compute_usd / gang_usd_per_hour * HOUR_S if gang_usd_per_hour > 0 else 0.0
    return Standing(
        spent_usd=spent_usd + quote.egress_usd,
        usd_per_hour=quote.num_nodes * quote.budget_usd_per_hour,
        left_tokens=request.num_tokens,
        goodput_tokens_per_s=request.num_tokens / held_s if held_s > 0 else 0.0,
        is_running=False,
    )


def _wanted(settings: RentalSettings, quotes: tuple[Quote, ...]) -> Wanted:
    """Return what to try to rent, in the market's order."""
    return Wanted(
        purpose=settings.purpose,
        generation=settings.generation,
        since_s=settings.since_s,
        quotes=quotes,
        clouds={name: CloudChoice(name=name, options=options) for name, options in settings.request.clouds.items()},
        origin=settings.scope.origin,
        hold_s=settings.hold_s,
    )


def merged_prices(sources: Sequence[PriceSource]) -> PriceSource:
    """Return the clouds' own prices, then a fresh enough snapshot's, then the built-in list's."""
    return MergedPrices(
        *(AgedSource(source=each) for each in sources),
        AgedSource(source=SnapshotPrices(open_store(state_root())), max_age_s=SNAPSHOT_MAX_AGE_S),
        AgedSource(source=ListPrices()),
    )
