"""Keeps one run on the capacity that its rental policy chooses: what ``market.replay`` does with traces, with clouds.

A policy is asked every tick. What it chooses is rented before what is held is given back, so that a refusal costs
nothing; a process that dies in between leaves two leases, of which the next tick keeps the newer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.control.renting import Renter, Wanted
from airflow_llmsched.domain.capacity import Pool, Quote
from airflow_llmsched.domain.lease import Lease, LeaseState
from airflow_llmsched.errors import CapacityError, QuotaError
from airflow_llmsched.planner.market.rental import Holding, RentalChoice, RentalPolicy, RentalView
from airflow_llmsched.planner.market.values import SpotTerms
from airflow_llmsched.ports import Clock

IsUp = Callable[[Pool], bool]
"""Whether a pool has what the run needs, as far as anyone can tell without renting it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What there is to choose from: spot capacity in each pool, and on-demand capacity. All are of one node shape."""

    spot: tuple[Quote, ...]
    on_demand: Quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a run computes on after a tick; ``is_new``: it was rented in that tick, so that a changeover is due."""

    holding: Holding
    lease: Lease | None = None
    is_new: bool = False


class RentalDriver:
    """Acts for one run. The policy forgets with the process what it had seen of the pools; no lease is forgotten.

    Args:
        renter: rents for the run.
        policy: chooses.
        terms: what the run needs; ``time_s`` is from now to the deadline.
        choices: what it may choose from.
        wanted: purpose, generation and origin of what is rented; its quotes do not count.
        is_up: see ``IsUp``.
        clock: tells the time.
    """

    def __init__(
        self,
        renter: Renter,
        policy: RentalPolicy,
        *,
        terms: SpotTerms,
        choices: Choices,
        wanted: Wanted,
        is_up: IsUp,
        clock: Clock,
    ) -> None:
        self._renter = renter
        self._policy = policy
        self._deadline_s = clock.now_s() + terms.time_s
        self._choices = choices
        self._wanted = wanted
        self._is_up = is_up
        self._clock = clock
        policy.begin(terms, num_runs=1, num_pools=len(choices.spot))

    def tick(self, *, work_s: float, overhead_s: float, tick_s: float) -> Held:
        """Ask the policy, and hold what it says for the next ``tick_s`` seconds.

        ``work_s`` is the computing left to do, ``overhead_s`` what is left of the last changeover. A spot pool that
        refuses counts as down for this tick, on-demand capacity as out of stock, and the policy is asked again.

        Raises:
            CapacityError, QuotaError: on-demand capacity is refused, and nothing else is chosen. What was held is held.
            LeftoverError, TransientError: as ``Renter.rent``.
        """
        purpose, held = self._held()
        refused: set[Pool] = set()
        out_of_stock: CapacityError | QuotaError | None = None
        while True:
            view = self._view(held, refused, work_s=work_s, overhead_s=overhead_s, tick_s=tick_s)
            choice = self._policy.choose(view) if work_s > 0 else _NOTHING
            holding = Holding(int(choice.holding_N[0]))
            quote = self._quote(holding, int(choice.pool_N[0]))
            if quote is not None and held is not None and quote.offer.pool == held.pool:
                return Held(holding=holding, lease=held)
            if quote is None:
                if out_of_stock is not None and held is None:
                    raise out_of_stock
                self._renter.give_up(purpose, reason="nothing is to be held")
                return Held(holding=Holding.NOTHING)
            try:
                lease = self._renter.rent(replace(self._wanted, purpose=self._other(purpose), quotes=(quote,)))
            except (CapacityError, QuotaError) as refusal:
                if quote.offer.pool in refused:
                    raise  # the policy insists
                refused.add(quote.offer.pool)
                if holding is Holding.ON_DEMAND:
                    out_of_stock = refusal
                continue
            self._renter.give_up(purpose, reason=f"moved to {lease.id}")
            return Held(holding=holding, lease=lease, is_new=True)

    def _held(self) -> tuple[str, Lease | None]:
        """Return the newest usable lease and its purpose, having given back whatever else there is."""
        found = [(purpose, self._renter.look(purpose)) for purpose in self._purposes]
        usable = [
            (lease.key.generation, lease.key.rental, purpose, lease)
            for purpose, lease in found
            if lease is not None and lease.state in (LeaseState.ACTIVE, LeaseState.PENDING)
        ]
        *_, kept, newest = max(usable, key=lambda each: each[:2], default=(0, 0, found[0][0], None))
        for purpose, _ in found:
            if newest is None or purpose != kept:
                self._renter.give_up(purpose, reason="of no use, or replaced")
        return kept, newest

    def _view(
        self, held: Lease | None, refused: set[Pool], *, work_s: float, overhead_s: float, tick_s: float
    ) -> RentalView:
        pools = [quote.offer.pool for quote in self._choices.spot]
        up = [pool not in refused and (self._holds(held, pool) or self._is_up(pool)) for pool in pools]
        holding, index = Holding.NOTHING, 0
        if held is not None:
            holding = Holding.SPOT if held.pool in pools else Holding.ON_DEMAND
            index = pools.index(held.pool) if held.pool in pools else 0
        in_stock = holding is Holding.ON_DEMAND or self._choices.on_demand.offer.pool not in refused
        left_s = self._deadline_s - self._clock.now_s()
        return RentalView(
            left_s=left_s,
            tick_s=min(tick_s, left_s),
            work_s_N=np.array([work_s]),
            overhead_s_N=np.array([overhead_s if held is not None else 0.0]),
            holding_N=np.array([int(holding)]),
            pool_N=np.array([index]),
            up_ZN=np.array(up)[:, None],
            at_s_N=np.array([self._clock.now_s()]),
            in_stock_N=np.array([in_stock]),
        )

    @staticmethod
    def _holds(held: Lease | None, pool: Pool) -> bool:
        return held is not None and held.pool == pool

    def _quote(self, holding: Holding, index: int) -> Quote | None:
        if holding is Holding.NOTHING:
            return None
        return self._choices.spot[index] if holding is Holding.SPOT else self._choices.on_demand

    @property
    def _purposes(self) -> Sequence[str]:
        """Two, so that one can be rented while the other is held."""
        return (f"{self._wanted.purpose}-1", f"{self._wanted.purpose}-2")

    def _other(self, purpose: str) -> str:
        first, second = self._purposes
        return second if purpose == first else first


_NOTHING = RentalChoice(holding_N=np.array([int(Holding.NOTHING)]), pool_N=np.array([0]))
