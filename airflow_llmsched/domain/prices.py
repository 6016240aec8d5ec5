"""Prices as their sources state them, before anybody relies on them, and the offers that became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_llmsched.domain.capacity import Offer, Pool


class PriceUnit(StrEnum):
    """What an hour of is priced."""

    NODE = "node"
    ACCELERATOR = "accelerator"


class PricePart(StrEnum):
    """Which part of a node a price is for: some clouds bill a host and its accelerators on two lines, which add up."""

    WHOLE = "whole"
    HOST = "host"
    ACCELERATORS = "accelerators"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """One line of a price list. ``pool.zone`` is empty where the line is for a whole region. Times are Unix seconds.

    ``amount_per_hour`` is in ``currency`` (ISO 4217), empty where the source names none. ``num_accelerators`` is how
    many a node has, which a price for one accelerator needs. The rest is as in :class:`Offer`.
    """

    pool: Pool
    amount_per_hour: float
    currency: str
    priced_at_s: float
    source: str
    unit: PriceUnit = PriceUnit.NODE
    part: PricePart = PricePart.WHOLE
    num_accelerators: int | None = None
    num_nodes: int | None = None
    loss_per_hour: float | None = None
    start_up_s: float = 300.0
    starts_at_s: float | None = None
    ends_at_s: float | None = None
    jurisdiction: str = ""
    vendor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOffers:
    """What a source offers, and how many prices it refused for which reason (each for the first that applied)."""

    offers: tuple[Offer, ...]
    rejections: Mapping[str, int] = field(default_factory=dict)
