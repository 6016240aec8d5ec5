"""Reads Google's price list and prices offers by it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from google.auth.credentials import Credentials

from airflow_llmsched.clouds.gcp import skus, tpu_words
from airflow_llmsched.clouds.gcp.skus import Rates
from airflow_llmsched.clouds.gcp.transport import Transport
from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.prices import PriceRow
from airflow_llmsched.planner.market.price_rows import offers_of
from airflow_llmsched.ports import Clock
from airflow_llmsched.units import HOUR_S

PUBLIC_ROOT = "https://cloudbilling.googleapis.com/v1"
SERVICES = ("services/6F81-5844-456A", "services/E000-3F24-B8AA")
"""Compute Engine and Cloud TPU."""
PAGE_SIZE = 5000
MAX_AGE_S = HOUR_S
"""How long the list is kept: it is long, and changes about once a day."""


class PriceList:
    """The Cloud Billing Catalog for ``regions``. Read when first needed, and again when it is old."""

    def __init__(
        self, *, regions: Collection[str], endpoint_url: str, credentials: Credentials | None, clock: Clock
    ) -> None:
        root = f"{endpoint_url.rstrip('/')}/v1" if endpoint_url else PUBLIC_ROOT
        self._transport = Transport(root=root, credentials=credentials, clock=clock)
        self._regions = tuple(regions)
        self._clock = clock
        self._rates = Rates()
        self._read_at_s: float | None = None

    def priced(self, offers: Sequence[Offer], machine_types: Sequence[dict[str, Any]]) -> list[Offer]:
        """Return the offers with the prices that the list has for them; the rest as they are.

        Reserved capacity has none: what it costs was agreed elsewhere. Raises ``CouldNotLookError``.
        """
        rates, now_s = self._current(), self._clock.now_s()
        found = offers_of(self._rows(offers, machine_types, rates, now_s=now_s), now_s=now_s).offers
        prices = {each.pool: each for each in found}
        return [self._with(each, prices.get(replace(each.pool, zone=""))) for each in offers]

    @staticmethod
    def _with(offer: Offer, price: Offer | None) -> Offer:
        if price is None:
            return offer
        return replace(offer, usd_per_hour=price.usd_per_hour, priced_at_s=price.priced_at_s, source=price.source)

    @staticmethod
    def _rows(
        offers: Sequence[Offer], machine_types: Sequence[dict[str, Any]], rates: Rates, *, now_s: float
    ) -> Iterator[PriceRow]:
        by_name = {each["name"]: each for each in machine_types}
        for region, shape in sorted({(each.pool.region, each.pool.shape) for each in offers}):
            if tpu_words.is_slice(shape):
                yield from skus.slice_rows(shape, rates, region=region, now_s=now_s)
            elif shape in by_name:
                yield from skus.machine_rows(by_name[shape], rates, region=region, now_s=now_s)

    def _current(self) -> Rates:
        now_s = self._clock.now_s()
        if self._read_at_s is None or now_s >= self._read_at_s + MAX_AGE_S:
            self._rates = Rates.of(self._skus(), regions=self._regions)
            self._read_at_s = now_s
        return self._rates

    def _skus(self) -> Iterator[dict[str, Any]]:
        params = {"currencyCode": "USD", "pageSize": str(PAGE_SIZE)}
        for service in SERVICES:
            for page in self._transport.pages(f"{service}/skus", params=params):
                yield from page.get("skus", [])
