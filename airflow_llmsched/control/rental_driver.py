"""Keeps one run on the capacity that its rental policy chooses: what ``market.replay`` does with traces, with clouds.

A policy is asked every tick. What it chooses is rented before what is held is given back, so that a refusal costs
nothing; a process that dies in between leaves two leases, of which the next tick keeps the newer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.control.rental_parts import Part, Parts, RentalRack, Role
from airflow_llmsched.control.renting import Renter, Wanted
from airflow_llmsched.domain.capacity import Quote
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import Lease, LeaseState
from airflow_llmsched.errors import CapacityError, QuotaError, RelaxError
from airflow_llmsched.planner.market.mixed_ways import is_made_of
from airflow_llmsched.planner.market.rental import Holding, RentalChoice, RentalPolicy, RentalView
from airflow_llmsched.planner.market.rental_ways import Stock, Way, spot_stocks
from airflow_llmsched.planner.market.values import SpotTerms
from airflow_llmsched.ports import Clock

IsUp = Callable[[Stock], bool]
"""Whether a pool has what the run needs, as far as anyone can tell without renting it."""

Denies = Callable[[Way, Quote], str]
"""Why something must not be rented, in words; empty if it may be."""

StatesLateness = Callable[[RentalView], float]
"""The probability of missing the deadline that is stated for a run as it stands."""

Refusal = CapacityError | QuotaError | RelaxError


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a run computes on after a tick: one lease, or in a mix two, of which the first is the one that stays.

    ``is_new``: it is not what the run had before, so that a changeover is due. ``late_ratio`` is the probability of
    missing the deadline that is stated from here on.
    """

    holding: Holding
    parts: tuple[Part, ...] = ()
    is_new: bool = False
    late_ratio: float = 0.0

    @property
    def lease(self) -> Lease | None:
        """Return the first lease, None where nothing is held."""
        return self.parts[0].lease if self.parts else None

    @property
    def pending(self) -> tuple[Part, ...]:
        """Return what is still on its way."""
        return tuple(part for part in self.parts if part.lease.state is LeaseState.PENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What the policy wants held: the first of ``main`` that can be had, and beside it the first of ``more``.

    Nothing without ``main``; without ``more`` there is only one part.
    """

    holding: Holding
    way: int = 0
    main: tuple[Quote, ...] = ()
    more: tuple[Quote, ...] = ()


class RentalDriver:
    """Acts for one run. No lease is forgotten with the process; what the policy had seen of the pools is not kept here.

    Args:
        renter: rents for the run.
        policy: chooses. One with modes has a mode for each of ``ways``, in their order.
        ways: what it may choose from (``rental_ways``, ``mixed_ways``).
        terms: what the run needs; ``time_s`` is from now to the deadline.
        wanted: purpose, generation and origin of what is rented; its quotes do not count.
        is_up: see ``IsUp``.
        clock: tells the time.
        denies: see ``Denies``.
        states_lateness: see ``StatesLateness``.
        home: the cloud and region in which its newest checkpoint lies, from where ways are counted while nothing is
            held; None: in none of its own, so that all ways are as far.
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
        states_lateness: StatesLateness = lambda _view: 0.0,
        home: tuple[str, str] | None = None,
    ) -> None:
        self._renter = renter
        self._policy = policy
        self._deadline_s = clock.now_s() + terms.time_s
        self._ways = tuple(ways)
        self._spot = spot_stocks(ways)
        self._way_of_pool = [number for number, way in enumerate(ways) for _ in way.spot]
        self._wanted = wanted
        self._is_up = is_up
        self._clock = clock
        self._denies = denies
        self._states_lateness = states_lateness
        self._home = next((number for number, way in enumerate(ways) if way.base is None and way.place == home), 0)
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
        rack = self._rack()
        held = rack.newest()
        rack.give_up(but=held.purposes, reason="of no use, or replaced")
        now = self._settle(rack, held, held.purposes, work_s=work_s, overhead_s=overhead_s, tick_s=tick_s)
        told = ", ".join(str(part.lease.id) for part in now.parts)
        reason = f"moved to {told}" if told else "nothing is to be held"
        rack.give_up(held.purposes, but=[part.purpose for part in now.parts], reason=reason)
        return now

    def ahead(
        self, *, work_s: float, overhead_s: float, tick_s: float, patience_s: float, nodes: Collection[NodeId] = ()
    ) -> Held:
        """Ask the policy while a gang computes on ``nodes``: rent what it says beside them, and give nothing back.

        What an earlier call rented and is still on its way is waited for, for ``patience_s`` seconds from its order on.
        Nothing is held if the gang is to leave what it has. Raises as :meth:`tick`.
        """
        rack = self._rack()
        gang = rack.under(nodes)
        fresh = [part for part in rack.newest().all if part.purpose not in gang]
        if fresh:
            late = [part for part in fresh if self._is_late(part, patience_s)]
            if not late:
                newest = rack.newest()
                return Held(holding=self._holding(newest)[0], parts=newest.all, is_new=True)
            reason = f"{late[0].lease.id} is still {late[0].lease.state} {patience_s:.0f} s after it was ordered"
            rack.give_up([part.purpose for part in fresh], reason=reason)
        rack.give_up([part.purpose for part in rack.parts], but=gang, reason="of no use")
        # What the gang is on and is broken stays until it has left: others must not meet its ranks there.
        held = rack.newest(among=gang)
        overhead_s = overhead_s if held.main is not None else 0.0
        now = self._settle(rack, held, gang, work_s=work_s, overhead_s=overhead_s, tick_s=tick_s)
        return replace(now, is_new=bool(now.parts) and {part.purpose for part in now.parts} != gang)

    def held(self) -> Parts:
        """Return the newest that is of use. Raises as ``Renter.look``."""
        return self._rack().newest()

    def _rack(self) -> RentalRack:
        return RentalRack(self._renter, self._wanted.purpose)

    def _is_late(self, part: Part, patience_s: float) -> bool:
        is_there = part.lease.state is LeaseState.ACTIVE
        return not is_there and self._clock.now_s() >= part.ordered_at_s + patience_s

    def _settle(
        self, rack: RentalRack, held: Parts, taken: Collection[str], *, work_s: float, overhead_s: float, tick_s: float
    ) -> Held:
        """Rent what the policy chooses, unless that is held, under none of the purposes ``taken``."""
        attempt = _Attempt(held)

        def view_of(parts: Parts) -> RentalView:
            return self._view(parts, attempt.refused, work_s=work_s, overhead_s=overhead_s, tick_s=tick_s)

        while True:
            view = view_of(held)
            choice = self._chosen(self._policy.choose(view), view, held) if work_s > 0 else _NONE
            if self._ways[choice.way].base is not None and attempt.is_refused(choice):
                choice = _Choice(holding=Holding.ON_DEMAND, main=self._any_demand(choice.way, view))
            if not choice.main:
                attempt.drop(rack)
                if attempt.refusal is not None and held.main is None:
                    raise attempt.refusal
                return self._held_as(view_of(Parts()), Parts())
            if attempt.is_refused(choice):  # the policy insists
                attempt.drop(rack)
                if held.main is None:
                    raise attempt.refusal or CapacityError("nothing that is left to choose can be had")
                return self._held_as(view, held)
            main, more = attempt.serving(choice)
            attempt.drop(rack, but=[part.purpose for part in (main, more) if part is not None])
            try:
                main_quotes, more_quotes = self._allowed(choice)
                main = main or attempt.took(self._rent(rack, main_quotes, Role.MAIN, taken))
                if more_quotes:
                    more = more or attempt.took(self._rent(rack, more_quotes, Role.MORE, taken))
            except (CapacityError, QuotaError, RelaxError) as error:
                attempt.was_refused(choice, error)
                continue
            parts = Parts(main=main, more=more if choice.more else None)
            return self._held_as(view_of(parts), parts, is_new=parts.purposes != held.purposes)

    def _held_as(self, view: RentalView, parts: Parts, *, is_new: bool = False) -> Held:
        holding, late_ratio = self._holding(parts)[0], self._states_lateness(view)
        return Held(holding=holding, parts=parts.all, is_new=is_new, late_ratio=late_ratio)

    def _allowed(self, choice: _Choice) -> tuple[tuple[Quote, ...], tuple[Quote, ...]]:
        """Return what of a choice may be paid for. Raises ``RelaxError`` when nothing of it may."""
        way = self._ways[choice.way]
        judged = choice.more or choice.main
        denials = {quote: self._denies(self._judged_way(way, quote, choice), quote) for quote in judged}
        allowed = tuple(quote for quote, words in denials.items() if not words)
        if not allowed:
            raise RelaxError(next(iter(denials.values())))
        return (choice.main, allowed) if choice.more else (allowed, ())

    def _judged_way(self, way: Way, quote: Quote, choice: _Choice) -> Way:
        """Return the way that a quote is of: another's, where it is that one's on-demand capacity."""
        if way.base is not None:
            return way if choice.more else way.base
        return next(each for each in self._ways if each.base is None and quote in (*each.spot, *each.demand))

    def _rent(self, rack: RentalRack, quotes: tuple[Quote, ...], role: Role, taken: Collection[str]) -> Part:
        purpose = rack.free_purpose(role, taken=taken)
        lease = self._renter.rent(replace(self._wanted, purpose=purpose, quotes=quotes))
        return rack.rented(purpose, lease, at_s=self._clock.now_s())

    def _view(self, held: Parts, refused: set[Stock], *, work_s: float, overhead_s: float, tick_s: float) -> RentalView:
        stocks = [part.stock for part in held.all]
        up = [each not in refused and (each in stocks or self._is_up(each)) for each in self._spot]
        holding, mode, index = self._holding(held)
        demand = {Stock.of(quote) for way in self._ways for quote in way.demand}
        in_stock = holding is Holding.ON_DEMAND or bool(demand - refused)
        left_s = self._deadline_s - self._clock.now_s()
        return RentalView(
            left_s=left_s,
            tick_s=min(tick_s, left_s),
            work_s_N=np.array([work_s]),
            overhead_s_N=np.array([overhead_s if held.main is not None else 0.0]),
            holding_N=np.array([int(holding)]),
            pool_N=np.array([index]),
            up_ZN=np.array(up, dtype=np.bool_)[:, None],
            at_s_N=np.array([self._clock.now_s()]),
            in_stock_N=np.array([in_stock]),
            mode_N=np.array([mode]) if len(self._ways) > 1 else None,
            in_stock_MN=np.array([[not refused.issuperset(map(Stock.of, way.demand))] for way in self._ways]),
        )

    def _holding(self, held: Parts) -> tuple[Holding, int, int]:
        """Return what kind of capacity is held, of which way, and its pool's number.

        What a mix keeps, alone, is that smaller way on demand where it is among the ways.
        """
        if held.main is None:
            return Holding.NOTHING, self._home, 0
        stocks = [part.stock for part in held.all]
        for number, way in enumerate(self._ways):
            is_mix = way.base is not None
            if is_mix != (len(stocks) > 1) or (is_mix and not is_made_of(way, stocks)):
                continue
            spot = [Stock.of(quote) for quote in way.spot]
            if stocks[-1] in spot:
                return Holding.SPOT, number, self._way_of_pool.index(number) + spot.index(stocks[-1])
            if stocks[-1] in [Stock.of(quote) for quote in way.demand]:
                return Holding.ON_DEMAND, number, 0
        for number, way in enumerate(self._ways):
            if way.base is not None and stocks[0] in [Stock.of(quote) for quote in way.base.demand]:
                return Holding.NOTHING, number, 0
        return Holding.NOTHING, self._home, 0

    def _chosen(self, choice: RentalChoice, view: RentalView, held: Parts) -> _Choice:
        holding, number = Holding(int(choice.holding_N[0])), 0 if choice.mode_N is None else int(choice.mode_N[0])
        if holding is Holding.SPOT:
            pool = int(choice.pool_N[0])
            number = self._way_of_pool[pool]
        way = self._ways[number]
        base = () if way.base is None else way.base.demand
        if holding is Holding.NOTHING:
            return _Choice(holding=holding, way=number, main=base)
        if holding is Holding.SPOT:
            quotes = tuple(quote for quote in way.spot if Stock.of(quote) == self._spot[pool])
            return _Choice(holding=holding, way=number, main=base or quotes, more=quotes if base else ())
        if base:
            return _Choice(holding=holding, way=number, main=base, more=way.demand)
        grown = self._grown(way, held)
        if grown is not None:
            return grown
        has_some = view.holding_N[0] == Holding.ON_DEMAND
        return _Choice(holding=holding, way=number, main=way.demand if has_some else self._any_demand(number, view))

    def _grown(self, way: Way, held: Parts) -> _Choice | None:
        """Return how to come to all of ``way`` on demand by adding to what is held; None: it is no part of that."""
        if held.main is None or held.main.stock in map(Stock.of, way.demand):
            return None
        for number, mix in enumerate(self._ways):
            if mix.base is None or (mix.work_s, mix.place, mix.shape) != (way.work_s, way.place, way.shape):
                continue
            if held.main.stock in map(Stock.of, mix.base.demand):
                return _Choice(holding=Holding.ON_DEMAND, way=number, main=mix.base.demand, more=mix.demand)
        return None

    def _any_demand(self, chosen: int, view: RentalView) -> tuple[Quote, ...]:
        """Return the chosen way's on-demand capacity, then that of others: those in time first, the cheapest first.

        Only of whole gangs: a mix takes two leases.
        """
        work_s = float(view.work_s_N[0])

        def rank(way: Way) -> tuple[bool, bool, float]:
            takes_s = work_s * way.work_s / self._ways[0].work_s
            is_late = takes_s > view.left_s
            return way is not self._ways[chosen], is_late, takes_s if is_late else takes_s * way.demand_usd_per_hour

        whole = sorted((way for way in self._ways if way.base is None), key=rank)
        return tuple(quote for way in whole for quote in way.demand)


class _Attempt:
    """What was refused and what was taken while the policy was asked again and again."""

    def __init__(self, held: Parts) -> None:
        self._held = held
        self._fresh: list[Part] = []
        self.refused: set[Stock] = set()
        self.refusal: Refusal | None = None

    def serving(self, choice: _Choice) -> tuple[Part | None, Part | None]:
        """Return what there is already of a choice. What is added belongs to what it was added to."""
        fresh = {role: [part for part in self._fresh if part.role is role] for role in Role}
        main = _serving(choice.main, [*self._held.all, *fresh[Role.MAIN]])
        is_kept = main is not None and main is self._held.main
        added = [self._held.more] if is_kept and self._held.more is not None else []
        return main, None if main is None else _serving(choice.more, [*added, *fresh[Role.MORE]])

    def is_refused(self, choice: _Choice) -> bool:
        """Whether something is missing of a choice, all of which has been refused."""
        main, more = self.serving(choice)
        missing = [quotes for quotes, part in ((choice.main, main), (choice.more, more)) if quotes and part is None]
        return any(self.refused.issuperset(map(Stock.of, quotes)) for quotes in missing)

    def took(self, part: Part) -> Part:
        """Remember what was rented."""
        self._fresh.append(part)
        return part

    def was_refused(self, choice: _Choice, error: Refusal) -> None:
        """Remember that a choice cannot be had: a mix as a whole, where its base was refused."""
        main, _ = self.serving(choice)
        quotes = choice.more if main is not None else (*choice.main, *choice.more)
        self.refused.update(Stock.of(quote) for quote in quotes)
        if choice.holding is not Holding.SPOT or isinstance(error, RelaxError):
            self.refusal = error

    def drop(self, rack: RentalRack, *, but: Collection[str] = ()) -> None:
        """Give back what was rented for a choice of which the rest could not be had."""
        rack.give_up([part.purpose for part in self._fresh], but=but, reason="the rest of it could not be had")
        self._fresh = [part for part in self._fresh if part.purpose in but]


def _serving(quotes: Sequence[Quote], parts: Sequence[Part]) -> Part | None:
    stocks = [Stock.of(quote) for quote in quotes]
    return next((part for part in parts if part.stock in stocks), None)


_NONE = _Choice(holding=Holding.NOTHING)
