"""What a rental policy sees and says, for one run or for many at once. Pure.

Axes: N = run that is decided for, Z = pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market.values import SpotTerms


class Holding(IntEnum):
    """What a run computes on, besides what its mode keeps all the time (``modes``)."""

    NOTHING = 0
    SPOT = 1
    ON_DEMAND = 2


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RentalView:
    """How the runs stand when a policy is asked, which it is every ``tick_s`` seconds.

    ``left_s`` is the time until the deadline, ``work_s_N`` the computing still to do, ``overhead_s_N`` what is left of
    the changeover to what is held. A run whose spot capacity has gone holds nothing. ``pool_N`` is the pool of the spot
    capacity that is held, or was last. ``at_s_N`` is now in Unix seconds; None: not known. ``in_stock_N`` is whether
    on-demand capacity can be had; None: always. ``mode_N`` is the mode that the runs are in; None: there is only one.
    ``in_stock_MN`` is whether each mode's own can be had, where any can; None: in all.
    """

    left_s: float
    tick_s: float
    work_s_N: FloatArray
    overhead_s_N: FloatArray
    holding_N: IntArray
    pool_N: IntArray
    up_ZN: BoolArray
    at_s_N: FloatArray | None = None
    in_stock_N: BoolArray | None = None
    mode_N: IntArray | None = None
    in_stock_MN: BoolArray | None = None

    @property
    def any_up_N(self) -> BoolArray:
        """Whether any pool could be had."""
        return np.asarray(self.up_ZN.any(axis=0))

    def must_be_safe_N(self, changeover_s: float) -> BoolArray:
        """Whether only on-demand capacity, from now on, is sure to be in time.

        One tick later a changeover must still fit in, should nothing be held by then.
        """
        return np.asarray(self.left_s < self.work_s_N + changeover_s + self.tick_s)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RentalChoice:
    """What to hold until asked again; ``pool_N`` counts where that is spot capacity. No ``mode_N``: all stay in theirs.

    On-demand capacity that is not held and out of stock is refused: what is held then stays.
    """

    holding_N: IntArray
    pool_N: IntArray
    mode_N: IntArray | None = None


class RentalPolicy(Protocol):
    """Chooses what to hold. Keeps what it has learnt between calls."""

    def begin(self, terms: SpotTerms, *, num_runs: int, num_pools: int) -> None:
        """Forget everything; runs that are alike start together."""

    def choose(self, view: RentalView) -> RentalChoice:
        """Return what to hold for the next tick."""


def first_up_pool_N(view: RentalView) -> IntArray:
    """Return the pool that is held if it is up, else the first that is."""
    held_up_N = view.up_ZN[view.pool_N, np.arange(len(view.pool_N))]
    return np.where(held_up_N, view.pool_N, view.up_ZN.argmax(axis=0))
