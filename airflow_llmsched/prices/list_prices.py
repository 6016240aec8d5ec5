"""The built-in list of on-demand prices, so that planning works offline. Owns the file's format.

Its prices are as old as their sources, which each offer names with its date. Whoever has newer ones puts them beside it
in :class:`~airflow_llmsched.prices.merged.MergedPrices`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import cache
from importlib import resources
from typing import Any

from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.prices import PricedOffers, PricePart, PriceRow
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.planner.market.jurisdictions import jurisdiction_of
from airflow_llmsched.planner.market.price_rows import offers_of


@dataclass(frozen=True, slots=True)
class ListPrices:
    """A ``PriceSource``. Its offers are for whole regions, and say nothing of how many nodes there are."""

    name: str = "list prices"

    def offers(self, *, now_s: float) -> PricedOffers:
        """Return an offer for each shape and region of the list."""
        return offers_of(rows(), now_s=now_s)


@cache
def rows() -> tuple[PriceRow, ...]:
    """Return the list, line by line, as its sources state it."""
    text = resources.files(f"{__package__}.data").joinpath("list_prices.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    return tuple(row for entry in tables["prices"] for row in _rows(entry, tables["sources"]))


def _rows(entry: Mapping[str, Any], sources: Mapping[str, Any]) -> Iterator[PriceRow]:
    source = sources[entry["source"]]
    for region, amount in entry["usd_per_hour"].items():
        pool = Pool(
            cloud=entry["cloud"],
            region=region,
            zone="",
            shape=entry["shape"],
            capacity_type=CapacityType.ON_DEMAND,
        )
        yield PriceRow(
            pool=pool,
            amount_per_hour=amount,
            currency="USD",
            priced_at_s=_unix_s(source["as_of"]),
            source=f"{source['text']} ({source['url']})",
            part=PricePart(entry.get("part", PricePart.WHOLE)),
            num_accelerators=entry["num_accelerators"],
            jurisdiction=jurisdiction_of(entry["cloud"], region),
            vendor=entry["vendor"],
        )


def _unix_s(day: date) -> float:
    return datetime.combine(day, time(), tzinfo=UTC).timestamp()
