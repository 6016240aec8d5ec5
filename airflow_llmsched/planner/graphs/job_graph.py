"""The job as a graph: who sends how much to whom in a step. Pure. Axes: R = rank, E = edge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.graphs.exchanges import Exchange, Pattern
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.perf.groups import groups_GM


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Directed edges: ``bytes_E`` go from rank ``source_E`` to rank ``target_E`` in a step."""

    source_E: IntArray
    target_E: IntArray
    bytes_E: FloatArray

    def between(self, domain_R: IntArray) -> FloatArray:
        """Return the bytes that leave each domain of ranks in a step; links carry as much in both directions."""
        leaves_E = domain_R[self.source_E] != domain_R[self.target_E]
        num_domains = int(domain_R.max(initial=-1)) + 1
        leaving = np.bincount(domain_R[self.source_E[leaves_E]], weights=self.bytes_E[leaves_E], minlength=num_domains)
        return leaving.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGraph:
    """A gang of ``num_ranks`` and what it exchanges."""

    num_ranks: int
    exchanges: tuple[Exchange, ...]

    def edges(self, of: Iterable[Exchange] | None = None) -> Edges:
        """Return the edges of some exchanges; of all without ``of``."""
        parts = [_edges(each, self.num_ranks) for each in (self.exchanges if of is None else of)]
        if not parts:
            nothing = np.zeros(0, dtype=np.int64)
            return Edges(source_E=nothing, target_E=nothing, bytes_E=np.zeros(0))
        return Edges(
            source_E=np.concatenate([each.source_E for each in parts]),
            target_E=np.concatenate([each.target_E for each in parts]),
            bytes_E=np.concatenate([each.bytes_E for each in parts]),
        )


def _edges(exchange: Exchange, num_ranks: int) -> Edges:
    group_GM = groups_GM(num_ranks, stride=exchange.stride, size=exchange.size)
    sent = exchange.bytes_per_rank
    if exchange.pattern is Pattern.RING:
        return _joined([(group_GM, np.roll(group_GM, -1, axis=1), sent)])
    if exchange.pattern is Pattern.LINE:
        return _joined([(group_GM[:, :-1], group_GM[:, 1:], sent / 2), (group_GM[:, 1:], group_GM[:, :-1], sent / 2)])
    shifts = range(1, exchange.size)
    return _joined([(group_GM, np.roll(group_GM, -shift, axis=1), sent / len(shifts)) for shift in shifts])


def _joined(parts: list[tuple[IntArray, IntArray, float]]) -> Edges:
    return Edges(
        source_E=np.concatenate([source.ravel() for source, _, _ in parts]),
        target_E=np.concatenate([target.ravel() for _, target, _ in parts]),
        bytes_E=np.concatenate([np.full(source.size, num_bytes) for source, _, num_bytes in parts]),
    )
