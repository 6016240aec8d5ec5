"""What each pool costs, and what it will, from what snapshots of the market saw one after the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.planner.market.price_forecast import PriceForecast, PriceModel

MAX_TICKS = 5000
"""A history is not laid out on more ticks than this: a few snapshots in a minute would make a year millions long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The offers of one moment (Unix seconds)."""

    at_s: float
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOutlook:
    """The newest offer of a pool, seen ``num_seen`` times, and its price some time from then on.

    ``forecast`` is None where the pool was seen once only: one price says nothing of how prices move.
    """

    offer: Offer
    seen_at_s: float
    num_seen: int
    forecast: PriceForecast | None


def price_outlook(sightings: Sequence[Sighting], *, after_s: float) -> list[PoolOutlook]:
    """Return what the pools of the last sighting cost and will cost ``after_s`` later, in the order of the pools.

    A price holds until the next sighting of its pool. Of several offers of one (capacity blocks) the cheapest counts.
    """
    seen: dict[Pool, list[tuple[float, Offer]]] = {}
    for sighting in sorted(sightings, key=lambda each: each.at_s):
        cheapest: dict[Pool, Offer] = {}
        for offer in sorted(sighting.offers, key=lambda each: each.usd_per_hour):
            cheapest.setdefault(offer.pool, offer)
        for pool, offer in cheapest.items():
            seen.setdefault(pool, []).append((sighting.at_s, offer))
    last_s = max((each.at_s for each in sightings), default=0.0)
    return [
        PoolOutlook(offer=times[-1][1], seen_at_s=times[-1][0], num_seen=len(times), forecast=_forecast(times, after_s))
        for _, times in sorted(seen.items())
        if times[-1][0] == last_s
    ]


def fitted_prices(times: Sequence[tuple[float, float]]) -> PriceModel | None:
    """Return the model of prices seen at some times (Unix seconds), oldest first; None: there are fewer than two.

    A price holds until the next one was seen.
    """
    gaps_s = [later - earlier for (earlier, _), (later, _) in pairwise(times)]
    if not gaps_s:
        return None
    first_s, last_s = times[0][0], times[-1][0]
    tick_s = max(median(gaps_s), (last_s - first_s) / MAX_TICKS)
    until_s_T = first_s + (np.arange(round((last_s - first_s) / tick_s) + 1) + 0.5) * tick_s
    seen_T = np.searchsorted([at_s for at_s, _ in times], until_s_T, side="right") - 1
    return PriceModel.of(np.array([usd for _, usd in times])[seen_T], tick_s=tick_s)


def _forecast(times: Sequence[tuple[float, Offer]], after_s: float) -> PriceForecast | None:
    model = fitted_prices([(at_s, offer.usd_per_hour) for at_s, offer in times])
    return None if model is None else model.forecast(after_s=after_s)
