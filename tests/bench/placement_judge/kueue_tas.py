"""What Kueue's documentation says of topology-aware scheduling, in our words. A baseline: not tuned, and not to be.

Source: "Computing the assignment" in
https://github.com/kubernetes-sigs/kueue/blob/main/keps/2724-topology-aware-scheduling/README.md and
https://kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling/. There it says: ``podset-required-topology`` takes
one domain of that level that holds all pods, or the job waits; ``podset-preferred-topology`` looks for such a domain
from that level upwards, and spreads over several domains of the highest level if none holds them; what no annotation
constrains may go anywhere. Domains are then chosen level by level, as many as are needed:

* most-free-capacity (a profile of earlier versions, described under "Alternatives" there) begins with the most free;
* best fit (today's) does too, but chooses as the last domain of each level the one that leaves least;
* least-free-capacity begins with the least free.

Where one domain suffices it is the last: best fit and least-free-capacity take the tightest, the other the emptiest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tests.bench.placement_judge.fleet import Ask, Fleet, IntArray


class Profile(StrEnum):
    """Which domains come first."""

    MOST_FREE = "most-free-capacity"
    BEST_FIT = "best fit"
    LEAST_FREE = "least-free-capacity"


@dataclass(frozen=True, slots=True)
class KueueTas:
    """One profile for whatever is asked."""

    profile: Profile

    def choose(self, fleet: Fleet, ask: Ask) -> IntArray | None:
        """Return the pods on each node; None where the workload would wait. Its lowest level is the node."""
        pods_N = fleet.pods_N(ask)
        domain_LN = np.vstack([fleet.domain_LN, np.arange(fleet.num_nodes)])
        level, chosen = self._first(ask, pods_N, domain_LN)
        if not chosen:
            return None
        while level < len(domain_LN) - 1:
            inside_N = np.isin(domain_LN[level], list(chosen))
            level += 1
            rooms = _rooms(domain_LN[level], np.where(inside_N, pods_N, 0))
            chosen = self._greedy(rooms, ask.num_pods)
        taken_N = np.zeros(fleet.num_nodes, dtype=np.int64)
        for node, count in chosen.items():
            taken_N[node] = count
        return taken_N

    def _first(self, ask: Ask, pods_N: IntArray, domain_LN: IntArray) -> tuple[int, dict[int, int]]:
        """Return the level to begin at and the pods of each domain there; none if it cannot be."""
        if ask.required_level is not None:
            return ask.required_level, self._single(_rooms(domain_LN[ask.required_level], pods_N), ask.num_pods)
        wished = len(domain_LN) - 1 if ask.preferred_level is None else ask.preferred_level
        if ask.preferred_level is not None:
            for level in range(wished, -1, -1):
                chosen = self._single(_rooms(domain_LN[level], pods_N), ask.num_pods)
                if chosen:
                    return level, chosen
            wished = 0
        rooms = _rooms(domain_LN[wished], pods_N)
        return wished, self._greedy(rooms, ask.num_pods) if rooms.sum() >= ask.num_pods else {}

    def _single(self, rooms: IntArray, num_pods: int) -> dict[int, int]:
        enough = np.flatnonzero(rooms >= num_pods)
        if not enough.size:
            return {}
        index = np.argmax(rooms[enough]) if self.profile is Profile.MOST_FREE else np.argmin(rooms[enough])
        return {int(enough[index]): num_pods}

    def _greedy(self, rooms: IntArray, num_pods: int) -> dict[int, int]:
        """Choose domains with room for all pods together, the first of equals by their order."""
        sign = 1 if self.profile is Profile.LEAST_FREE else -1
        left = [int(each) for each in np.argsort(sign * rooms, kind="stable") if rooms[each] > 0]
        chosen: dict[int, int] = {}
        remaining = num_pods
        while remaining:
            domain = left[0]
            if self.profile is Profile.BEST_FIT and rooms[domain] >= remaining:
                domain = min((each for each in left if rooms[each] >= remaining), key=lambda each: (rooms[each], each))
            chosen[domain] = min(remaining, int(rooms[domain]))
            remaining -= chosen[domain]
            left.remove(domain)
        return chosen


def _rooms(domain_N: IntArray, pods_N: IntArray) -> IntArray:
    return np.bincount(domain_N, weights=pods_N).astype(np.int64)
