"""Nodes drawn blindly: what placement is worth at all. A baseline: it is not tuned, and not to be."""

from __future__ import annotations

import numpy as np

from tests.bench.placement_judge.fleet import Ask, Fleet, IntArray


class RandomNodes:
    """Draws from all places where a pod fits, each as likely as another. Ranks are numbered along the path order."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def choose(self, fleet: Fleet, ask: Ask) -> IntArray | None:
        """Return the pods on each node; None where too few fit, in one domain of the required level if there is one."""
        pods_N = fleet.pods_N(ask)
        if ask.required_level is not None:
            domain_N = fleet.domain_LN[ask.required_level]
            enough = np.flatnonzero(np.bincount(domain_N, weights=pods_N) >= ask.num_pods)
            if not enough.size:
                return None
            pods_N = np.where(domain_N == self._rng.choice(enough), pods_N, 0)
        places = np.repeat(np.arange(fleet.num_nodes), pods_N)
        if len(places) < ask.num_pods:
            return None
        return np.bincount(self._rng.choice(places, ask.num_pods, replace=False), minlength=fleet.num_nodes)
