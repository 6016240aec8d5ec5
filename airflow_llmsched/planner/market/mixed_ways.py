"""Ways that keep some of a gang's nodes on demand and seek the others on the spot market, in one zone. Pure.

Both parts are sizes that the run was planned for: with the kept nodes alone it goes on, at the speed of that size. So a
mix takes nothing but two quotes, and a gang that spot capacity leaves shrinks to what is kept instead of to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from airflow_llmsched.domain.capacity import Quote, Requirement
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.rental_ways import Stock, Way


def with_mixes(
    ways: Sequence[Way], quotes: Iterable[Quote], need: Requirement, *, held: Sequence[Stock] = ()
) -> tuple[Way, ...]:
    """Return the ways and, behind them, the mix that is cheapest to the end of the run, and the one that is ``held``.

    ``quotes`` are those of whole gangs, as in ``ways_of``; ``held`` are the two parts of a mix.
    """
    mixes = sorted(_mixes(list(quotes), need), key=lambda way: way.spot_usd_per_hour * way.work_s)
    mine = [mix for mix in mixes if len(held) > 1 and is_made_of(mix, held)]
    return (*ways, *dict.fromkeys([*mixes[:1], *mine[:1]]))


def is_made_of(mix: Way, held: Sequence[Stock]) -> bool:
    """Whether what is kept and what is added, in this order, is of a mix."""
    if mix.base is None or len(held) != 2:
        return False
    added = [Stock.of(quote) for quote in (*mix.spot, *mix.demand)]
    return held[0] in [Stock.of(quote) for quote in mix.base.demand] and held[1] in added


def _mixes(quotes: Sequence[Quote], need: Requirement) -> Iterator[Way]:
    for by_shape in need.rounds:
        for shape, whole in by_shape.items():
            smaller = {
                each[shape].num_nodes: each[shape].work_s
                for each in need.rounds
                if shape in each and each[shape].num_nodes < whole.num_nodes
            }
            here = [quote for quote in quotes if quote.offer.pool.shape == shape]
            for num_kept, kept_work_s in smaller.items():
                kept = [quote for quote in here if quote.num_nodes == num_kept and not _is_spot(quote)]
                gangs = [quote for quote in here if quote.num_nodes == whole.num_nodes]
                yield from _in_each_zone(kept, gangs, kept_work_s=kept_work_s, work_s=whole.work_s)


def _in_each_zone(kept: Sequence[Quote], gangs: Sequence[Quote], *, kept_work_s: float, work_s: float) -> Iterator[Way]:
    for zone in dict.fromkeys(_zone(quote) for quote in kept):
        base = tuple(quote for quote in _cheapest_first(kept) if _zone(quote) == zone)
        added = [_part(quote, quote.num_nodes - base[0].num_nodes) for quote in gangs if _zone(quote) == zone]
        spot = [quote for quote in added if _is_spot(quote)]
        demand = [quote for quote in added if not _is_spot(quote)]
        if spot and demand:
            yield Way(
                work_s=work_s,
                demand=_cheapest_first(demand),
                spot=_cheapest_first(spot),
                base=Way(work_s=kept_work_s, demand=base),
            )


def _part(quote: Quote, num_nodes: int) -> Quote:
    share = num_nodes / quote.num_nodes
    return replace(quote, num_nodes=num_nodes, compute_usd=quote.compute_usd * share, extra_usd=quote.extra_usd * share)


def _zone(quote: Quote) -> tuple[str, str, str]:
    pool = quote.offer.pool
    return pool.cloud, pool.region, pool.zone


def _is_spot(quote: Quote) -> bool:
    return quote.offer.pool.capacity_type is CapacityType.SPOT


def _cheapest_first(quotes: Iterable[Quote]) -> tuple[Quote, ...]:
    return tuple(sorted(quotes, key=lambda quote: (quote.weighed_usd, quote.offer.pool)))
