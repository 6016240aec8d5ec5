"""Keeps one run on the capacity that its rental policy chooses: what ``market.replay`` does with traces, with clouds.

A policy is asked every tick. What it chooses is rented before what is held is given back, so that a refusal costs
nothing; a process that dies in between leaves two leases, of which the next tick keeps the newer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.control.renting import Renter, Wanted
from airflow_llmsched.domain.capacity import Quote
from airflow_llmsched.domain.lease import Lease, LeaseState
from airflow_llmsched.errors import CapacityError, QuotaError, RelaxError
from airflow_llmsched.planner.market.rental import Holding, RentalChoice, RentalPolicy, RentalView
from airflow_llmsched.planner.market.rental_ways import Stock, Way, spot_stocks
from airflow_llmsched.planner.market.values import SpotTerms
from airflow_llmsched.ports import Clock

IsUp = Callable[[Stock], bool]
"""Whether a pool has what the run needs, as far as anyone can tell without renting it."""

Denies = Callable[[Way, Quote], str]
"""Why something must not be rented, in words; empty if it may be."""

Refusal = CapacityError | QuotaError | RelaxError

_USABLE = (LeaseState.ACTIVE, LeaseState.PENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a run computes on after a tick; ``is_new``: it was rented in that tick, so that a changeover is due."""

    holding: Holding
    lease: Lease | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What the policy wants held: the first of ``quotes`` that can be had; nothing, if there is none."""

    holding: Holding
    quotes: tuple[Quote, ...] = ()


class RentalDriver:
    """Acts for one run. No lease is forgotten with the process; what the policy had seen of the pools is not kept here.

    Args:
        renter: rents for the run.
        policy: chooses. One with modes has a mode for each of ``ways``, in their order.
        ways: what it may choose from (``rental_ways``).
        terms: what the run needs; ``time_s`` is from now to the deadline.
        wanted: purpose, generation and origin of what is rented; its quotes do not count.
        is_up: see ``IsUp``.
        clock: tells the time.
        denies: see ``Denies``.
        heeds_loss: what is held has been announced to go, so that it counts as gone, while it is not given back.
    """

    def __init__(
        self,
        renter: Renter,
        policy: RentalPolicy,
        *,
        ways: Sequence[Way],
        terms: SpotTerms,
        wanted: Wanted,
        is_up: IsUp,
        clock: Clock,
        denies: Denies = lambda _way, _quote: "",
        heeds_loss: bool = False,
    ) -> None:
        self._renter = renter
        self._policy = policy
        self._deadline_s = clock.now_s() + terms.time_s
        self._ways = tuple(ways)
        self._spot = spot_stocks(ways)
        self._wanted = wanted
        self._is_up = is_up
        self._clock = clock
        self._denies = denies
        self._heeds_loss = heeds_loss
        policy.begin(terms, num_runs=1, num_pools=len(self._spot))

    def tick(self, *, work_s: float, overhead_s: float, tick_s: float) -> Held:
        """Ask the policy, hold what it says for the next ``tick_s`` seconds, and give back everything else.

        ``work_s`` is the computing left to do, ``overhead_s`` what is left of the last changeover. A spot pool that
        refuses counts as down for this tick, on-demand capacity as out of stock, and the policy is asked again.

        Raises:
            CapacityError, QuotaError: on-demand capacity is refused, and nothing else is chosen. What was held is held.
            RelaxError: the same, and it is not for want of capacity.
            LeftoverError, TransientError: as ``Renter.rent``.
        """
        purpose, held = self._newest()
        now = self._settle(held, self._other(purpose), work_s=work_s, overhead_s=overhead_s, tick_s=tick_s)
        if now.lease is None or now.is_new:
            reason = "nothing is to be held" if now.lease is None else f"moved to {now.lease.id}"
            self._renter.give_up(purpose, reason=reason)
        return now

    def ahead(self, *, work_s: float, overhead_s: float, tick_s: float, patience_s: float) -> Held:
        """Ask the policy while a gang computes on what is held: rent what it says beside that, and give nothing back.

        What an earlier call rented and is still on its way is waited for, for ``patience_s`` seconds from its order on.
        The lease is the gang's own if nothing is to change, and None if nothing is to be held any more. Raises as
        :meth:`tick`.
        """
        leases = self._usable()
        if len(leases) > 1:
            purpose, newest = leases[-1]
            ordered_at_s = self._renter.ordered_at_s(purpose) or 0.0
            if newest.state is LeaseState.ACTIVE or self._clock.now_s() < ordered_at_s + patience_s:
                return Held(holding=self._holding(newest)[0], lease=newest, is_new=True)
            self._renter.give_up(purpose, reason=f"still {newest.state} {patience_s:.0f} s after it was ordered")
        if leases:
            purpose, held = leases[0]
            seen = None if self._heeds_loss else held
            return self._settle(seen, self._other(purpose), work_s=work_s, overhead_s=overhead_s, tick_s=tick_s)
        # What the gang is on is broken, and stays until it has left: others must not meet its ranks there.
        spares = [purpose for purpose in self._purposes if self._renter.ordered_at_s(purpose) is None]
        if not spares:
            return Held(holding=Holding.NOTHING)
        return self._settle(None, spares[0], work_s=work_s, overhead_s=0.0, tick_s=tick_s)

    def held(self) -> Lease | None:
        """Return the newest lease that is of use, None where there is none. Raises as ``Renter.look``."""
        leases = self._usable()
        return leases[-1][1] if leases else None

    def _settle(self, held: Lease | None, purpose: str, *, work_s: float, overhead_s: float, tick_s: float) -> Held:
        """Rent under ``purpose`` what the policy chooses, unless that is held."""
        refused: set[Stock] = set()
        refusal: Refusal | None = None
        while True:
            view = self._view(held, refused, work_s=work_s, overhead_s=overhead_s, tick_s=tick_s)
            choice = self._chosen(self._policy.choose(view), view) if work_s > 0 else _NONE
            if held is not None and _stock_of(held) in [Stock.of(quote) for quote in choice.quotes]:
                return Held(holding=choice.holding, lease=held)
            if not choice.quotes:
                if refusal is not None and held is None:
                    raise refusal
                return Held(holding=Holding.NOTHING)
            if all(Stock.of(quote) in refused for quote in choice.quotes):  # the policy insists
                if held is not None:
                    return Held(holding=self._holding(held)[0], lease=held)
                raise refusal or CapacityError("nothing that is left to choose can be had")
            try:
                lease = self._rent(choice, purpose)
            except (CapacityError, QuotaError, RelaxError) as error:
                refused.update(Stock.of(quote) for quote in choice.quotes)
                if choice.holding is Holding.ON_DEMAND or isinstance(error, RelaxError):
                    refusal = error
                continue
            return Held(holding=self._holding(lease)[0], lease=lease, is_new=True)

    def _rent(self, choice: _Choice, purpose: str) -> Lease:
        denials = {quote: self._denies(self._way_of(quote), quote) for quote in choice.quotes}
        allowed = tuple(quote for quote, words in denials.items() if not words)
        if not allowed:
            raise RelaxError(next(iter(denials.values())))
        return self._renter.rent(replace(self._wanted, purpose=purpose, quotes=allowed))

    def _newest(self) -> tuple[str, Lease | None]:
        """Return the newest usable lease and its purpose, having given back whatever else there is."""
        leases = self._usable()
        kept = leases[-1][0] if leases else self._purposes[0]
        for purpose in self._purposes:
            if not leases or purpose != kept:
                self._renter.give_up(purpose, reason="of no use, or replaced")
        return kept, leases[-1][1] if leases else None

    def _usable(self) -> list[tuple[str, Lease]]:
        """Return what is rented and of use, by purpose, oldest first."""
        found = [(purpose, self._renter.look(purpose)) for purpose in self._purposes]
        usable = [(purpose, lease) for purpose, lease in found if lease is not None and lease.state in _USABLE]
        return sorted(usable, key=lambda each: (each[1].key.generation, each[1].key.rental))

    def _view(
        self, held: Lease | None, refused: set[Stock], *, work_s: float, overhead_s: float, tick_s: float
    ) -> RentalView:
        stock = None if held is None else _stock_of(held)
        up = [each not in refused and (each == stock or self._is_up(each)) for each in self._spot]
        holding, mode, index = self._holding(held)
        demand = {Stock.of(quote) for way in self._ways for quote in way.demand}
        in_stock = holding is Holding.ON_DEMAND or bool(demand - refused)
        left_s = self._deadline_s - self._clock.now_s()
        return RentalView(
            left_s=left_s,
            tick_s=min(tick_s, left_s),
            work_s_N=np.array([work_s]),
            overhead_s_N=np.array([overhead_s if held is not None else 0.0]),
            holding_N=np.array([int(holding)]),
            pool_N=np.array([index]),
            up_ZN=np.array(up, dtype=np.bool_)[:, None],
            at_s_N=np.array([self._clock.now_s()]),
            in_stock_N=np.array([in_stock]),
            mode_N=np.array([mode]) if len(self._ways) > 1 else None,
        )

    def _holding(self, held: Lease | None) -> tuple[Holding, int, int]:
        """Return what kind of capacity a lease is, of which way, and its pool's number."""
        if held is None:
            return Holding.NOTHING, 0, 0
        stock = _stock_of(held)
        for number, way in enumerate(self._ways):
            if stock in [Stock.of(quote) for quote in way.spot]:
                return Holding.SPOT, number, self._spot.index(stock)
            if stock in [Stock.of(quote) for quote in way.demand]:
                return Holding.ON_DEMAND, number, 0
        return Holding.NOTHING, 0, 0

    def _chosen(self, choice: RentalChoice, view: RentalView) -> _Choice:
        holding, way = Holding(int(choice.holding_N[0])), 0 if choice.mode_N is None else int(choice.mode_N[0])
        if holding is Holding.NOTHING:
            return _NONE
        if holding is Holding.ON_DEMAND:
            has_some = view.holding_N[0] == Holding.ON_DEMAND
            quotes = self._ways[way].demand if has_some else self._any_demand(way, view)
            return _Choice(holding=holding, quotes=quotes)
        stock = self._spot[int(choice.pool_N[0])]
        quotes = tuple(quote for each in self._ways for quote in each.spot if Stock.of(quote) == stock)
        return _Choice(holding=holding, quotes=quotes)

    def _any_demand(self, chosen: int, view: RentalView) -> tuple[Quote, ...]:
        """Return the chosen way's on-demand capacity, then that of others: those in time first, the cheapest first."""
        work_s = float(view.work_s_N[0])

        def rank(way: Way) -> tuple[bool, float]:
            takes_s = work_s * way.work_s / self._ways[0].work_s
            is_late = takes_s > view.left_s
            return is_late, takes_s if is_late else takes_s * way.demand_usd_per_hour

        others = sorted((way for number, way in enumerate(self._ways) if number != chosen), key=rank)
        return tuple(quote for way in (self._ways[chosen], *others) for quote in way.demand)

    def _way_of(self, quote: Quote) -> Way:
        return next(way for way in self._ways if quote in (*way.spot, *way.demand))

    @property
    def _purposes(self) -> Sequence[str]:
        """Two, so that one can be rented while the other is held."""
        return (f"{self._wanted.purpose}-1", f"{self._wanted.purpose}-2")

    def _other(self, purpose: str) -> str:
        first, second = self._purposes
        return second if purpose == first else first


_NONE = _Choice(holding=Holding.NOTHING)


def _stock_of(lease: Lease) -> Stock:
    return Stock(pool=lease.pool, num_nodes=lease.num_nodes)
