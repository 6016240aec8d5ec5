"""What is free on a fleet, counted in arrays. Knows nothing of who places, or how well.

Axes: N = node in path order, L = level, outermost first, S = slot, R = rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A gang as a scheduler of nodes sees it: equal pods, each of which must fit on one node.

    ``required_level`` and ``preferred_level`` are indexes of levels; None asks for nothing.
    """

    num_pods: int
    slots_per_pod: int
    required_level: int | None = None
    preferred_level: int | None = None

    @property
    def num_slots(self) -> int:
        """Accelerators of the gang."""
        return self.num_pods * self.slots_per_pod


@dataclass(frozen=True, slots=True, eq=False)
class Seats:
    """Where each rank is: its node and the slot there."""

    node_R: IntArray
    slot_R: IntArray

    @property
    def num_nodes(self) -> int:
        """Nodes that the gang is on."""
        return len(np.unique(self.node_R))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """Nodes under ``levels``. ``domain_LN`` numbers the domains of each level; ``free_NS`` is what changes."""

    levels: tuple[str, ...]
    domain_LN: IntArray
    free_NS: BoolArray

    @classmethod
    def of(cls, paths: Sequence[tuple[str, ...]], *, levels: tuple[str, ...], num_slots: int) -> Fleet:
        """Lay out idle nodes, which must come in path order: a path names the domains of each level."""
        if sorted(paths) != list(paths):
            raise ValueError("nodes must come in path order: ranks are numbered along it")
        domain_LN = np.zeros((len(levels), len(paths)), dtype=np.int64)
        for level in range(len(levels)):
            numbers: dict[tuple[str, ...], int] = {}
            domain_LN[level] = [numbers.setdefault(path[: level + 1], len(numbers)) for path in paths]
        return cls(levels=levels, domain_LN=domain_LN, free_NS=np.ones((len(paths), num_slots), dtype=np.bool_))

    @property
    def num_nodes(self) -> int:
        """Nodes of the fleet, busy or not."""
        return len(self.free_NS)

    @property
    def free_N(self) -> IntArray:
        """Free slots of each node."""
        return self.free_NS.sum(axis=1)

    @property
    def busy_ratio(self) -> float:
        """Share of slots that are taken."""
        return float(1 - self.free_NS.mean())

    def pods_N(self, ask: Ask) -> IntArray:
        """Pods of ``ask`` that fit on each node now."""
        return self.free_N // ask.slots_per_pod

    def seats(self, pods_N: IntArray, ask: Ask) -> Seats:
        """Seat as many pods on each node, ranks along the path order, each on the first slots that are free."""
        nodes = np.flatnonzero(pods_N)
        wanted = pods_N[nodes] * ask.slots_per_pod
        slots = [np.flatnonzero(self.free_NS[node])[:count] for node, count in zip(nodes, wanted, strict=True)]
        return Seats(np.repeat(nodes, wanted), np.concatenate(slots) if slots else np.zeros(0, dtype=np.int64))

    def take(self, seats: Seats) -> None:
        """Make seats busy. Raises ``ValueError`` when one is, or is named twice."""
        pairs = seats.node_R * self.free_NS.shape[1] + seats.slot_R
        if len(np.unique(pairs)) < len(pairs) or not self.free_NS[seats.node_R, seats.slot_R].all():
            raise ValueError("a slot is given away twice")
        self.free_NS[seats.node_R, seats.slot_R] = False

    def give_back(self, seats: Seats) -> None:
        """Make seats free again. Raises ``ValueError`` when one is."""
        if self.free_NS[seats.node_R, seats.slot_R].any():
            raise ValueError("a slot comes back that was free")
        self.free_NS[seats.node_R, seats.slot_R] = True
