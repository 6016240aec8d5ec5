"""Makes offers of the lines of a price list. Pure.

A price that is not understood is refused and counted, never guessed: no currency is taken for dollars, a placeholder of
zero is no bargain, half of a price is none. A price for one zone says nothing of the other zones of its region; a price
for a region holds in each zone only where the zone's other half is priced by zone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.prices import PricedOffers, PricePart, PriceRow, PriceUnit

CLOCK_SKEW_S = 3600.0
"""How far ahead of our clock a source's may be before its dates are not believed."""

DOLLARS: Mapping[str, float] = {"USD": 1.0}

_Priced = tuple[PriceRow, float]
_Halves = dict[PricePart, dict[str, _Priced]]


def offers_of(
    rows: Iterable[PriceRow], *, now_s: float, usd_per_unit_of: Mapping[str, float] = DOLLARS
) -> PricedOffers:
    """Return one offer for each pool (and each time window of one) that ``rows`` price in full.

    Of several prices for the same the newest counts, of equally old ones the dearer. ``usd_per_unit_of`` gives the
    dollars that one unit of each accepted currency is worth.
    """
    rejections: Counter[str] = Counter()
    places: dict[tuple[object, ...], _Halves] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        reason = _why_not(row, now_s=now_s, usd_per_unit_of=usd_per_unit_of)
        if reason:
            rejections[reason] += 1
            continue
        zones = places[_place(row)][row.part]
        priced = (row, _usd_per_hour(row, usd_per_unit_of[row.currency]))
        rejections["named more than once"] += row.pool.zone in zones
        zones[row.pool.zone] = max(zones.get(row.pool.zone, priced), priced, key=_standing)
    offers: list[Offer] = []
    for halves in places.values():
        offers += [_offer(*each) for each in halves[PricePart.WHOLE].values()]
        offers += _joined(halves, rejections)
    return PricedOffers(offers=tuple(sorted(offers, key=_order)), rejections=dict(+rejections))


def explained(rejections: Mapping[str, int]) -> str:
    """Return counted reasons in words, the most frequent first."""
    counted = sorted(rejections.items(), key=lambda each: (-each[1], each[0]))
    return "; ".join(f"{count} {reason}" for reason, count in counted)


def _why_not(row: PriceRow, *, now_s: float, usd_per_unit_of: Mapping[str, float]) -> str | None:
    is_per_accelerator = row.unit is PriceUnit.ACCELERATOR
    starts_at_s = -math.inf if row.starts_at_s is None else row.starts_at_s
    ends_early = row.ends_at_s is not None and row.ends_at_s <= starts_at_s
    refusals = (
        (not row.currency, "without a currency"),
        (row.currency not in usd_per_unit_of, f"in {row.currency}, for which no rate is given"),
        (not math.isfinite(row.amount_per_hour), "without a price"),
        (row.amount_per_hour <= 0, "with a price that is not above 0"),
        (is_per_accelerator and not (row.num_accelerators or 0) > 0, "for one accelerator of nobody knows how many"),
        (not math.isfinite(row.priced_at_s), "without a date"),
        (row.priced_at_s > now_s + CLOCK_SKEW_S, "priced in the future"),
        (ends_early, "that end before they start"),
    )
    return next((reason for is_refused, reason in refusals if is_refused), None)


def _usd_per_hour(row: PriceRow, usd_per_unit: float) -> float:
    num_units = (row.num_accelerators or 1) if row.unit is PriceUnit.ACCELERATOR else 1
    return row.amount_per_hour * usd_per_unit * num_units


def _place(row: PriceRow) -> tuple[object, ...]:
    pool = row.pool
    return pool.cloud, pool.region, pool.shape, pool.capacity_type, row.starts_at_s, row.ends_at_s


def _standing(priced: _Priced) -> tuple[float, float]:
    return priced[0].priced_at_s, priced[1]


def _order(offer: Offer) -> tuple[Pool, float]:
    return offer.pool, -math.inf if offer.starts_at_s is None else offer.starts_at_s


def _joined(halves: Mapping[PricePart, Mapping[str, _Priced]], rejections: Counter[str]) -> list[Offer]:
    """Return the sums of hosts and accelerators. A zone takes the region's price for the half that it does not name."""
    hosts, accelerators = halves.get(PricePart.HOST, {}), halves.get(PricePart.ACCELERATORS, {})
    offers = []
    for zone in sorted({*hosts, *accelerators}):
        host, accelerator = hosts.get(zone) or hosts.get(""), accelerators.get(zone) or accelerators.get("")
        if host is None or accelerator is None:
            if not zone and hosts and accelerators:
                continue  # the region's half is used by its zones
            rejections["whose other half, host or accelerators, has no price there"] += 1
            continue
        offers.append(_sum_of(host, accelerator, zone=zone))
    return offers


def _sum_of(host: _Priced, accelerator: _Priced, *, zone: str) -> Offer:
    """Return the offer of both: as old as the older, as scarce and as restless as the worse, from what both say."""
    (one, one_usd), (other, other_usd) = host, accelerator
    row = replace(
        one,
        pool=replace(one.pool, zone=zone),
        priced_at_s=min(one.priced_at_s, other.priced_at_s),
        source=one.source if one.source == other.source else f"{one.source} + {other.source}",
        num_nodes=_fewest(one.num_nodes, other.num_nodes),
        loss_per_hour=_worst(one.loss_per_hour, other.loss_per_hour),
        start_up_s=max(one.start_up_s, other.start_up_s),
        jurisdiction=one.jurisdiction or other.jurisdiction,
        vendor=other.vendor or one.vendor,
    )
    return _offer(row, one_usd + other_usd)


def _fewest(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _worst(*rates: float | None) -> float | None:
    return max((rate for rate in rates if rate is not None), default=None)


def _offer(row: PriceRow, usd_per_hour: float) -> Offer:
    return Offer(
        pool=row.pool,
        usd_per_hour=usd_per_hour,
        priced_at_s=row.priced_at_s,
        source=row.source,
        num_nodes=row.num_nodes,
        loss_per_hour=row.loss_per_hour,
        start_up_s=row.start_up_s,
        starts_at_s=row.starts_at_s,
        ends_at_s=row.ends_at_s,
        jurisdiction=row.jurisdiction,
        vendor=row.vendor,
    )
