"""Asks the clouds that a run may rent from what they have, and ranks it at the newest prices known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.capacity import Offer, Pool, Quote, Requirement
from airflow_llmsched.domain.prices import PricedOffers
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CouldNotLookError, PartlySeenError
from airflow_llmsched.planner.market.energy_terms import NO_ENERGY, EnergyTerms
from airflow_llmsched.planner.market.expected_prices import ExpectedPrices, told_prices
from airflow_llmsched.planner.market.offers import NO_HISTORY, OfferTable, Weights, rank
from airflow_llmsched.planner.market.prior import default_hazards
from airflow_llmsched.ports import Cloud, PriceSource

TOO_DEAR = "above the highest price allowed"
TO_BE_BOUGHT = "to be bought first"
LATER = "that begin later"


class CloudSource:
    """A cloud as a ``PriceSource``: what it offers for one need. Remembers what it ``offered``, None: never told.

    ``unseen`` are its regions and zones that did not answer.
    """

    def __init__(self, cloud: Cloud, need: Requirement) -> None:
        self.name = cloud.name
        self._cloud = cloud
        self._need = need
        self.offered: tuple[Offer, ...] | None = None
        self.unseen: tuple[str, ...] = ()

    def offers(self, *, now_s: float) -> PricedOffers:  # noqa: ARG002 - a cloud dates its prices itself
        """Return the cloud's offers, priced or not; parts of it that do not answer are counted with what they said.

        Raises ``CouldNotLookError`` where none answers.
        """
        try:
            self.offered = tuple(self._cloud.offers(self._need))
        except PartlySeenError as error:
            self.offered, self.unseen = error.seen, error.unseen
            return PricedOffers(offers=self.offered, rejections={f"of a part of {self.name} ({error})": 1})
        return PricedOffers(offers=self.offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """What can be rented now, the cheapest to the end of the run first, and why the rest fell out, by count."""

    quotes: tuple[Quote, ...]
    rejections: Mapping[str, int]
    num_offers: int
    to_buy: tuple[Quote, ...] = ()
    """What could be rented once somebody has bought it, cheapest first: in no ``quotes``, for nobody has."""

    @property
    def asks(self) -> str:
        """Return in words what to buy, and how, where that would be cheaper than all that can be rented, or all.

        Empty where it would not.
        """
        purchase = self.to_buy[0].offer.purchase if self.to_buy else None
        if purchase is None or (self.quotes and self.quotes[0].total_usd <= self.to_buy[0].total_usd):
            return ""
        beside = ""
        if self.quotes:
            beside = f", where the cheapest that can be rented comes to ${self.quotes[0].total_usd:,.2f}"
        share_usd = self.to_buy[0].total_usd
        return (
            f"{purchase.what} costs ${purchase.usd:,.2f} at once, and the run ${share_usd:,.2f} of it{beside}. "
            f"Nobody buys it but a person: {purchase.command}"
        )

    def explain(self) -> str:
        """Return in words what there is and why the rest fell out, the most frequent reason first."""
        counted = sorted(self.rejections.items(), key=lambda each: (-each[1], each[0]))
        told = "; ".join(f"{count} {reason}" for reason, count in counted)
        num_serving = len({quote.offer.pool for quote in self.quotes})
        best = f"{num_serving} of {self.num_offers} offers serve" if self.quotes else "no offer serves"
        if self.quotes and self.quotes[0].extra_usd:
            best += f" (the run comes to {_energy(self.quotes[0])} with the first)"
        if told_of_price := told_prices(self.quotes[:1]):
            best += f" ({told_of_price})"
        return f"{best}{': ' if told else ''}{told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All that clouds price and the wishes allow, whether it is there now or not; ``room`` says how many nodes are.

    None in ``room``: not known. ``market`` counts why the rest fell out. ``unseen`` are the clouds that did not answer,
    and parts of others as ``cloud/region`` or ``cloud/zone``.
    """

    market: Market
    room: Mapping[Pool, int | None]
    unseen: tuple[str, ...] = ()

    def has(self, pool: Pool, num_nodes: int) -> bool:
        """Whether so many nodes seem to be there."""
        room = self.room.get(pool, 0)
        return room is None or room >= num_nodes

    def is_silent(self, pool: Pool) -> bool:
        """Whether the pool's cloud, region or zone did not answer, so that nothing is known of what there is in it."""
        places = {pool.cloud, f"{pool.cloud}/{pool.region}", f"{pool.cloud}/{pool.zone}"}
        return not places.isdisjoint(self.unseen)


def survey_market(
    need: Requirement,
    clouds: Sequence[Cloud],
    merge: Callable[[Sequence[PriceSource]], PriceSource],
    *,
    now_s: float,
    max_usd_per_hour: float | None = None,
    energy: EnergyTerms = NO_ENERGY,
    prices: ExpectedPrices = NO_HISTORY,
) -> Survey:
    """Return what there could be, for who may wait for it: as :func:`ask_market`, whatever is free, by no deadline.

    What is reserved counts from its begin on, and with what is free of it: no more nodes come than were reserved, and
    at its price, which may be nothing, all else would look dear.
    """
    sources = [CloudSource(cloud, need) for cloud in clouds]
    priced = merge(sources).offers(now_s=now_s)
    known = energy.filled(_known(sources, priced))
    boundless = replace(need, deadline_s=None)
    begun = [offer for offer in known if offer.purchase is not None or (offer.starts_at_s or 0.0) <= now_s]
    is_reserved = [offer.pool.capacity_type is CapacityType.RESERVED for offer in begun]
    limitless = [
        offer if stays else replace(offer, num_nodes=None) for offer, stays in zip(begun, is_reserved, strict=True)
    ]
    left_out = Counter(priced.rejections) + Counter({LATER: len(known) - len(begun)})
    market = _ranked(
        limitless,
        replace(priced, rejections=dict(left_out)),
        boundless,
        now_s=now_s,
        max_usd_per_hour=max_usd_per_hour,
        limit=None,
        weights=energy.weights,
        prices=prices,
    )
    silent = [source.name for source in sources if source.offered is None]
    unseen = [*silent, *(f"{source.name}/{part}" for source in sources for part in source.unseen)]
    return Survey(market=replace(market, num_offers=len(known)), room=_room(begun), unseen=tuple(unseen))


def ask_market(
    need: Requirement,
    clouds: Sequence[Cloud],
    merge: Callable[[Sequence[PriceSource]], PriceSource],
    *,
    now_s: float,
    max_usd_per_hour: float | None = None,
    limit: int = 20,
    energy: EnergyTerms = NO_ENERGY,
    prices: ExpectedPrices = NO_HISTORY,
) -> Market:
    """Return the ``limit`` cheapest quotes at the ``prices`` expected.

    A node may cost ``max_usd_per_hour`` at most, now (None: any price).

    ``merge`` makes one source of the clouds' and whatever else knows a price. Only what a cloud offers itself can be
    rented: other sources fill in what it costs, and ``energy`` what electricity and carbon count for. Raises
    ``CouldNotLookError`` when no cloud could be asked.
    """
    sources = [CloudSource(cloud, need) for cloud in clouds]
    priced = merge(sources).offers(now_s=now_s)
    known = energy.filled(_known(sources, priced))
    return _ranked(
        known,
        priced,
        need,
        now_s=now_s,
        max_usd_per_hour=max_usd_per_hour,
        limit=limit,
        weights=energy.weights,
        prices=prices,
    )


def _room(offers: Sequence[Offer]) -> Mapping[Pool, int | None]:
    """Return how many nodes each pool has together: a pool may have several reservations, and a lease is in one."""
    room: dict[Pool, int | None] = {}
    for offer in offers:
        known = room.get(offer.pool, 0)
        room[offer.pool] = None if known is None or offer.num_nodes is None else max(known, offer.num_nodes)
    return room


def _known(sources: Sequence[CloudSource], priced: PricedOffers) -> list[Offer]:
    """Return what clouds offer themselves, as it is priced.

    Spot capacity of which nobody says how often it is taken is taken like that of the pools that hazards were fitted
    to: most clouds tell nothing, and at no interruption at all it would look better than what is told.
    """
    if all(source.offered is None for source in sources):
        told = "; ".join(sorted(priced.rejections)) or "none is named"
        raise CouldNotLookError(f"no cloud could be asked: {told}")
    on_offer = {offer.pool for source in sources for offer in source.offered or ()}
    usual_per_hour = default_hazards().mean_loss_per_hour()
    return [
        replace(offer, loss_per_hour=usual_per_hour)
        if offer.loss_per_hour is None and offer.pool.capacity_type is CapacityType.SPOT
        else offer
        for offer in priced.offers
        if offer.pool in on_offer
    ]


def _ranked(
    known: Sequence[Offer],
    priced: PricedOffers,
    need: Requirement,
    *,
    now_s: float,
    max_usd_per_hour: float | None,
    limit: int | None,
    weights: Weights,
    prices: ExpectedPrices,
) -> Market:
    limit_all = len(known) * len(need.rounds)
    ranking = rank(OfferTable.of(known), need, now_s=now_s, limit=limit_all, weights=weights, prices=prices)
    highest_usd_per_hour = math.inf if max_usd_per_hour is None else max_usd_per_hour
    paid = [quote for quote in ranking.quotes if quote.offer.usd_per_hour <= highest_usd_per_hour]
    quotes = [quote for quote in paid if quote.offer.purchase is None]
    to_buy = tuple(quote for quote in paid if quote.offer.purchase is not None)
    left_out = {TOO_DEAR: len(ranking.quotes) - len(paid), TO_BE_BOUGHT: len(to_buy)}
    rejections = Counter(priced.rejections) + Counter(ranking.rejections) + Counter(left_out)
    rejections += Counter([f"node shape {name}, {why}" for name, why in need.refused.items()])
    return Market(
        quotes=tuple(quotes[:limit]), rejections=dict(rejections), num_offers=len(known), to_buy=to_buy[:limit]
    )


def _energy(quote: Quote) -> str:
    """Return in words what a run takes besides its price, as far as the quote's offer tells."""
    told = [
        *([] if quote.energy_usd is None else [f"${quote.energy_usd:,.2f} of electricity"]),
        *([] if quote.carbon_g is None else [f"{quote.carbon_g / 1000:,.4g} kg of CO2 equivalent"]),
    ]
    return " and ".join(told)
