"""A mix of gangs replayed on a fleet by one placer: seats of those who stay, refusals, and what is left whole.

Who is refused goes away. Placers see a gang once, when it comes, and nothing is ever moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tests.bench.placement_judge.fleet import Ask, Fleet, IntArray, Seats
from tests.bench.placement_judge.gangs import Gang
from tests.bench.placement_judge.mixes import Mix


class Placer(Protocol):
    """Seats a gang on what is free, or refuses it."""

    def place(self, fleet: Fleet, gang: Gang) -> Seats | None:
        """Return free seats in rank order; None is a refusal."""


class NodePolicy(Protocol):
    """A baseline: says how many pods go on each node."""

    def choose(self, fleet: Fleet, ask: Ask) -> IntArray | None:
        """Return pods by node; None is a refusal."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline as a placer: asked to keep a gang in one innermost domain if it can."""

    policy: NodePolicy

    def place(self, fleet: Fleet, gang: Gang) -> Seats | None:
        """Return what the policy chooses, ranks along the path order."""
        ask = gang.ask(preferred_level=len(fleet.levels) - 1)
        pods_N = self.policy.choose(fleet, ask)
        return None if pods_N is None else fleet.seats(pods_N, ask)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """Who sits where at one moment, by the gang's id, and how many hosts are still whole."""

    seats: dict[int, Seats]
    whole_hosts: int
    busy_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayed:
    """What became of a mix. The last snapshot is of the end, when every arrival has come."""

    snapshots: tuple[Snapshot, ...]
    refused: frozenset[int]


def replayed(mix: Mix, fleet: Fleet, placer: Placer, *, num_snapshots: int) -> Replayed:
    """Replay a mix on an idle fleet, which it uses up, and look at it ``num_snapshots`` times, evenly spread."""
    num_arrivals = len(mix.stays) - mix.num_present
    looks = {mix.num_present + round(num_arrivals * (at + 1) / num_snapshots) for at in range(num_snapshots)}
    seated: dict[int, Seats] = {}
    refused: set[int] = set()
    snapshots = []
    for comes, stay in mix.events():
        gang = stay.gang
        if not comes:
            if gang.id in seated:
                fleet.give_back(seated.pop(gang.id))
            continue
        seats = placer.place(fleet, gang)
        if seats is None:
            refused.add(gang.id)
        else:
            _check(seats, gang)
            fleet.take(seats)
            seated[gang.id] = seats
        if gang.id + 1 in looks:
            snapshots.append(Snapshot(seats=dict(seated), whole_hosts=whole_hosts(fleet), busy_ratio=fleet.busy_ratio))
    return Replayed(snapshots=tuple(snapshots), refused=frozenset(refused))


def whole_hosts(fleet: Fleet) -> int:
    """Return the hosts of the largest gang that still fits into one domain on wholly idle inner domains alone.

    Of each domain of the level above the innermost: the hosts of those of its innermost domains in which nothing runs.
    """
    innermost_N = fleet.domain_LN[-1]
    idle_N = fleet.free_NS.all(axis=1)
    size = np.bincount(innermost_N)
    whole = np.bincount(innermost_N, weights=idle_N) == size
    above_N = fleet.domain_LN[-2] if len(fleet.levels) > 1 else np.zeros(fleet.num_nodes, dtype=np.int64)
    return int(np.bincount(above_N, weights=whole[innermost_N]).max())


def _check(seats: Seats, gang: Gang) -> None:
    if len(seats.node_R) != gang.num_slots:
        raise ValueError(f"gang {gang.id} has {gang.num_slots} ranks, but {len(seats.node_R)} seats")
