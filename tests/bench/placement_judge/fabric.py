"""A tree of switches with rails, as links with capacities, and the links between any two accelerators.

Each slot of a node has a network card of its own on the rail of its number, as rail-optimized fabrics have. A domain
of the innermost level has one access switch for each rail; each domain's switches of a rail have links upwards, as fast
as a card and as many as the domain has nodes over the level's oversubscription. A flow takes one of them by a hash of
its ends, as static routing over equal paths does: two that meet on one link share it, however idle the next one is.
Within a node accelerators reach each other over links that are theirs alone.

Axes: N = node, L = level, outermost first, D = domain of a level, K = link; F = flow, E = crossing of a link by a flow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.bench.placement_judge.fleet import FloatArray, IntArray

UP, DOWN = 0, 1
GIGA = 10**9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Uplinks:
    """Links above the domains of one level: ``num_links_D`` on each rail and way, numbered from ``first_D``."""

    domain_N: IntArray
    num_links_D: IntArray
    first_D: IntArray

    def link(self, domain: IntArray, rail: IntArray, direction: int, which: IntArray) -> IntArray:
        """Return the number of a link; ``which`` may be any number and stands for its remainder."""
        num_links = self.num_links_D[domain]
        return self.first_D[domain] + (rail * num_links + which % num_links) * 2 + direction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fabric:
    """Speeds in bytes/s and one direction. Every link above a domain is as fast as a card. ``salt`` is the hash's."""

    levels: tuple[Uplinks, ...]
    num_links: int
    num_rails: int
    card_bytes_per_s: float
    scale_up_bytes_per_s: float
    salt: int = 0

    @classmethod
    def of(
        cls,
        domain_LN: IntArray,
        *,
        levels: tuple[str, ...],
        oversubscription: Mapping[str, float],
        num_rails: int = 8,
        card_bytes_per_s: float = 50 * GIGA,
        scale_up_bytes_per_s: float = 450 * GIGA,
        salt: int = 0,
    ) -> Fabric:
        """Lay out the links. ``oversubscription`` of a level is the bandwidth of the cards below over that upwards."""
        made = []
        total = 0
        for level, domain_N in zip(levels, domain_LN, strict=True):
            num_links_D = np.maximum(1, np.bincount(domain_N) / oversubscription[level]).astype(np.int64)
            ends_D = total + np.cumsum(num_links_D * num_rails * 2)
            made.append(Uplinks(domain_N=domain_N, num_links_D=num_links_D, first_D=np.append(total, ends_D[:-1])))
            total = int(ends_D[-1])
        return cls(
            levels=tuple(made),
            num_links=total,
            num_rails=num_rails,
            card_bytes_per_s=card_bytes_per_s,
            scale_up_bytes_per_s=scale_up_bytes_per_s,
            salt=salt,
        )

    @property
    def capacity_K(self) -> FloatArray:
        """What each link carries at most."""
        return np.full(self.num_links, self.card_bytes_per_s)

    def crossings(
        self, from_node_F: IntArray, from_rail_F: IntArray, to_node_F: IntArray, to_rail_F: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return (flow, link) for each link above access switches that a flow between two nodes crosses.

        A flow goes up as far as the two have no domain in common. Between rails it goes above the access switches even
        in one innermost domain: they are different switches. What it takes down has the number of what it took up.
        """
        flows, links = [], []
        for depth, level in enumerate(self.levels):
            from_F, to_F = level.domain_N[from_node_F], level.domain_N[to_node_F]
            apart_F = from_F != to_F
            if depth == len(self.levels) - 1:
                apart_F = apart_F | (from_rail_F != to_rail_F)
            flow = np.flatnonzero(apart_F)
            salt = self.salt * len(self.levels) + depth
            which = _hash(salt, from_node_F[flow], from_rail_F[flow], to_node_F[flow], to_rail_F[flow])
            links.append(level.link(from_F[flow], from_rail_F[flow], UP, which))
            links.append(level.link(to_F[flow], to_rail_F[flow], DOWN, which))
            flows += [flow, flow]
        return np.concatenate(flows), np.concatenate(links)


def _hash(salt: int, *parts: IntArray) -> IntArray:
    """Mix the ends of flows into numbers without a pattern (the finalizer of SplitMix64), always alike."""
    mixed = np.full(parts[0].shape, salt + 1, dtype=np.uint64)
    for part in parts:
        mixed = (mixed ^ part.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(2)).astype(np.int64)
