"""Chooses a run's capacity by its rental policy: rent spot while it pays, be in time, move, wait.

What this knows is from the cloud, the book and the memory each time, so that any process may go on with it. The policy
weighs what is left of the work at the pace seen so far, from the newest checkpoint on: a loss never surprises it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.control.capacity import Denied, Holds, Moves, Standing, Stays, Waits
from airflow_llmsched.control.market import Survey
from airflow_llmsched.control.rental_driver import Held, RentalDriver
from airflow_llmsched.control.rental_memory import MemoryFile, RentalMemory, Sighting
from airflow_llmsched.control.renting import Renter, Wanted
from airflow_llmsched.domain.capacity import Quote, Requirement
from airflow_llmsched.domain.lease import Lease, LeaseState, NoticeKind
from airflow_llmsched.errors import CapacityError, QuotaError, RelaxError
from airflow_llmsched.planner.market import budget
from airflow_llmsched.planner.market.forecast import HazardModel
from airflow_llmsched.planner.market.modes import ModeSet, seconds_of
from airflow_llmsched.planner.market.rental import Holding, RentalView
from airflow_llmsched.planner.market.rental_ways import Stock, Way, mode_set, spot_stocks, ways_of
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.within_budget import soonest_s
from airflow_llmsched.ports import Clock
from airflow_llmsched.units import HOUR_S

WAIT_POLL_S = 60.0
"""How long to wait before asking again, with nothing held, or with something on its way."""

LONGEST_RATIO = 8.0
"""A budget without a date is good for at most this many times the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalTerms:
    """What a run is rented for. ``deadline_s`` is absolute (Unix seconds); without one there must be ``max_usd``.

    The policy is asked every ``tick_s``, and ``slack_s`` later at most. ``changeover_s`` is from leaving to training at
    full pace elsewhere, paid and without progress. What is on its way is waited for for ``patience_s``.
    """

    need: Requirement
    deadline_s: float | None
    max_usd: float | None
    num_tokens: int
    num_steps: int
    tick_s: float
    slack_s: float
    changeover_s: float
    patience_s: float


class RentedCapacity:
    """A ``CapacityChooser``. ``survey`` asks the market; ``wanted`` says for whom is rented."""

    def __init__(
        self,
        *,
        terms: RentalTerms,
        renter: Renter,
        survey: Callable[[], Survey],
        wanted: Callable[[], Wanted],
        memory: MemoryFile,
        hazards: HazardModel,
        clock: Clock,
    ) -> None:
        self._terms = terms
        self._renter = renter
        self._survey = survey
        self._wanted = wanted
        self._memory = memory
        self._hazards = hazards
        self._clock = clock

    def hold(self, standing: Standing) -> Holds | Waits | Denied:
        """Rent, or keep, what the policy chooses; give back all else. Raises ``TransientError``, ``LeftoverError``."""
        now_s = self._clock.now_s()
        soon_s = now_s + min(WAIT_POLL_S, self._terms.tick_s)
        try:
            desk = self._desk(standing)
            held = desk.driver.tick(
                work_s=desk.work_s,
                overhead_s=self._terms.changeover_s,
                tick_s=self._terms.tick_s + self._terms.slack_s,
            )
        except RelaxError as error:
            return Denied(reason=str(error))
        except (CapacityError, QuotaError) as error:
            return Waits(reason=str(error), again_at_s=soon_s)
        if held.lease is None:
            return Waits(reason="waits for spot capacity: there is time", again_at_s=soon_s)
        if held.lease.state is LeaseState.PENDING:
            return Waits(reason=f"lease {held.lease.id} is on its way", again_at_s=min(soon_s, now_s + 15.0))
        return Holds(reason=_told(held))

    def review(self, standing: Standing) -> Stays | Moves:
        """Say whether to leave, what to go on with being rented already. Raises as :meth:`hold`."""
        now_s, pace_ratio = self._clock.now_s(), self._pace_ratio(standing)
        later_s, soon_s = now_s + self._terms.tick_s, now_s + min(WAIT_POLL_S, self._terms.tick_s)
        try:
            desk = self._desk(replace(standing, pace_ratio=pace_ratio))
            held = desk.driver.ahead(
                work_s=desk.work_s,
                overhead_s=0.0,
                tick_s=self._terms.tick_s + self._terms.slack_s,
                patience_s=self._terms.patience_s,
            )
        except (CapacityError, QuotaError, RelaxError) as error:
            return Stays(reason=f"stays: {error}", again_at_s=soon_s, pace_ratio=pace_ratio)
        if held.lease is None:
            reason = "leaves what it has, to wait for spot capacity" if desk.held else "its lease is broken"
            return Moves(reason=reason, pace_ratio=pace_ratio)
        if not held.is_new:
            return Stays(reason=_told(held), again_at_s=later_s, pace_ratio=pace_ratio)
        if held.lease.state is LeaseState.PENDING:
            return Stays(reason=f"lease {held.lease.id} is on its way", again_at_s=soon_s, pace_ratio=pace_ratio)
        return Moves(reason=f"moves to {_told(held)} ({standing.cause})", pace_ratio=pace_ratio)

    def _pace_ratio(self, standing: Standing) -> float:
        """Return how much longer a step takes on what is held than was thought, as last seen where it shows nothing."""
        held = self._held()
        if standing.step_s is None or held is None:
            return standing.pace_ratio
        needs = [each[held.pool.shape] for each in self._terms.need.rounds if held.pool.shape in each]
        work_s = next((need.work_s for need in needs if need.num_nodes == held.num_nodes), 0.0)
        return standing.step_s * self._terms.num_steps / work_s if work_s > 0 else standing.pace_ratio

    def _desk(self, standing: Standing) -> _Desk:
        """Lay out what there is to choose from. Raises ``RelaxError`` for what cannot be promised or paid."""
        survey, held = self._survey(), self._held()
        memory = self._memory.read()
        quotes = survey.market.quotes
        if held is not None and _stock(held) not in {Stock.of(quote) for quote in quotes}:
            quotes = (*quotes, self._quote(held))  # its cloud lists only what others could have
        ways = ways_of(quotes, self._terms.need, held=None if held is None else _stock(held))
        if not ways:
            raise CapacityError(f"there is no on-demand capacity to fall back on: {survey.market.explain()}")
        deadline_s, memory = self._deadline_s(ways, standing, memory)
        modes = mode_set(
            ways,
            time_s=max(1.0, deadline_s - self._clock.now_s()),
            work_ratio=standing.left_ratio * standing.pace_ratio,
            changeover_s=self._terms.changeover_s,
        )
        taken = held is not None and any(_is_announced(held))
        policy = SpotPolicy(self._hazards, modes=modes)

        def is_up(stock: Stock) -> bool:
            if held is not None and stock == _stock(held):
                return not taken
            return survey.has(stock.pool, stock.num_nodes)

        driver = RentalDriver(
            self._renter,
            policy,
            ways=ways,
            terms=modes.modes[0].terms,
            wanted=self._wanted(),
            is_up=is_up,
            clock=self._clock,
            denies=lambda way, quote: self._denial(way, quote, standing),
            heeds_loss=taken,
        )
        stocks = spot_stocks(ways)
        _recall(policy, memory, [_name(stock) for stock in stocks], modes, deadline_s=deadline_s)
        sighting = Sighting(
            at_s=self._clock.now_s(),
            up={_name(stock): is_up(stock) for stock in stocks},
            in_stock=any(is_up(Stock.of(quote)) for way in ways for quote in way.demand),
        )
        self._memory.write(memory.seen(sighting))
        return _Desk(driver=driver, work_s=modes.modes[0].terms.work_s, held=held)

    def _held(self) -> Lease | None:
        """Return the newest lease that runs; what is on its way, or broken, says nothing of its pool."""
        active = self._renter.active()
        return active[-1] if active else None

    def _quote(self, held: Lease) -> Quote:
        """Return what the run holds, at the price at which it was rented."""
        offer, now_s, shape = self._renter.offer_of(held), self._clock.now_s(), held.pool.shape
        work_s = max((each[shape].work_s for each in self._terms.need.rounds if shape in each), default=HOUR_S)
        return Quote(
            offer=offer,
            num_nodes=held.num_nodes,
            compute_usd=held.num_nodes * offer.usd_per_hour * work_s / HOUR_S,
            egress_usd=0.0,
            stage_s=0.0,
            finish_at_s=now_s + work_s,
            valid_until_s=now_s,
        )

    def _deadline_s(
        self, ways: tuple[Way, ...], standing: Standing, memory: RentalMemory
    ) -> tuple[float, RentalMemory]:
        """Return the run's deadline, or the soonest that its money is good for, which is remembered."""
        if self._terms.deadline_s is not None:
            return self._terms.deadline_s, memory
        if memory.deadline_s is not None:
            return memory.deadline_s, memory
        max_usd = self._terms.max_usd
        if max_usd is None:
            raise RelaxError("a rental policy needs a date or a sum: set budget.deadline or budget.max_usd")
        work_ratio = standing.left_ratio * standing.pace_ratio
        modes = mode_set(
            ways,
            time_s=LONGEST_RATIO * max(1.0, ways[0].work_s * work_ratio),
            work_ratio=work_ratio,
            changeover_s=self._terms.changeover_s,
        )
        left_usd = max_usd - self._renter.spent_usd()
        terms = modes.modes[0].terms
        budget_s = seconds_of(left_usd, gang_usd_per_hour=ways[0].demand_usd_per_hour)
        within_s = soonest_s(self._hazards, terms, budget_s=budget_s)
        if within_s is None:
            cheapest = f"{ways[0].describe()} for {terms.work_s / HOUR_S:.3g} h"
            raise RelaxError(f"${left_usd:,.2f} are not expected to pay for {cheapest}: raise budget.max_usd")
        deadline_s = self._clock.now_s() + within_s
        return deadline_s, RentalMemory(sightings=memory.sightings, deadline_s=deadline_s)

    def _denial(self, way: Way, quote: Quote, standing: Standing) -> str:
        """Return in words why a quote would cost the run more than it may, empty if it would not."""
        if self._terms.max_usd is None:
            return ""
        left_s = way.work_s * standing.left_ratio * standing.pace_ratio
        left_tokens = self._terms.num_tokens * standing.left_ratio
        verdict = budget.judge(
            budget.Standing(
                spent_usd=self._renter.spent_usd() + quote.egress_usd,
                usd_per_hour=quote.num_nodes * quote.offer.usd_per_hour,
                left_tokens=left_tokens,
                goodput_tokens_per_s=left_tokens / left_s if left_s > 0 else 0.0,
                is_running=False,
            ),
            max_usd=self._terms.max_usd,
        )
        return "" if isinstance(verdict, budget.Go) else f"{verdict.words}; raise budget.max_usd"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    driver: RentalDriver
    work_s: float
    held: Lease | None


def _recall(policy: SpotPolicy, memory: RentalMemory, names: list[str], modes: ModeSet, *, deadline_s: float) -> None:
    """Have a policy see again what earlier processes saw. A pool that was not among the choices then was down."""
    nothing = np.zeros(1)
    for sighting in memory.sightings:
        policy.see(
            RentalView(
                left_s=deadline_s - sighting.at_s,
                tick_s=1.0,
                work_s_N=np.array([modes.modes[0].terms.work_s]),
                overhead_s_N=nothing,
                holding_N=np.array([int(Holding.NOTHING)]),
                pool_N=np.zeros(1, dtype=np.int64),
                up_ZN=np.array([sighting.up.get(name, False) for name in names], dtype=np.bool_)[:, None],
                at_s_N=np.array([sighting.at_s]),
                in_stock_N=np.array([sighting.in_stock]),
            )
        )


def _name(stock: Stock) -> str:
    pool = stock.pool
    return f"{pool.cloud}/{pool.region}/{pool.zone}/{pool.shape}/{pool.capacity_type}/{stock.num_nodes}"


def _stock(lease: Lease) -> Stock:
    return Stock(pool=lease.pool, num_nodes=lease.num_nodes)


def _is_announced(lease: Lease) -> list[bool]:
    return [node.notice is not None and node.notice.kind is NoticeKind.INTERRUPTION for node in lease.nodes]


def _told(held: Held) -> str:
    if held.lease is None:
        return "nothing"
    pool = held.lease.pool
    where = f"{pool.cloud} {pool.zone or pool.region}"
    return f"{held.lease.num_nodes} {pool.capacity_type} nodes of {pool.shape} in {where} (lease {held.lease.id})"
