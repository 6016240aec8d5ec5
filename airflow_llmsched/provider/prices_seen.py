"""What spot capacity has cost, by the deployment's market snapshots: what decisions expect of prices goes by it."""

from __future__ import annotations

import logging

from airflow_llmsched.domain.capacity import Requirement
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.market.expected_prices import PricesSeen
from airflow_llmsched.prices.snapshots import SnapshotPrices
from airflow_llmsched.provider.config import state_root
from airflow_llmsched.units import MIB

log = logging.getLogger(__name__)

MAX_SNAPSHOTS = 72
"""Three days of them at one an hour: they are read again at each look at the market, one by one."""

MAX_BYTES = 16 * MIB
"""Of all snapshots that are read at one look: some 30,000 offers, which take some seconds to read."""


def prices_seen(need: Requirement, *, now_s: float) -> PricesSeen:
    """Return what spot capacity of the needed shapes cost in the newest snapshots, by pool.

    Nothing fails for want of them: those that cannot be read are counted in a warning.
    """
    shapes = {shape for by_shape in need.rounds for shape in by_shape}
    source = SnapshotPrices(open_store(state_root()))
    snapshots, problems = source.readable(now_s=now_s, limit=MAX_SNAPSHOTS, max_bytes=MAX_BYTES)
    if problems:
        num_looked_at = len(snapshots) + len(problems)
        log.warning(
            "the prices that are expected do not go by %d of the newest %d market snapshots, which cannot be read: %s",
            len(problems),
            num_looked_at,
            problems[0],
        )
    seen: dict[str, list[tuple[float, float]]] = {}
    for snapshot in snapshots:
        cheapest: dict[str, float] = {}
        for offer in snapshot.offers:
            pool = offer.pool
            if pool.capacity_type is CapacityType.SPOT and pool.shape in shapes:
                cheapest[pool.name] = min(offer.usd_per_hour, cheapest.get(pool.name, offer.usd_per_hour))
        for name, usd_per_hour in cheapest.items():
            seen.setdefault(name, []).append((snapshot.taken_at_s, usd_per_hour))
    return seen
