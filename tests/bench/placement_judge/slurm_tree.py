"""What Slurm's documentation says of ``topology/tree``, in our words. A baseline: it is not tuned, and not to be.

Source: https://slurm.schedmd.com/topology.html (Slurm 23.02 to 25.05, "Tree Topology"); ``--switches``:
https://slurm.schedmd.com/sbatch.html#OPT_switches. There it says: the lowest switch of the hierarchy that can satisfy
the request is found, and nodes are taken from the leaf switches below it by best fit over what is free now, which may
take more switches than needed; no job spans leaf switches without a common parent; a job may name the most leaf
switches it accepts and then waits.

Best fit is read as Slurm uses the word elsewhere: the smallest that suffices; where none does, the largest, whole, and
again for the rest. Nodes of a leaf are taken in the order in which they are configured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.bench.placement_judge.fleet import Ask, BoolArray, Fleet, IntArray


@dataclass(frozen=True, slots=True)
class SlurmTree:
    """``sbatch --nodes=num_pods --gpus-per-node=slots_per_pod``, and ``--switches=max_switches`` if given."""

    max_switches: int | None = None

    def choose(self, fleet: Fleet, ask: Ask) -> IntArray | None:
        """Return the pods on each node, at most one each; None where the job would wait."""
        suits_N = fleet.pods_N(ask) >= 1
        below_N = _lowest_switch(fleet, suits_N, ask)
        if below_N is None:
            return None
        leaf_N = fleet.domain_LN[-1]
        free = {int(leaf): int(np.count_nonzero(suits_N & below_N & (leaf_N == leaf))) for leaf in set(leaf_N[below_N])}
        pods_N = np.zeros(fleet.num_nodes, dtype=np.int64)
        remaining, num_switches = ask.num_pods, 0
        while remaining:
            leaf = _best_fit(free, remaining)
            nodes = np.flatnonzero(suits_N & (leaf_N == leaf))[:remaining]
            pods_N[nodes] = 1
            remaining -= len(nodes)
            num_switches += 1
            del free[leaf]
        if self.max_switches is not None and num_switches > self.max_switches:
            return None
        return pods_N


def _lowest_switch(fleet: Fleet, suits_N: BoolArray, ask: Ask) -> BoolArray | None:
    """Return which nodes are below the lowest switch that suffices, of several the one with the fewest to spare."""
    lowest = 0 if ask.required_level is None else ask.required_level
    for level in range(len(fleet.levels) - 1, lowest - 1, -1):
        counts = np.bincount(fleet.domain_LN[level][suits_N], minlength=int(fleet.domain_LN[level].max()) + 1)
        enough = np.flatnonzero(counts >= ask.num_pods)
        if enough.size:
            chosen = enough[np.argmin(counts[enough])]
            return np.asarray(fleet.domain_LN[level] == chosen)
    return None


def _best_fit(free: dict[int, int], remaining: int) -> int:
    enough = [leaf for leaf, count in free.items() if count >= remaining]
    if enough:
        return min(enough, key=lambda leaf: (free[leaf], leaf))
    return min(free, key=lambda leaf: (-free[leaf], leaf))
