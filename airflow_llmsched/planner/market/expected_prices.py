"""What spot capacity will cost on average while it is held, from what its pool has cost before. Pure.

Decisions go by this instead of by the price of the moment: a spike that prices always came back from is no reason to
leave, and a dip none to come. Where nothing is known, or prices wander, it is the price of the moment
(``price_forecast``). What on-demand and reserved capacity costs is in a list or a contract, and is taken as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from airflow_llmsched.domain.capacity import Offer, Quote
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.price_forecast import MIN_SAMPLES, PriceModel
from airflow_llmsched.planner.market.price_outlook import fitted_prices

PricesSeen = Mapping[str, Sequence[tuple[float, float]]]
"""By ``Pool.name``: when prices were seen (Unix seconds) and what they were (dollars for a node and hour)."""

TOLD_RATIO = 0.05
"""A price that is expected to differ by less than this from that of the moment is not worth a word."""


class ExpectedPrices:
    """Reads ``histories``; of each pool the first counts that saw it often enough to tell what comes back.

    A gang is still to be held for ``work_ratio`` of the time that its requirement names.
    """

    def __init__(self, *histories: PricesSeen, now_s: float, work_ratio: float = 1.0) -> None:
        self._histories = [history for history in histories if history]
        self._now_s, self._work_ratio = now_s, work_ratio
        self.known = frozenset(name for history in self._histories for name in history)
        """The names of all pools of which anything is known."""
        self._models: dict[tuple[str, float], PriceModel | None] = {}

    def usd_per_hour(self, offer: Offer, *, work_s: float) -> float | None:
        """Return what a node's hour is expected to cost in ``work_s`` of work from now on; None: no more than now.

        The offer's own price is the newest that is known.
        """
        usd_per_hour = offer.usd_per_hour
        if offer.pool.capacity_type is not CapacityType.SPOT or not 0 < usd_per_hour < math.inf:
            return None
        key = offer.pool.name, usd_per_hour
        if key not in self._models:
            self._models[key] = self._fitted(*key)
        model = self._models[key]
        if model is None or model.kept_ratio == 1.0:
            return None
        return model.mean_usd_per_hour(over_s=work_s * self._work_ratio)

    def _fitted(self, name: str, usd_per_hour: float) -> PriceModel | None:
        for history in self._histories:
            before = {at_s: usd for at_s, usd in history.get(name, ()) if at_s < self._now_s and 0 < usd < math.inf}
            if len(before) + 1 >= MIN_SAMPLES:
                return fitted_prices([*sorted(before.items()), (self._now_s, usd_per_hour)])
        return None


def told_prices(quotes: Iterable[Quote]) -> str:
    """Return in words what differs most between a price of the moment and what is expected; empty for nothing much."""

    def ratio(quote: Quote) -> float:
        return abs(quote.usd_per_hour / quote.offer.usd_per_hour - 1) if quote.offer.usd_per_hour > 0 else 0.0

    quote = max(quotes, key=ratio, default=None)
    if quote is None or ratio(quote) <= TOLD_RATIO:
        return ""
    pool = quote.offer.pool
    return (
        f"a {pool.capacity_type} node of {pool.shape} in {pool.cloud} {pool.zone or pool.region} costs "
        f"${quote.offer.usd_per_hour:,.2f} an hour now, and ${quote.usd_per_hour:,.2f} are expected on average"
    )
