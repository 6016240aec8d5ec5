"""Several sources of prices as one: for each pool the newest price wins; what is too old is left out and counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.errors import CouldNotLookError, DataError, SpecError, TransientError
from airflow_llmsched.planner.market.price_rows import CLOCK_SKEW_S
from airflow_llmsched.ports import PriceSource

_Key = tuple[Pool, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedSource:
    """A source, and how old its prices may be; None: however old (a list price is better than none)."""

    source: PriceSource
    max_age_s: float | None = None

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for an age that has no meaning."""
        if self.max_age_s is not None and not self.max_age_s > 0:
            raise SpecError(path="max_age_s", value=self.max_age_s, hint="must be above 0, or absent for no limit")


class MergedPrices:
    """A ``PriceSource`` over others. Of equally old prices the first source's counts.

    Whose price it is, the capacity is as the first source that offers it says: put what is live before what was stored.

    A source that cannot be read, or whose data is damaged, is counted with its name while another can be read: prices
    go on being known when one cloud's price list is down.

    What a source offers without a price (a cloud that tells what is free, not what it costs) takes the newest price
    that another names for its pool, else for its pool's whole region.
    """

    def __init__(self, *sources: AgedSource) -> None:
        if not sources:
            raise SpecError(path="sources", value=(), hint="must be at least one source of prices")
        self._sources = sources
        self.name = " + ".join(each.source.name for each in sources)

    def offers(self, *, now_s: float) -> PricedOffers:
        """Return the newest offer of each pool (and each time window of one).

        Raises:
            CouldNotLookError: no source could be read; the message says why, source by source.
        """
        rejections: Counter[str] = Counter()
        batches: list[tuple[float | None, Sequence[Offer]]] = []
        failures = []
        for aged in self._sources:
            try:
                priced = aged.source.offers(now_s=now_s)
            except (TransientError, DataError) as error:
                failures.append(f"{aged.source.name}: {error}")
                continue
            batches.append((aged.max_age_s, priced.offers))
            rejections.update(priced.rejections)
        if not batches:
            raise CouldNotLookError(f"no source of prices could be read ({'; '.join(failures)})")
        rejections.update(f"whole source ({failure})" for failure in failures)
        offers = _newest(batches, rejections, now_s=now_s)
        return PricedOffers(offers=offers, rejections=dict(+rejections))


def _newest(
    batches: Sequence[tuple[float | None, Sequence[Offer]]], rejections: Counter[str], *, now_s: float
) -> tuple[Offer, ...]:
    first: dict[_Key, Offer] = {}
    newest: dict[_Key, Offer] = {}
    for max_age_s, offers in batches:
        for offer in offers:
            key, is_priced = _key(offer), not math.isnan(offer.usd_per_hour)
            reason = _why_not(offer, max_age_s=max_age_s, now_s=now_s) if is_priced else None
            if reason:
                rejections[reason] += 1
                continue
            first.setdefault(key, offer)
            known = newest.get(key)
            rejections["for which there is another price, as new or newer"] += is_priced and known is not None
            if is_priced and (known is None or offer.priced_at_s > known.priced_at_s):
                newest[key] = offer
    found = {}
    for key, offer in first.items():
        pool, starts_at_s, ends_at_s = key
        named = newest.get(key) or newest.get((replace(pool, zone=""), starts_at_s, ends_at_s))
        if named is None:
            rejections["without a price"] += 1
        else:
            found[key] = _at_price_of(offer, named)
    return tuple(found[key] for key in sorted(found))


def _why_not(offer: Offer, *, max_age_s: float | None, now_s: float) -> str | None:
    if offer.priced_at_s > now_s + CLOCK_SKEW_S:
        return "priced in the future"
    if max_age_s is not None and now_s - offer.priced_at_s > max_age_s:
        return "older than their source may be"
    return None


def _at_price_of(offer: Offer, named: Offer) -> Offer:
    """Return ``offer`` at the other's price, filled in with what only the other tells."""
    same = named.pool == offer.pool
    return replace(
        offer,
        usd_per_hour=named.usd_per_hour,
        priced_at_s=named.priced_at_s,
        source=named.source,
        num_nodes=named.num_nodes if offer.num_nodes is None and same else offer.num_nodes,
        loss_per_hour=named.loss_per_hour if offer.loss_per_hour is None and same else offer.loss_per_hour,
        energy_usd_per_hour=_either(offer.energy_usd_per_hour, named.energy_usd_per_hour),
        carbon_g_per_hour=_either(offer.carbon_g_per_hour, named.carbon_g_per_hour),
        jurisdiction=offer.jurisdiction or named.jurisdiction,
        vendor=offer.vendor or named.vendor,
    )


def _either(told: float | None, otherwise: float | None) -> float | None:
    return otherwise if told is None else told


def _key(offer: Offer) -> _Key:
    starts_at_s = -math.inf if offer.starts_at_s is None else offer.starts_at_s
    return offer.pool, starts_at_s, math.inf if offer.ends_at_s is None else offer.ends_at_s
