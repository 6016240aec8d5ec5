"""Ways to run one job, between which a run may move: another place, node shape or size, or a mix of both kinds. Pure.

A mode says how fast the job gets on and what it costs while it holds nothing, spot or on-demand capacity there, against
the plan's own nodes on demand (speed 1, price 1). So every wish to do something else is six numbers:

- the plan itself waits for nothing, and runs at full speed on either kind;
- another region has prices of its own, and its data has to get there;
- another node shape has another speed and price;
- scaled down, both are lower;
- mixed, some data-parallel groups stay on on-demand capacity, at a lower speed, and spot capacity adds the others.

Axes: M = mode, H = holding (``rental.Holding``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.market.values import SpotTerms
from airflow_llmsched.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way. ``pools`` are the spot pools that serve it; none, and it is on-demand only."""

    name: str
    terms: SpotTerms
    pools: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What it takes to go on in another mode: ``duration_s`` without progress, held and paid there, and ``cost_s``.

    ``cost_s`` is egress and whatever else is paid once, in seconds of on-demand capacity (:func:`seconds_of`).
    """

    duration_s: float
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSet:
    """Modes of one run, which begins in the first. A move that is not named takes the target's changeover, for free.

    Raises ``SpecError`` for modes of different runs, and for moves between what is not there.
    """

    modes: tuple[Mode, ...]
    moves: Mapping[tuple[int, int], Move] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that they belong together."""
        if not self.modes:
            raise SpecError(path="modes", value=(), hint="must be at least the plan itself")
        runs = {(mode.terms.time_s, mode.terms.work_s) for mode in self.modes}
        if len(runs) > 1:
            raise SpecError(path="modes", value=sorted(runs), hint="must all have the run's own time_s and work_s")
        for pair, move in self.moves.items():
            if pair[0] == pair[1] or not all(0 <= number < len(self.modes) for number in pair):
                raise SpecError(path=f"moves[{pair}]", value=pair, hint=f"must be two of {len(self.modes)} modes")
            if not (move.duration_s >= 0 and move.cost_s >= 0):
                raise SpecError(path=f"moves[{pair}]", value=move, hint="must not take negative time or money")

    @classmethod
    def only(cls, terms: SpotTerms, *, num_pools: int) -> ModeSet:
        """Return the plan itself, served by any of ``num_pools``."""
        return cls(modes=(Mode(name="as planned", terms=terms, pools=tuple(range(num_pools))),))

    def price_MH(self) -> FloatArray:
        """Return what a second costs, in seconds of the plan's on-demand capacity."""
        return np.array([mode.terms.price_H for mode in self.modes])

    def speed_MH(self) -> FloatArray:
        """Return the work that a second does."""
        return np.array([mode.terms.speed_H for mode in self.modes])

    def duration_s_MM(self) -> FloatArray:
        """Return how long the way from one mode (first) into another takes; on the diagonal the mode's changeover."""
        durations = np.tile([mode.terms.changeover_s for mode in self.modes], (len(self.modes), 1))
        for pair, move in self.moves.items():
            durations[pair] = move.duration_s
        return np.asarray(durations, dtype=np.float64)

    def cost_s_MM(self) -> FloatArray:
        """Return what the way from one mode (first) into another costs once."""
        costs = np.zeros((len(self.modes), len(self.modes)))
        for pair, move in self.moves.items():
            costs[pair] = move.cost_s
        return costs


def reshaped(terms: SpotTerms, *, speed_ratio: float, demand_ratio: float, spot_ratio: float) -> SpotTerms:
    """Return the terms of another place, node shape or size, as the run was planned for it: its speed and prices.

    Both are of the whole gang, against the plan's own.
    """
    return replace(
        terms,
        demand_ratio=demand_ratio,
        spot_ratio=spot_ratio,
        demand_speed_ratio=speed_ratio,
        spot_speed_ratio=speed_ratio,
    )


def seconds_of(usd: float, *, gang_usd_per_hour: float) -> float:
    """Return dollars in seconds of the plan's own on-demand capacity, as costs are counted here."""
    return usd / gang_usd_per_hour * HOUR_S
