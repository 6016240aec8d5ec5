"""Chooses a run's capacity by its rental policy: rent spot while it pays, be in time, move, wait.

What this knows is from the cloud, the book and the memory each time, so that any process may go on with it. The policy
weighs what is left of the work at the pace seen so far, from the newest checkpoint on: a loss never surprises it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.control.capacity import Denied, Holds, Moves, Standing, Stays, Waits
from airflow_llmsched.control.market import Survey
from airflow_llmsched.control.rental_driver import Held, RentalDriver
from airflow_llmsched.control.rental_memory import MemoryFile, RentalMemory, Sighting
from airflow_llmsched.control.rental_parts import Part, Parts, RentalRack, described, is_announced
from airflow_llmsched.control.renting import Renter, Wanted
from airflow_llmsched.domain.capacity import Pool, Quote, Requirement
from airflow_llmsched.domain.lease import LeaseState
from airflow_llmsched.errors import CapacityError, QuotaError, RelaxError
from airflow_llmsched.planner.market import budget
from airflow_llmsched.planner.market.checkpoint_way import SavedState, brought
from airflow_llmsched.planner.market.expected_prices import PricesSeen, told_prices
from airflow_llmsched.planner.market.forecast import HazardModel
from airflow_llmsched.planner.market.mixed_ways import with_mixes
from airflow_llmsched.planner.market.modes import ModeSet, seconds_of
from airflow_llmsched.planner.market.offers import NO_WEIGHTS, Weights
from airflow_llmsched.planner.market.rental import Holding, RentalView
from airflow_llmsched.planner.market.rental_ways import (
    Stock,
    Way,
    hazards_of,
    mode_set,
    spot_stocks,
    unit_usd_per_hour,
    ways_of,
)
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.stock import ALWAYS, StockModel
from airflow_llmsched.planner.market.within_budget import soonest_s
from airflow_llmsched.ports import Clock
from airflow_llmsched.units import HOUR_S

log = logging.getLogger(__name__)

WAIT_POLL_S = 60.0
"""How long to wait before asking again, with nothing held, or with something on its way."""

LEAST_GAIN_RATIO = 0.5
"""What a move must gain beside its changeover, of what a changeover costs on demand: prices come and go by as much."""

LONGEST_RATIO = 8.0
"""A budget without a date is good for at most this many times the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalTerms:
    """What a run is rented for. ``deadline_s`` is absolute (Unix seconds); without one there must be ``max_usd``.

    The policy is asked every ``tick_s``, and ``slack_s`` later at most. ``changeover_s`` is from leaving to training at
    full pace elsewhere, paid and without progress. What is on its way is waited for for ``patience_s``. ``stock`` says
    how on-demand capacity runs out and comes back, ``max_late_ratio`` how often that may make such a run late.
    ``weights`` are those by which the surveyed quotes were compared. ``checkpoint`` is what is brought along where a
    region has a storage of its own; None: nothing is, or nobody knows how large it is.
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
    stock: StockModel = ALWAYS
    max_late_ratio: float = 0.001
    weights: Weights = NO_WEIGHTS
    checkpoint: SavedState | None = None


class RentedCapacity:
    """A ``CapacityChooser``. ``survey`` asks the market; ``wanted`` says for whom is rented.

    ``survey`` is told what the run saw prices be, and for which share of its work capacity is still to be held.
    ``hazards`` are of ``hazards.num_nodes`` together, whatever count a way then is of.
    """

    def __init__(
        self,
        *,
        terms: RentalTerms,
        renter: Renter,
        survey: Callable[[PricesSeen, float], Survey],
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
            if desk.stays:
                return Holds(reason=desk.stays)
            held = desk.driver.tick(
                work_s=desk.work_s,
                overhead_s=self._terms.changeover_s,
                tick_s=self._terms.tick_s + self._terms.slack_s,
            )
        except RelaxError as error:
            return Denied(reason=str(error))
        except (CapacityError, QuotaError) as error:
            return Waits(reason=str(error), again_at_s=soon_s)
        if not held.parts:
            reason = f"waits for spot capacity: there is time{_late(held)}{desk.told_prices(held)}"
            return Waits(reason=reason, again_at_s=soon_s)
        awaited = [part for part in held.pending if not self._is_done_without(part, held, now_s=now_s)]
        if awaited:
            return Waits(reason=f"lease {awaited[0].lease.id} is on its way", again_at_s=min(soon_s, now_s + 15.0))
        return Holds(reason=f"{described(held.parts)}{_late(held)}{desk.told_prices(held)}")

    def review(self, standing: Standing) -> Stays | Moves:
        """Say whether to leave, what to go on with being rented already. Raises as :meth:`hold`."""
        now_s, pace_ratio = self._clock.now_s(), self._pace_ratio(standing)
        later_s, soon_s = now_s + self._terms.tick_s, now_s + min(WAIT_POLL_S, self._terms.tick_s)
        try:
            desk = self._desk(replace(standing, pace_ratio=pace_ratio))
            if desk.stays:
                return Stays(reason=desk.stays, again_at_s=soon_s, pace_ratio=pace_ratio)
            held = desk.driver.ahead(
                work_s=desk.work_s,
                overhead_s=0.0,
                tick_s=self._terms.tick_s + self._terms.slack_s,
                patience_s=self._terms.patience_s,
                nodes=standing.nodes,
            )
        except (CapacityError, QuotaError, RelaxError) as error:
            return Stays(reason=f"stays: {error}", again_at_s=soon_s, pace_ratio=pace_ratio)
        if not held.parts:
            reason = "leaves what it has, to wait for spot capacity" if desk.held.main else "its lease is broken"
            return Moves(reason=reason, pace_ratio=pace_ratio)
        told = f"{described(held.parts)}{_late(held)}{desk.told_prices(held)}"
        if not held.is_new:
            return Stays(reason=told, again_at_s=later_s, pace_ratio=pace_ratio)
        if held.pending:
            reason = f"lease {held.pending[0].lease.id} is on its way"
            return Stays(reason=reason, again_at_s=soon_s, pace_ratio=pace_ratio)
        return Moves(reason=f"moves to {told} ({standing.cause})", pace_ratio=pace_ratio)

    def _is_done_without(self, part: Part, held: Held, *, now_s: float) -> bool:
        """Whether a gang starts on what a mix keeps, because what is added takes longer than another start would."""
        main = held.parts[0]
        is_added = part is not main and main.lease.state is LeaseState.ACTIVE
        return is_added and now_s >= part.ordered_at_s + self._terms.changeover_s

    def _pace_ratio(self, standing: Standing) -> float:
        """Return how much longer a step takes on what is held than was thought, as last seen where it shows nothing."""
        held = self._held()
        if standing.step_s is None or held.main is None:
            return standing.pace_ratio
        shape = held.main.lease.pool.shape
        num_nodes = len(standing.nodes) or sum(part.lease.num_nodes for part in held.all)
        needs = [each[shape] for each in self._terms.need.rounds if shape in each]
        work_s = next((need.work_s for need in needs if need.num_nodes == num_nodes), 0.0)
        return standing.step_s * self._terms.num_steps / work_s if work_s > 0 else standing.pace_ratio

    def _desk(self, standing: Standing) -> _Desk:
        """Lay out what there is to choose from. Raises ``RelaxError`` for what cannot be promised or paid."""
        memory, work_ratio = self._memory.read(), standing.left_ratio * standing.pace_ratio
        survey, held = self._survey(memory.prices, work_ratio), self._held()
        if survey.market.asks:
            log.warning("something cheaper could be bought: %s", survey.market.asks)
        stocks = [part.stock for part in held.all]
        listed = brought(survey.market.quotes, saved=self._terms.checkpoint, region=standing.saved_in)
        quotes = [*listed, *self._held_quotes(held, survey.market.quotes)]
        ways = ways_of(quotes, self._terms.need, held=stocks[0] if stocks else None)
        if not ways:
            raise CapacityError(f"there is no on-demand capacity to fall back on: {survey.market.explain()}")
        ways = with_mixes(ways, quotes, self._terms.need, held=stocks)
        hazards = hazards_of(ways, self._hazards, correlation=self._terms.need.shared_loss_ratio)
        deadline_s, memory = self._deadline_s(ways, hazards[0], memory, work_ratio=work_ratio)
        modes = mode_set(
            ways,
            time_s=max(1.0, deadline_s - self._clock.now_s()),
            work_ratio=work_ratio,
            changeover_s=self._terms.changeover_s,
        )
        policy = SpotPolicy(
            hazards,
            modes=modes,
            stock=self._terms.stock,
            max_miss_ratio=self._terms.max_late_ratio,
            least_gain_s=LEAST_GAIN_RATIO * self._terms.changeover_s,
        )
        going = {part.stock for part in self._rack().parts if is_announced(part.lease)}

        def is_up(stock: Stock) -> bool:
            return stock in stocks or (stock not in going and survey.has(stock.pool, stock.num_nodes))

        driver = RentalDriver(
            self._renter,
            policy,
            ways=ways,
            terms=modes.modes[0].terms,
            wanted=self._wanted(),
            is_up=is_up,
            clock=self._clock,
            denies=lambda way, quote: self._denial(way, quote, standing, held),
            states_lateness=lambda view: float(policy.promised_miss_N(view)[0]),
            home=_place(standing.saved_in),
        )
        pools = spot_stocks(ways)
        _recall(policy, memory, [_name(stock) for stock in pools], modes, deadline_s=deadline_s)
        sighting = Sighting(
            at_s=self._clock.now_s(),
            up={_name(stock): is_up(stock) for stock in pools},
            in_stock=any(is_up(Stock.of(quote)) for way in ways for quote in way.demand),
            unseen=survey.unseen,
            usd_per_hour=_prices_now(survey.market.quotes, [stock.pool for stock in pools]),
        )
        self._memory.write(memory.seen(sighting))
        spot = tuple(quote for way in ways for quote in way.spot)
        stays = self._stays_unseen(held, ways, survey, left_s=deadline_s - self._clock.now_s(), work_ratio=work_ratio)
        return _Desk(driver=driver, work_s=modes.modes[0].terms.work_s, held=held, spot=spot, stays=stays)

    def _stays_unseen(
        self, held: Parts, ways: Sequence[Way], survey: Survey, *, left_s: float, work_ratio: float
    ) -> str:
        """Return in words that what is held is kept, as its place does not answer; empty where it is weighed, or left.

        Without the place's on-demand capacity it is in no way to run, and the policy would leave it for another place,
        dear as that may be, for a list that comes back. It is left once there is no more time for that than is needed.
        """
        sought = [*ways, *(way.base for way in ways if way.base is not None)]
        known = {Stock.of(quote) for way in sought for quote in (*way.demand, *way.spot)}
        silent = [part for part in held.all if part.stock not in known and survey.is_silent(part.stock.pool)]
        if not silent or any(is_announced(part.lease) for part in held.all):
            return ""
        terms, pool = self._terms, silent[0].stock.pool
        elsewhere_s = min(way.work_s * work_ratio + way.demand[0].stage_s for way in ways)
        if left_s < elsewhere_s + 2 * terms.changeover_s + terms.tick_s + terms.slack_s + terms.patience_s:
            return ""
        told = f"{pool.cloud} {pool.region} does not say what it offers"
        return f"{described(held.all)}; {told}: what is held there stays"

    def _rack(self) -> RentalRack:
        return RentalRack(self._renter, self._wanted().purpose)

    def _held(self) -> Parts:
        """Return the newest that runs; what is on its way, or broken, says nothing of its pool."""
        rack = self._rack()
        return rack.newest(among=[part.purpose for part in rack.parts if part.lease.state is LeaseState.ACTIVE])

    def _held_quotes(self, held: Parts, listed: Sequence[Quote]) -> list[Quote]:
        """Return what the run holds and no cloud lists: they list only what others could have.

        They are quotes of whole gangs, at the price at which the parts were rented. Of what is reserved and kept there
        may be no more: it is no price of the whole gang.
        """
        counts = {part.stock.num_nodes for part in held.all[:1]} | {sum(part.stock.num_nodes for part in held.all)}
        known = {Stock.of(quote) for quote in listed}
        return [
            self._quote(part, num_nodes)
            for part in held.all
            for num_nodes in sorted(counts)
            if Stock(pool=part.lease.pool, num_nodes=num_nodes) not in known
            and (num_nodes == part.stock.num_nodes or part is held.more or not part.is_reserved)
        ]

    def _quote(self, part: Part, num_nodes: int) -> Quote:
        """Return what so many nodes of a part's pool cost."""
        offer, now_s, shape = self._renter.offer_of(part.lease), self._clock.now_s(), part.lease.pool.shape
        work_s = max((each[shape].work_s for each in self._terms.need.rounds if shape in each), default=HOUR_S)
        extra_usd_per_hour = self._terms.weights.extra_usd_per_hour(offer)
        return Quote(
            offer=offer,
            num_nodes=num_nodes,
            compute_usd=num_nodes * offer.usd_per_hour * work_s / HOUR_S,
            egress_usd=0.0,
            stage_s=0.0,
            finish_at_s=now_s + work_s,
            valid_until_s=now_s,
            extra_usd=num_nodes * extra_usd_per_hour * work_s / HOUR_S,
            extra_usd_per_hour=extra_usd_per_hour,
        )

    def _deadline_s(
        self, ways: tuple[Way, ...], hazards: HazardModel, memory: RentalMemory, *, work_ratio: float
    ) -> tuple[float, RentalMemory]:
        """Return the run's deadline, or the soonest that its money is good for, which is remembered."""
        if self._terms.deadline_s is not None:
            return self._terms.deadline_s, memory
        if memory.deadline_s is not None:
            return memory.deadline_s, memory
        max_usd = self._terms.max_usd
        if max_usd is None:
            raise RelaxError("a rental policy needs a date or a sum: set budget.deadline or budget.max_usd")
        ways = tuple(way.at_price() for way in ways)  # a sum pays bills, and nothing that is only counted
        modes = mode_set(
            ways,
            time_s=LONGEST_RATIO * max(1.0, ways[0].work_s * work_ratio),
            work_ratio=work_ratio,
            changeover_s=self._terms.changeover_s,
        )
        left_usd = max_usd - self._renter.spent_usd()
        terms = modes.modes[0].terms
        budget_s = seconds_of(left_usd, gang_usd_per_hour=unit_usd_per_hour(ways))
        within_s = soonest_s(hazards, terms, budget_s=budget_s)
        if within_s is None:
            cheapest = f"{ways[0].describe()} for {terms.work_s / HOUR_S:.3g} h"
            raise RelaxError(f"${left_usd:,.2f} are not expected to pay for {cheapest}: raise budget.max_usd")
        deadline_s = self._clock.now_s() + within_s
        return deadline_s, RentalMemory(sightings=memory.sightings, deadline_s=deadline_s)

    def _denial(self, way: Way, quote: Quote, standing: Standing, held: Parts) -> str:
        """Return in words why a quote would cost the run more than it may, empty if it would not."""
        if self._terms.max_usd is None:
            return ""
        places = [(part.lease.pool.cloud, part.lease.pool.region) for part in held.all]  # where the data is already
        left_s = way.work_s * standing.left_ratio * standing.pace_ratio
        left_tokens = self._terms.num_tokens * standing.left_ratio
        verdict = budget.judge(
            budget.Standing(
                spent_usd=self._renter.spent_usd() + (0.0 if way.place in places else quote.egress_usd),
                usd_per_hour=way.at_price().base_usd_per_hour + quote.num_nodes * quote.budget_usd_per_hour,
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
    held: Parts
    spot: tuple[Quote, ...]
    stays: str

    def told_prices(self, held: Held) -> str:
        """Return in words how the price of what is held, or of what is not, is expected to change; often nothing."""
        stocks = [part.stock for part in held.parts]
        mine = [quote for quote in self.spot if Stock.of(quote) in stocks]
        told = told_prices(mine or self.spot)
        return f"; {told}" if told else ""


def _prices_now(quotes: Sequence[Quote], pools: Sequence[Pool]) -> dict[str, float]:
    """Return what a node of each pool costs now, by the pool's name, as far as it is listed."""
    usd_per_hour = {quote.offer.pool: quote.offer.usd_per_hour for quote in quotes}
    return {pool.name: usd_per_hour[pool] for pool in pools if pool in usd_per_hour}


def _recall(policy: SpotPolicy, memory: RentalMemory, names: list[str], modes: ModeSet, *, deadline_s: float) -> None:
    """Have a policy see again what earlier processes saw. A pool that was not among the choices then was down.

    One whose region did not answer is taken to have been as it was: silence is no loss.
    """
    nothing = np.zeros(1)
    up = dict.fromkeys(names, False)
    for sighting in memory.sightings:
        up = {name: sighting.up.get(name, False) if sighting.tells_of(name) else up[name] for name in names}
        policy.see(
            RentalView(
                left_s=deadline_s - sighting.at_s,
                tick_s=1.0,
                work_s_N=np.array([modes.modes[0].terms.work_s]),
                overhead_s_N=nothing,
                holding_N=np.array([int(Holding.NOTHING)]),
                pool_N=np.zeros(1, dtype=np.int64),
                up_ZN=np.array([up[name] for name in names], dtype=np.bool_)[:, None],
                at_s_N=np.array([sighting.at_s]),
                in_stock_N=np.array([sighting.in_stock]),
            )
        )


def _place(storage: str) -> tuple[str, str] | None:
    """Return the cloud and region whose storage it is; None: it is no region's own."""
    cloud, is_region, region = storage.partition("/")
    return (cloud, region) if is_region else None


def _late(held: Held) -> str:
    """Return in words what is stated of the deadline; nothing where on-demand capacity is never out of stock."""
    late = f"at most {held.late_ratio:.2%}" if held.late_ratio >= 1e-4 else "less than 0.01%"
    return f"; late with a probability of {late}, as on-demand capacity may run out" if held.late_ratio else ""


def _name(stock: Stock) -> str:
    return f"{stock.pool.name}/{stock.num_nodes}"
