"""What a placer is worth against others on one mix: step times side by side, gang by gang.

Axes: G = gang that both placers hold at a look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench.placement_judge.exchanges import load_of
from tests.bench.placement_judge.fabric import GIGA, Fabric
from tests.bench.placement_judge.fleet import Fleet, FloatArray, Seats
from tests.bench.placement_judge.gangs import Gang
from tests.bench.placement_judge.mixes import Mix
from tests.bench.placement_judge.replay import Replayed
from tests.bench.placement_judge.simulate import Stepping, step_s_J

OVERSUBSCRIPTION = {"ASW": 1.0, "PSW": 7.0, "DSW": 1.0}
"""Bandwidth of the cards below over that of the links upwards. The topology's file states none: access switches are
taken to have as much upwards as down, pods to reach each other with a seventh (Llama 3, arXiv:2407.21783, 3.3.1).
"""
CARD_BYTES_PER_S = 50 * GIGA
"""One card of 400 Gbit/s for each accelerator."""
SCALE_UP_BYTES_PER_S = 450 * GIGA
"""NVLink of an H100, one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Step times of gangs that span nodes, ours over theirs: the geometric mean, and what 95% are below."""

    mean: float
    p95: float
    num_gangs: int


def fabric_of(fleet: Fleet, *, salt: int = 0) -> Fabric:
    """Return the fabric of the bench's fleet, with one of the ways in which its switches may spread flows."""
    return Fabric.of(
        fleet.domain_LN,
        levels=fleet.levels,
        oversubscription=OVERSUBSCRIPTION,
        num_rails=fleet.free_NS.shape[1],
        card_bytes_per_s=CARD_BYTES_PER_S,
        scale_up_bytes_per_s=SCALE_UP_BYTES_PER_S,
        salt=salt,
    )


def step_times(mix: Mix, replayed: Replayed, fabrics: Sequence[Fabric], *, seed: int) -> list[dict[int, float]]:
    """Return, for each look, the step time of each gang by its id: the mean over ``fabrics``.

    Which flows meet on a link is luck; fabrics that differ by their salt alone take it out of the comparison.
    """
    each = [_step_times(mix, replayed, fabric, seed=seed) for fabric in fabrics]
    return [
        {id_: float(np.mean([look[id_] for look in looks])) for id_ in looks[0]} for looks in zip(*each, strict=True)
    ]


def _step_times(mix: Mix, replayed: Replayed, fabric: Fabric, *, seed: int) -> list[dict[int, float]]:
    gangs = {stay.gang.id: stay.gang for stay in mix.stays}
    steppings: dict[int, Stepping] = {}
    looks = []
    for snapshot in replayed.snapshots:
        for id_ in snapshot.seats.keys() - steppings.keys():
            steppings[id_] = _stepping(gangs[id_], snapshot.seats[id_], fabric)
        ids = sorted(snapshot.seats)
        times_s = step_s_J([steppings[id_] for id_ in ids], fabric.capacity_K, seed=seed)
        looks.append(dict(zip(ids, times_s.tolist(), strict=True)))
    return looks


def _stepping(gang: Gang, seats: Seats, fabric: Fabric) -> Stepping:
    loads = (load_of(exchange, seats, fabric) for exchange in gang.exchanges)
    return Stepping(compute_s=gang.compute_s, loads=tuple(load for load in loads if load is not None))


def ratios(gangs: Mapping[int, Gang], ours: list[dict[int, float]], theirs: list[dict[int, float]]) -> FloatArray:
    """Return our step time over theirs for each gang that spans nodes and is there in both, at each look."""
    return np.array(
        [
            mine[id_] / other[id_]
            for mine, other in zip(ours, theirs, strict=True)
            for id_ in sorted(mine.keys() & other.keys())
            if gangs[id_].spans_nodes
        ]
    )


def summary(ratio_G: FloatArray) -> Ratios:
    """Return what a table shows of ratios. Raises ``ValueError`` for none: then nothing was compared."""
    if not ratio_G.size:
        raise ValueError("no gang spans nodes: step times say nothing of placement")
    return Ratios(
        mean=float(np.exp(np.log(ratio_G).mean())), p95=float(np.quantile(ratio_G, 0.95)), num_gangs=len(ratio_G)
    )
