"""What a run may be rented, as a policy weighs it: ways to run, each a mode with its own speed, prices and pools. Pure.

A way is so many nodes of one shape in one region: another region, another shape and another size are other ways, and so
a quote of each is all it takes for the policy to move a run there. A way without on-demand capacity is none, because no
promise could be kept in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.capacity import Pool, Quote, Requirement
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.forecast import HazardModel
from airflow_llmsched.planner.market.gang_hazards import of_gang
from airflow_llmsched.planner.market.modes import Mode, ModeSet, Move, reshaped, seconds_of
from airflow_llmsched.planner.market.values import SpotTerms

MAX_WAYS = 4
"""Ways that are weighed at once: each takes a table of its own, a second's work."""

_LEAST_RATIO = 1e-6
"""What costs nothing costs this share of the first way's on-demand capacity."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Stock:
    """So many nodes of a pool together: what is there, or is not, for a run."""

    pool: Pool
    num_nodes: int

    @classmethod
    def of(cls, quote: Quote) -> Stock:
        """Return what a quote is for."""
        return cls(pool=quote.offer.pool, num_nodes=quote.num_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """``demand`` is on-demand (or reserved) capacity, cheapest first; ``spot`` has one quote for each zone.

    In a mix both are what is added to ``base``, a smaller way whose on-demand capacity is kept all the time. Costs an
    hour are as quotes are compared, with what electricity and carbon count for.
    """

    work_s: float
    demand: tuple[Quote, ...]
    spot: tuple[Quote, ...] = ()
    base: Way | None = None

    @property
    def base_usd_per_hour(self) -> float:
        """What is kept all the time costs: nothing, but in a mix."""
        return 0.0 if self.base is None else self.base.demand_usd_per_hour

    @property
    def demand_usd_per_hour(self) -> float:
        """What the whole gang costs on demand."""
        return self.base_usd_per_hour + _gang_usd_per_hour(self.demand[0])

    @property
    def spot_usd_per_hour(self) -> float:
        """What the whole gang is expected to cost on spot capacity, in the dearest zone; on-demand's where is none."""
        spot_usd_per_hour = [self.base_usd_per_hour + _gang_usd_per_hour(quote) for quote in self.spot]
        return max(spot_usd_per_hour, default=self.demand_usd_per_hour)

    def at_price(self) -> Way:
        """Return the way as a sum must pay for it: no price is thought to fall, and nothing else is counted."""
        base = None if self.base is None else self.base.at_price()
        return replace(self, demand=_at_price(self.demand), spot=_at_price(self.spot), base=base)

    @property
    def place(self) -> tuple[str, str]:
        """Return cloud and region."""
        return self.demand[0].offer.pool.cloud, self.demand[0].offer.pool.region

    @property
    def shape(self) -> str:
        """Return the node shape."""
        return self.demand[0].offer.pool.shape

    def describe(self) -> str:
        """Return in words what it is."""
        cloud, region = self.place
        kept = "" if self.base is None else f"{self.base.demand[0].num_nodes} kept on demand + "
        return f"{kept}{self.demand[0].num_nodes} nodes of {self.shape} in {cloud} {region}"


def ways_of(
    quotes: Iterable[Quote], need: Requirement, *, held: Stock | None = None, limit: int = MAX_WAYS
) -> tuple[Way, ...]:
    """Return the ways that ``quotes`` make, the cheapest on demand first: it is what the others are measured by.

    Of more than ``limit`` the cheapest on spot capacity, the fastest, and that of what is ``held`` are kept.
    """
    work_s = {(name, each.num_nodes): each.work_s for by_shape in need.rounds for name, each in by_shape.items()}
    groups: dict[tuple[str, str, str, int], list[Quote]] = {}
    for quote in quotes:
        pool = quote.offer.pool
        if (pool.shape, quote.num_nodes) in work_s:
            groups.setdefault((pool.cloud, pool.region, pool.shape, quote.num_nodes), []).append(quote)
    ways = [_way(group, work_s[shape, num]) for (*_, shape, num), group in sorted(groups.items()) if _demand(group)]
    ways.sort(key=lambda way: way.demand[0].weighed_usd)
    wanted = [*ways[:1], *[way for way in ways if held in _stocks(way)]]
    wanted += sorted(ways, key=lambda way: way.spot_usd_per_hour * way.work_s)[:1]
    wanted += [*sorted(ways, key=lambda way: way.work_s)[:1], *ways]
    chosen = list(dict.fromkeys(wanted))[:limit]
    return tuple(sorted(chosen, key=lambda way: way.demand[0].weighed_usd))


def spot_stocks(ways: Sequence[Way]) -> tuple[Stock, ...]:
    """Return all spot capacity of all ways, in the order in which a policy numbers its pools."""
    return tuple(Stock.of(quote) for way in ways for quote in way.spot)


def hazards_of(ways: Sequence[Way], hazards: HazardModel, *, correlation: float) -> tuple[HazardModel, ...]:
    """Return what the pools of each way are like: of all nodes that it seeks there, in a mix of those that it adds."""
    return tuple(of_gang(hazards, way.demand[0].num_nodes, correlation=correlation) for way in ways)


def unit_usd_per_hour(ways: Sequence[Way]) -> float:
    """Return what an hour costs of that in seconds of which costs are counted: the first way, on demand.

    Where that is free, the first that is not: against nothing, to be late would cost nothing either.
    """
    return next((usd for way in ways if (usd := way.demand_usd_per_hour) > _LEAST_RATIO), _LEAST_RATIO)


def mode_set(ways: Sequence[Way], *, time_s: float, work_ratio: float, changeover_s: float) -> ModeSet:
    """Return the ways as modes of the same number each, for a run that has ``work_ratio`` of its work before it."""
    first = ways[0]
    base = SpotTerms(
        time_s=time_s, work_s=max(1.0, first.work_s * work_ratio), changeover_s=changeover_s, spot_ratio=1.0
    )
    usd_per_hour = unit_usd_per_hour(ways)
    modes, num_before = [], 0
    for way in ways:
        terms = reshaped(
            base,
            speed_ratio=first.work_s / way.work_s,
            demand_ratio=max(_LEAST_RATIO, way.demand_usd_per_hour / usd_per_hour),
            spot_ratio=max(_LEAST_RATIO, way.spot_usd_per_hour / usd_per_hour),
        )
        if way.base is not None:
            base_ratio = max(_LEAST_RATIO, way.base_usd_per_hour / usd_per_hour)
            terms = replace(terms, base_ratio=base_ratio, base_speed_ratio=first.work_s / way.base.work_s)
        pools = tuple(range(num_before, num_before + len(way.spot)))
        modes.append(Mode(name=way.describe(), terms=terms, pools=pools))
        num_before += len(way.spot)
    moves = {
        (here, there): Move(
            duration_s=changeover_s + way.demand[0].stage_s,
            cost_s=seconds_of(way.demand[0].egress_usd, gang_usd_per_hour=usd_per_hour),
        )
        for here in range(len(ways))
        for there, way in enumerate(ways)
        if here != there and ways[here].place != way.place
    }
    return ModeSet(modes=tuple(modes), moves=moves)


def _way(group: Sequence[Quote], work_s: float) -> Way:
    spot = [quote for quote in group if quote.offer.pool.capacity_type is CapacityType.SPOT]
    return Way(work_s=work_s, demand=_demand(group), spot=tuple(sorted(spot, key=lambda each: each.offer.pool)))


def _demand(group: Sequence[Quote]) -> tuple[Quote, ...]:
    safe = [quote for quote in group if quote.offer.pool.capacity_type is not CapacityType.SPOT]
    return tuple(sorted(safe, key=lambda each: (each.weighed_usd, each.offer.pool)))


def _stocks(way: Way) -> set[Stock]:
    return {Stock.of(quote) for quote in (*way.demand, *way.spot)}


def _at_price(quotes: Sequence[Quote]) -> tuple[Quote, ...]:
    return tuple(
        replace(quote, expected_usd_per_hour=quote.budget_usd_per_hour, extra_usd=0.0, extra_usd_per_hour=0.0)
        for quote in quotes
    )


def _gang_usd_per_hour(quote: Quote) -> float:
    return quote.num_nodes * (quote.usd_per_hour + quote.extra_usd_per_hour)
