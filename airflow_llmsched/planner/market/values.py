"""What it costs on average to finish from here: the table that the spot policy reads. Pure.

A stochastic dynamic programme over the time left, the work left, what is rented, and the age of the pool's present
spell, solved backwards for each class of pool (Bellman 1957). On-demand capacity is always there, so that the work can
always be done by it; what is left undone at the deadline costs :data:`LATE_COST_RATIO` per second.

Money is counted in seconds of on-demand capacity, work in seconds of computing. Axes: K = class of pools, F = age
phase, T = cells of time left, W = cells of work left, S = state (:class:`States`), N = run that is decided for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.market.forecast import PHASE_START_S, HazardModel, phase_length_s

LATE_COST_RATIO = 50.0
NUM_CELLS = 300
"""Cells of time until the deadline; work has cells of the same length."""

_NUM_PHASES = len(PHASE_START_S)
_Table = npt.NDArray[np.float32]


class States:
    """Where each block of age phases begins: what is rented, and whether spot capacity is up or down."""

    IDLE_UP = 0
    IDLE_DOWN = _NUM_PHASES
    SPOT = 2 * _NUM_PHASES
    ON_DEMAND_UP = 3 * _NUM_PHASES
    ON_DEMAND_DOWN = 4 * _NUM_PHASES
    NUM = 5 * _NUM_PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTerms:
    """What a run needs and what the market asks. Prices are over that of the plan's own on-demand capacity.

    ``changeover_s`` is how long starting on other capacity takes, paid and without progress. Speeds are work done per
    second, over that of the plan on its own nodes. ``base_ratio`` and ``base_speed_ratio`` are of what is kept where
    neither spot nor on-demand capacity is taken: nothing, but in a mix of both (see ``modes``).
    """

    time_s: float
    work_s: float
    changeover_s: float
    spot_ratio: float
    demand_ratio: float = 1.0
    base_ratio: float = 0.0
    spot_speed_ratio: float = 1.0
    demand_speed_ratio: float = 1.0
    base_speed_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for what has no meaning."""
        positive = ("time_s", "work_s", "spot_ratio", "demand_ratio", "spot_speed_ratio", "demand_speed_ratio")
        for name in positive:
            if not 0 < getattr(self, name) < np.inf:
                raise SpecError(path=name, value=getattr(self, name), hint="must be above 0, and finite")
        for name in ("changeover_s", "base_ratio", "base_speed_ratio"):
            if not 0 <= getattr(self, name) < np.inf:
                raise SpecError(path=name, value=getattr(self, name), hint="must not be negative, and finite")
        if self.base_speed_ratio and not self.base_ratio:
            raise SpecError(path="base_ratio", value=self.base_ratio, hint="must be above 0: what works is paid for")

    @property
    def price_H(self) -> tuple[float, float, float]:
        """Price while nothing more, spot and on-demand capacity is held."""
        return self.base_ratio, self.spot_ratio, self.demand_ratio

    @property
    def speed_H(self) -> tuple[float, float, float]:
        """Speed while nothing more, spot and on-demand capacity is held."""
        return self.base_speed_ratio, self.spot_speed_ratio, self.demand_speed_ratio


@dataclass(frozen=True, slots=True, eq=False)
class SpotValues:
    """Expected cost to go, ``cost_TSKW``. Build by :func:`solve`."""

    terms: SpotTerms
    cell_s: float
    cost_TSKW: _Table

    def at(self, state_N: IntArray, *, left_s: float, work_s_N: FloatArray) -> FloatArray:
        """Return the cost to go for each class, linear between cells of work (N, K).

        In the first cell it goes on as in the second, down to a start that is still to be paid: only what is done is
        free.
        """
        cell = int(np.clip(left_s / self.cell_s + 1e-9, 0, len(self.cost_TSKW) - 1))
        cost_SKW = self.cost_TSKW[cell]
        at_N = np.clip(work_s_N / self.cell_s, 0.0, cost_SKW.shape[-1] - 1.001)
        below_N = at_N.astype(np.int64)
        share_N1 = (at_N - below_N)[:, None]
        cost_NK = cost_SKW[state_N, :, below_N] * (1 - share_N1) + cost_SKW[state_N, :, below_N + 1] * share_N1
        one_NK, two_NK = cost_SKW[state_N, :, 1], cost_SKW[state_N, :, 2]
        is_last_N1 = ((at_N > 0) & (below_N == 0))[:, None]
        return np.asarray(
            np.where(is_last_N1, np.maximum(cost_NK, one_NK - (1 - share_N1) * (two_NK - one_NK)), cost_NK)
        )

    def at_all_times(self, work_s: float) -> FloatArray:
        """Return the cost to go by time left, a cell apart, and by state and class, for so much work (T, S, K)."""
        at = float(np.clip(work_s / self.cell_s, 0.0, self.cost_TSKW.shape[-1] - 1.001))
        below, share = int(at), at - int(at)
        return np.asarray(self.cost_TSKW[..., below] * (1 - share) + self.cost_TSKW[..., below + 1] * share)


def solve(model: HazardModel, terms: SpotTerms, *, longest_way_s: float = 0.0, least_gain_s: float = 0.0) -> SpotValues:
    """Fill the table backwards from the deadline.

    ``longest_way_s`` is the longest that it takes to get here from another mode: it is work that has yet to be done.
    ``least_gain_s`` is what leaving capacity must gain beside the changeover: it is counted as if it had to be paid.
    """
    cell_s = terms.time_s / NUM_CELLS
    step = _Step(model, terms, cell_s, least_gain_s)
    overhead_s = terms.changeover_s + max(terms.changeover_s, min(longest_way_s, terms.time_s))
    num_work_cells = int(np.ceil((terms.work_s + overhead_s * max(terms.speed_H)) / cell_s)) + 2
    cost = np.zeros((NUM_CELLS + 1, States.NUM, model.num_classes, num_work_cells), dtype=np.float32)
    cost[0] = LATE_COST_RATIO * cell_s * np.arange(num_work_cells)
    for cell in range(1, NUM_CELLS + 1):
        step.back(cost[cell - 1], out=cost[cell])
    return SpotValues(terms, cell_s, cost)


def advance_F(cell_s: float) -> FloatArray:
    """Return the probability that a spell moves to its next age phase within one cell."""
    return np.asarray(-np.expm1(-cell_s / phase_length_s()))


class _Step:
    """One cell of time, backwards."""

    def __init__(self, model: HazardModel, terms: SpotTerms, cell_s: float, least_gain_s: float) -> None:
        self._cell_s = cell_s
        self._least_gain_s = np.float32(least_gain_s)
        self._terms = terms
        self._lost_FK1 = -np.expm1(-model.loss_per_s_KF * cell_s).T[..., None].astype(np.float32)
        self._back_FK1 = -np.expm1(-model.return_per_s_KF * cell_s).T[..., None].astype(np.float32)
        self._advance_F11 = advance_F(cell_s)[:, None, None].astype(np.float32)
        self._changeover_cells = terms.changeover_s / cell_s

    def back(self, after: _Table, *, out: _Table) -> None:
        idle_up, idle_down = self._expected(after, up=States.IDLE_UP, down=States.IDLE_DOWN)
        demand_up, demand_down = self._expected(after, up=States.ON_DEMAND_UP, down=States.ON_DEMAND_DOWN)
        lost = self._shifted(after[States.IDLE_DOWN][None], self._changeover_cells * self._terms.base_speed_ratio)
        spot = self._older(_block(after, States.SPOT))
        spot = (1 - self._lost_FK1) * spot + self._lost_FK1 * lost
        base, on_spot, on_demand = zip(self._terms.price_H, self._terms.speed_H, strict=True)
        keep_up, take_up = self._kept(idle_up, *base), self._taken(idle_up, *base)
        keep_down, take_down = self._kept(idle_down, *base), self._taken(idle_down, *base)
        take_spot, take_demand_up = self._taken(spot, *on_spot), self._taken(demand_up, *on_demand)
        take_demand_down = self._taken(demand_down, *on_demand)
        _block(out, States.IDLE_UP)[:] = _least(keep_up, take_spot, take_demand_up)
        _block(out, States.IDLE_DOWN)[:] = _least(keep_down, take_demand_down)
        spot_left, demand_left = _least(take_up, take_demand_up), _least(take_spot, take_up)
        _block(out, States.SPOT)[:] = _least(self._kept(spot, *on_spot), self._least_gain_s + spot_left)
        _block(out, States.ON_DEMAND_UP)[:] = _least(
            self._kept(demand_up, *on_demand), self._least_gain_s + demand_left
        )
        _block(out, States.ON_DEMAND_DOWN)[:] = _least(
            self._kept(demand_down, *on_demand), self._least_gain_s + take_down
        )
        out[..., 0] = 0.0

    def _kept(self, after: _Table, price: float, speed: float) -> _Table:
        """Return the cost of holding on for one cell."""
        return np.asarray(price * self._cell_s + self._shifted(after, -speed))

    def _taken(self, after: _Table, price: float, speed: float) -> _Table:
        """Return the cost of taking it, for one cell: the changeover is work that has yet to be done."""
        return np.asarray(price * self._cell_s + self._shifted(after, speed * (self._changeover_cells - 1)))

    def _expected(self, after: _Table, *, up: int, down: int) -> tuple[_Table, _Table]:
        """Return the mean over what the pool does in this cell, from up and from down, while what is rented stays."""
        from_up = (1 - self._lost_FK1) * self._older(_block(after, up)) + self._lost_FK1 * after[down]
        from_down = (1 - self._back_FK1) * self._older(_block(after, down)) + self._back_FK1 * after[up]
        return from_up, from_down

    def _older(self, block_FKW: _Table) -> _Table:
        """Return the mean over whether the spell reaches its next phase."""
        older = np.concatenate([block_FKW[1:], block_FKW[-1:]])
        return np.asarray((1 - self._advance_F11) * block_FKW + self._advance_F11 * older)

    def _shifted(self, block_FKW: _Table, cells: float) -> _Table:
        """Return the block read ``cells`` of work higher. Below 0 nothing is left; beyond the end all is late."""
        whole = int(np.floor(cells))
        lower, upper = self._moved(block_FKW, whole), self._moved(block_FKW, whole + 1)
        share = np.float32(cells - whole)
        return np.asarray((1 - share) * lower + share * upper) if share > 1e-6 else lower

    def _moved(self, block_FKW: _Table, cells: int) -> _Table:
        if cells == 0:
            return block_FKW
        if cells < 0:
            return np.concatenate([np.zeros_like(block_FKW[..., :-cells]), block_FKW[..., :cells]], axis=-1)
        late = np.float32(LATE_COST_RATIO * self._cell_s) * np.arange(1, cells + 1, dtype=np.float32)
        return np.concatenate([block_FKW[..., cells:], block_FKW[..., -1:] + late], axis=-1)


def _block(table: _Table, start: int) -> _Table:
    return table[start : start + _NUM_PHASES]


def _least(first: _Table, *others: _Table) -> _Table:
    least = first
    for other in others:
        least = np.minimum(least, other)
    return least
