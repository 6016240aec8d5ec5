"""A solver of ours as a placer: all that it is told goes through ``ports.PlacementSolver``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from airflow_llmsched.domain.placement import NotPlaced, PlacementProblem
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.ports import PlacementSolver
from tests.bench.placement_judge.fleet import Fleet, Seats
from tests.bench.placement_judge.gangs import Gang


@dataclass(frozen=True, slots=True)
class Judged:
    """Asked for what the baselines are asked for: the whole gang in one innermost domain if that can be."""

    solver: PlacementSolver
    seed: int = 0
    time_limit_s: float = 5.0

    def place(self, fleet: Fleet, gang: Gang) -> Seats | None:
        """Return the seats that the solver names, rank by rank."""
        tree = tree_of(fleet)
        problem = PlacementProblem(layout=gang.layout, tree=tree, preferred_level=tree.levels[-1])
        result = self.solver.place(problem, time_limit_s=self.time_limit_s, seed=self.seed)
        if isinstance(result, NotPlaced):
            return None
        node_R = np.array([int(slot.node) for slot in result.placement.slots], dtype=np.int64)
        return Seats(node_R, np.array([slot.slot for slot in result.placement.slots], dtype=np.int64))


def tree_of(fleet: Fleet) -> TopologyTree:
    """Return the fleet as the domain knows it. A node is named by its number, so that path order is also name order."""
    width = len(str(fleet.num_nodes))
    numbers = (fleet.domain_LN.T + 10**width).tolist()
    masks = np.packbits(fleet.free_NS, axis=1, bitorder="little").tolist()
    nodes = tuple(
        _node(f"{node:0{width}d}", fleet.levels, tuple(path), fleet.free_NS.shape[1], tuple(mask))
        for node, (path, mask) in enumerate(zip(numbers, masks, strict=True))
    )
    return TopologyTree(levels=fleet.levels, nodes=nodes)


@lru_cache(maxsize=1 << 16)
def _node(
    id_: str, levels: tuple[str, ...], path: tuple[int, ...], num_slots: int, mask: tuple[int, ...]
) -> TopologyNode:
    """Return one node. Most are as they were when the last gang came."""
    free = np.flatnonzero(np.unpackbits(np.array(mask, dtype=np.uint8), bitorder="little")[:num_slots]).tolist()
    return TopologyNode(
        id=id_,
        path=tuple(f"{level}-{number}" for level, number in zip(levels, path, strict=True)),
        shape="node-of-eight",
        num_slots=num_slots,
        num_free_slots=len(free),
        free_slots=tuple(free),
    )
