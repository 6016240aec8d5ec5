"""Lines of price lists whose uninteresting parts are filled in."""

from __future__ import annotations

from typing import Any

from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.prices import PricePart, PriceRow
from airflow_llmsched.domain.workload import CapacityType
from tests.support.market import NOW_S, ON_DEMAND

HOST, ACCELERATORS = PricePart.HOST, PricePart.ACCELERATORS


def row_of(
    amount: float,
    capacity_type: CapacityType = ON_DEMAND,
    *,
    cloud: str = "gcp",
    region: str = "east",
    zone: str = "",
    shape: str = "a3",
    **more: Any,
) -> PriceRow:
    pool = Pool(cloud=cloud, region=region, zone=zone, shape=shape, capacity_type=capacity_type)
    values = {"currency": "USD", "priced_at_s": NOW_S - 60.0, "source": "test", **more}
    return PriceRow(pool=pool, amount_per_hour=amount, **values)
