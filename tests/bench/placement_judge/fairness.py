"""Max-min fair rates of flows that share links, by progressive filling. Pure arithmetic; knows no network.

Flows come in bundles that go at one pace, as the hops of a ring do: a bundle's rate is that of each of its flows, and a
link that it crosses with ``weight`` flows carries ``weight`` times that. All rates rise together; when a link is full,
the bundles that cross it stay where they are and the others rise on (Bertsekas and Gallager, Data Networks, 6.5.2).

Axes: E = crossing of a link by a bundle, B = bundle, K = link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.placement_judge.fleet import FloatArray, IntArray

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossings:
    """Which bundle crosses which link with how many flows, sorted by bundle; each pair at most once."""

    bundle_E: IntArray
    link_E: IntArray
    weight_E: FloatArray


def fair_rates(crossings: Crossings, capacity_K: FloatArray, ceiling_B: FloatArray) -> FloatArray:
    """Return each bundle's rate. ``ceiling_B`` is what it could have alone on links that are nobody else's.

    In each round every link says what the bundles that still rise would get of it. A bundle stays where its ceiling or
    its scarcest link ends it; but a link ends its bundles only when it is the scarcest of all of them, as it is then
    whatever the rest will do: shares only grow when others stay below them.
    """
    crossings, capacity_K, ceiling_B = _shared_only(crossings, capacity_K, ceiling_B)
    rate_B = np.zeros(len(ceiling_B))
    rises_B = np.ones(len(ceiling_B), dtype=np.bool_)
    left_K = capacity_K.copy()
    bundle_E, link_E, weight_E = crossings.bundle_E, crossings.link_E, crossings.weight_E
    while rises_B.any():
        active_E = rises_B[bundle_E]
        bundle_E, link_E, weight_E = bundle_E[active_E], link_E[active_E], weight_E[active_E]
        demand_K = np.bincount(link_E, weights=weight_E, minlength=len(left_K))
        share_K = np.divide(left_K, demand_K, out=np.full(len(left_K), np.inf), where=demand_K > 0)
        scarcest_B = np.full(len(rate_B), np.inf)
        np.minimum.at(scarcest_B, bundle_E, share_K[link_E])
        limit_B = np.minimum(scarcest_B, ceiling_B)
        limit_K = np.full(len(left_K), np.inf)
        np.minimum.at(limit_K, link_E, limit_B[bundle_E])
        full_K = limit_K >= share_K * (1 - ROUNDING)
        ends_B = ceiling_B <= scarcest_B
        ends_B[bundle_E[full_K[link_E] & (share_K[link_E] <= scarcest_B[bundle_E] * (1 + ROUNDING))]] = True
        ends_B &= rises_B
        rate_B[ends_B] = limit_B[ends_B]
        rises_B &= ~ends_B
        left_K -= np.bincount(link_E, weights=weight_E * np.where(ends_B, rate_B, 0)[bundle_E], minlength=len(left_K))
        np.maximum(left_K, 0, out=left_K)
    return rate_B


def _shared_only(
    crossings: Crossings, capacity_K: FloatArray, ceiling_B: FloatArray
) -> tuple[Crossings, FloatArray, FloatArray]:
    """Make links that one bundle alone crosses part of its ceiling, and number the others anew: mostly few are left."""
    users_K = np.bincount(crossings.link_E, minlength=len(capacity_K))
    shared_E = users_K[crossings.link_E] > 1
    ceiling_B = ceiling_B.astype(np.float64).copy()
    own = crossings.link_E[~shared_E]
    np.minimum.at(ceiling_B, crossings.bundle_E[~shared_E], capacity_K[own] / crossings.weight_E[~shared_E])
    number_K = np.cumsum(users_K > 1) - 1
    kept = Crossings(
        bundle_E=crossings.bundle_E[shared_E],
        link_E=number_K[crossings.link_E[shared_E]],
        weight_E=crossings.weight_E[shared_E],
    )
    return kept, capacity_K[users_K > 1].astype(np.float64), ceiling_B
