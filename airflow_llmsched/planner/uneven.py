"""Integer shares for parts that are not equally fast: layers for pipeline stages, micro-batches for replicas. Pure.

Exact, not rounded: the best bound is one of the times at which some part is done with some number of items, and all of
these are tried. Axes: P = part (a stage, a replica), T = bound that is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """What each part takes: ``each_s_P`` for an item and ``fixed_s_P`` besides. It can have ``least_P`` to ``most_P``.

    Raises ``ValueError`` where an item takes no time.
    """

    each_s_P: FloatArray
    fixed_s_P: FloatArray
    least_P: IntArray
    most_P: IntArray

    def __post_init__(self) -> None:
        """Refuse items that take no time: any number of them would be as fast."""
        if (self.each_s_P <= 0).any():
            raise ValueError("an item takes time on every part")

    def taken_s(self, num_P: IntArray) -> FloatArray:
        """Return how long each part takes for its items."""
        return np.asarray(self.fixed_s_P + num_P * self.each_s_P)

    def bounds_T(self, num_items: int) -> FloatArray:
        """Return every time at which some part can be done with some number of items, ascending."""
        numbers = np.arange(num_items + 1)
        is_legal = (numbers >= self.least_P[:, None]) & (numbers <= self.most_P[:, None])
        return np.unique((self.fixed_s_P[:, None] + self.each_s_P[:, None] * numbers)[is_legal])

    def room_TP(self, bounds_T: FloatArray) -> IntArray:
        """Return how many items each part can have within each bound; below ``least_P`` where not even those fit."""
        # what makes a bound must fit into it, whatever it was rounded to
        within = np.floor((bounds_T[:, None] - self.fixed_s_P) / self.each_s_P + 1e-9)
        return np.minimum(within, self.most_P).astype(np.int64)


def split_replicas(parts: Parts, num_items: int) -> IntArray | None:
    """Return the shares with which the slowest part is done soonest; None: there is no room for so many items."""
    feasible = _feasible(parts, num_items)
    if feasible is None:
        return None
    room_P = feasible[1][0]
    return _fewest_on(room_P, parts.least_P, num_items, order=np.argsort(-parts.each_s_P, kind="stable"))


def split_stages(parts: Parts, num_layers: int, *, num_micro_batches: int) -> IntArray | None:
    """Return the layers of each stage with which a pipeline is done soonest; None: there is no room for so many.

    The slowest stage does all micro-batches, the others add one each: fill and drain. For each bound of the slowest,
    the fastest stages are filled first, which makes the sum least; so all that matters is which bound.
    """
    feasible = _feasible(parts, num_layers)
    if feasible is None:
        return None
    order = np.argsort(parts.each_s_P, kind="stable")
    found = [_filled_first(room_P, parts.least_P, num_layers, order=order) for room_P in feasible[1]]
    spent_s = [pipeline_s(parts.taken_s(num_P), num_micro_batches=num_micro_batches) for num_P in found]
    return found[int(np.argmin(spent_s))]


def pipeline_s(stage_s_P: FloatArray, *, num_micro_batches: int) -> float:
    """Return the seconds of one forward, one backward over uneven stages (Narayanan et al. 2019)."""
    return float((num_micro_batches - 1) * stage_s_P.max() + stage_s_P.sum())


def _feasible(parts: Parts, num_items: int) -> tuple[FloatArray, IntArray] | None:
    """Return the bounds within which all items have room, and the room of each part; None when there are none."""
    if parts.least_P.sum() > num_items:
        return None
    bounds_T = parts.bounds_T(num_items)
    room_TP = parts.room_TP(bounds_T)
    is_enough_T = (room_TP >= parts.least_P).all(axis=1) & (room_TP.sum(axis=1) >= num_items)
    return (bounds_T[is_enough_T], room_TP[is_enough_T]) if is_enough_T.any() else None


def _filled_first(room_P: IntArray, least_P: IntArray, num_items: int, *, order: IntArray) -> IntArray:
    """Give each part its least, and the rest to parts in ``order`` up to their room."""
    num_P = least_P.copy()
    spare_P = (room_P - least_P)[order]
    before_P = np.cumsum(spare_P) - spare_P
    num_P[order] += np.clip(num_items - int(least_P.sum()) - before_P, 0, spare_P)
    return num_P


def _fewest_on(room_P: IntArray, least_P: IntArray, num_items: int, *, order: IntArray) -> IntArray:
    """Fill every part, and take what is too many from parts in ``order``, one from each before any gives two."""
    num_P = room_P.copy()
    while (excess := int(num_P.sum()) - num_items) > 0:
        giving = order[num_P[order] > least_P[order]][:excess]
        num_P[giving] -= 1
    return num_P
