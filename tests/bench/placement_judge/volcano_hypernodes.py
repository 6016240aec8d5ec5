"""What is documented of Volcano's network topology scheduling, in our words. A baseline: not tuned, and not to be.

Sources: https://volcano.sh/en/docs/network_topology_aware_scheduling/, the design document "Network Topology Aware
Scheduling" in https://github.com/volcano-sh/volcano/tree/master/docs/design, and for bin packing over HyperNodes
https://support.huaweicloud.com/intl/en-us/usermanual-cce/cce_10_1129.html. There they say: tiers are searched from the
lowest, and the search stops at the first with a HyperNode that holds the job, in ``hard`` mode not above
``highestTierAllowed``; of the HyperNodes that hold it, the fuller is preferred, so that empty ones stay whole. Nodes
are scored by how full the HyperNodes around them are, each tier weighted by powers of ``fading`` (0.8 unless set; below
1 lower tiers count more, with 0 none does). Within a node, bin packing prefers the fuller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.placement_judge.fleet import Ask, BoolArray, Fleet, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class VolcanoHyperNodes:
    """A required level is ``mode: hard`` up to its tier, a preferred one ``soft``; neither: no ``networkTopology``."""

    fading: float = 0.8

    def choose(self, fleet: Fleet, ask: Ask) -> IntArray | None:
        """Return the pods on each node; None where the job would wait."""
        room_N = fleet.pods_N(ask)
        within_N = _hyper_node(fleet, ask, room_N)
        if within_N is None:
            return None
        free_N = fleet.free_N.copy()
        pods_N = np.zeros(fleet.num_nodes, dtype=np.int64)
        for _ in range(ask.num_pods):
            score_N = self._score_N(fleet, free_N)
            score_N[~within_N | (pods_N >= room_N)] = -np.inf
            node = int(np.argmax(score_N))
            pods_N[node] += 1
            free_N[node] -= ask.slots_per_pod
        return pods_N

    def _score_N(self, fleet: Fleet, free_N: IntArray) -> FloatArray:
        """Say how full the node and the HyperNodes around it are, those of this job's pods included."""
        num_slots = fleet.free_NS.shape[1]
        score_N = 1 - free_N / num_slots
        for tier, domain_N in enumerate(reversed(fleet.domain_LN), start=1):
            full = 1 - np.bincount(domain_N, weights=free_N) / (np.bincount(domain_N) * num_slots)
            score_N = score_N + self.fading**tier * full[domain_N]
        return score_N


def _hyper_node(fleet: Fleet, ask: Ask, room_N: IntArray) -> BoolArray | None:
    """Return which nodes are in the fullest HyperNode of the lowest tier that holds the job, or in none for all."""
    if ask.required_level is None and ask.preferred_level is None:
        return np.ones(fleet.num_nodes, dtype=np.bool_) if room_N.sum() >= ask.num_pods else None
    highest = 0 if ask.required_level is None else ask.required_level
    for level in range(len(fleet.levels) - 1, highest - 1, -1):
        domain_N = fleet.domain_LN[level]
        enough = np.flatnonzero(np.bincount(domain_N, weights=room_N) >= ask.num_pods)
        if enough.size:
            free = np.bincount(domain_N, weights=fleet.free_N) / np.bincount(domain_N)
            return np.asarray(domain_N == enough[np.argmin(free[enough])])
    if ask.required_level is None and room_N.sum() >= ask.num_pods:
        return np.ones(fleet.num_nodes, dtype=np.bool_)
    return None
