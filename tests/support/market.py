"""Offers whose uninteresting parts are filled in."""

from __future__ import annotations

import random
from typing import Any

from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.workload import CapacityType

NOW_S = 1_800_000_000.0
SPOT, ON_DEMAND, RESERVED = CapacityType.SPOT, CapacityType.ON_DEMAND, CapacityType.RESERVED


def offer_of(
    usd_per_hour: float,
    capacity_type: CapacityType = ON_DEMAND,
    *,
    region: str = "east",
    zone: str = "a",
    cloud: str = "aws",
    shape: str = "p5",
    **more: Any,
) -> Offer:
    pool = Pool(cloud=cloud, region=region, zone=zone, shape=shape, capacity_type=capacity_type)
    return Offer(pool=pool, usd_per_hour=usd_per_hour, priced_at_s=NOW_S - 60.0, source="test", **more)


def many_offers(count: int, *, seed: int) -> list[Offer]:
    """Draw offers over 3 clouds, 40 regions, 60 shapes and every capacity type."""
    rng = random.Random(seed)
    kinds = list(CapacityType)
    return [
        offer_of(
            rng.uniform(0.5, 50.0),
            rng.choice(kinds),
            cloud=rng.choice(["aws", "gcp", "azure"]),
            region=f"region-{rng.randrange(40)}",
            zone=f"zone-{number}",
            shape=f"shape-{rng.randrange(60)}",
            loss_per_hour=rng.uniform(0, 0.5),
        )
        for number in range(count)
    ]
