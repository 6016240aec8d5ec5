"""Puts a run's rental policy together, in whatever process acts for the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.market import Survey, survey_market
from airflow_llmsched.control.rental_memory import MemoryFile
from airflow_llmsched.control.rented_capacity import RentalTerms, RentedCapacity
from airflow_llmsched.control.renting import CloudChoice, Renter, Wanted
from airflow_llmsched.planner.market.checkpoint_way import SavedState
from airflow_llmsched.planner.market.expected_prices import ExpectedPrices, PricesSeen
from airflow_llmsched.planner.market.prior import default_hazards
from airflow_llmsched.planner.market.stock import ALWAYS, StockModel
from airflow_llmsched.provider.own_hazards import fitted_hazards
from airflow_llmsched.provider.prices_seen import prices_seen
from airflow_llmsched.provider.rentals import RentalSettings, merged_prices, open_clouds_of
from airflow_llmsched.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """How a run is rented for by a policy; JSON-safe through ``codec``, so that a trigger can carry it.

    ``tick_s`` is how often the policy is asked, ``slack_s`` how much later it may come to that; the others are as in
    ``control.rented_capacity.RentalTerms``. ``storages`` are folders of checkpoints by ``cloud/region``,
    ``traces`` a file of availability that hazards are fitted to; empty: those that come with the package.
    ``checkpoint`` is what is copied from one storage to another; None: nothing, or nobody knows how much.
    """

    rental: RentalSettings
    tick_s: float
    slack_s: float
    changeover_s: float
    patience_s: float = HOUR_S
    stock: StockModel = ALWAYS
    max_late_ratio: float = 0.001
    storages: Mapping[str, str] = field(default_factory=dict)
    traces: str = ""
    checkpoint: SavedState | None = None


def open_capacity(
    settings: PolicySettings, renter: Renter, *, deadline_s: float | None, max_usd: float | None, num_steps: int
) -> RentedCapacity:
    """Return what chooses the run's capacity. ``deadline_s`` is absolute (Unix seconds)."""
    rental = settings.rental
    request = rental.request

    def survey(seen_by_run: PricesSeen, work_ratio: float) -> Survey:
        now_s = SystemClock().now_s()
        seen_by_all = prices_seen(request.need, now_s=now_s)
        return survey_market(
            request.need,
            open_clouds_of(request),
            merged_prices,
            now_s=now_s,
            max_usd_per_hour=request.max_usd_per_hour,
            energy=request.energy,
            prices=ExpectedPrices(seen_by_all, seen_by_run, now_s=now_s, work_ratio=work_ratio),
        )

    def wanted() -> Wanted:
        return Wanted(
            purpose=rental.purpose,
            generation=rental.generation,
            since_s=rental.since_s,
            quotes=(),
            clouds={name: CloudChoice(name=name, options=options) for name, options in request.clouds.items()},
            origin=rental.scope.origin,
            hold_s=rental.hold_s,
        )

    return RentedCapacity(
        terms=RentalTerms(
            need=request.need,
            deadline_s=deadline_s,
            max_usd=max_usd,
            num_tokens=request.num_tokens,
            num_steps=num_steps,
            tick_s=settings.tick_s,
            slack_s=settings.slack_s,
            changeover_s=settings.changeover_s,
            patience_s=settings.patience_s,
            stock=settings.stock,
            max_late_ratio=settings.max_late_ratio,
            weights=request.energy.weights,
            checkpoint=settings.checkpoint,
        ),
        renter=renter,
        survey=survey,
        wanted=wanted,
        memory=MemoryFile(rental.scope.store(), rental.scope.run_key),
        hazards=fitted_hazards(settings.traces) if settings.traces else default_hazards(),
        clock=SystemClock(),
    )
