"""Part of ``make bench-market``: what is left of machines when runs that rent die, among faults of each cloud."""

from __future__ import annotations

import logging

from tests.bench.rows import Row
from tests.support.lease_ordeals import CLOUDS, ordeals

SIMULATED = "sim"
"""Not counted among the clouds: it speaks no HTTP."""


def measured_leases(*, num_runs: int, seed: int) -> list[Row]:
    """Put ``num_runs`` runs through it, spread evenly over the clouds."""
    clouds = sorted(set(CLOUDS) - {SIMULATED})
    share = -(-num_runs // len(clouds))
    logging.disable(logging.WARNING)  # every fault of thousands is told
    try:
        tallies = {cloud: ordeals(cloud, num_runs=share, seed=seed) for cloud in clouds}
    finally:
        logging.disable(logging.NOTSET)
    num_left = sum(len(tally.left) for tally in tallies.values())
    num_billed = {cloud: float(tally.num_billed) for cloud, tally in tallies.items()}
    missed = sorted(passage for tally in tallies.values() for passage in tally.missed)
    return [
        Row(
            name=f"runs of {share * len(clouds)} that left a machine one reap after expiry",
            value=num_left,
            below=1,
            reference={f"left for the reaper in {cloud}": count for cloud, count in num_billed.items()},
        ),
        Row(name="passages of effect points at which no run died", value=len(missed), below=1),
    ]
