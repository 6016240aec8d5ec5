"""What it costs on average to finish from here: the table that the spot policy reads. Pure.

A stochastic dynamic programme over the time left, the work left, what is rented, and the age of the pool's present
spell, solved backwards for each class of pool (Bellman 1957). On-demand capacity is always there, so that the work can
always be done by it; what is left undone at the deadline costs :data:`LATE_COST_RATIO` per second.

Money is counted in seconds of on-demand capacity, work in seconds of computing. Axes: K = class of pools, F = age
phase, T = cells of time left, W = cells of work left, S = state (:class:`States`), N = run that is decided for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.market.forecast import PHASE_START_S, HazardModel, phase_length_s

LATE_COST_RATIO = 50.0
NUM_CELLS = 300
"""Cells of time until the deadline; work has cells of the same length."""

_NUM_PHASES = len(PHASE_START_S)
_NUM_BLOCKS = 5
_Table = npt.NDArray[np.float32]


class States:
    """Where each block of age phases begins: what is rented, and whether spot capacity is up or down."""

    IDLE_UP = 0
    IDLE_DOWN = _NUM_PHASES
    SPOT = 2 * _NUM_PHASES
    ON_DEMAND_UP = 3 * _NUM_PHASES
    ON_DEMAND_DOWN = 4 * _NUM_PHASES
    NUM = _NUM_BLOCKS * _NUM_PHASES


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
    overhead_s = terms.changeover_s + max(terms.changeover_s, min(longest_way_s, terms.time_s))
    num_work_cells = int(np.ceil((terms.work_s + overhead_s * max(terms.speed_H)) / cell_s)) + 2
    step = _Step(model, terms, cell_s, least_gain_s, num_work_cells=num_work_cells)
    cost = np.empty((NUM_CELLS + 1, States.NUM, model.num_classes, num_work_cells), dtype=np.float32)
    cost[0] = LATE_COST_RATIO * cell_s * np.arange(num_work_cells)
    for cell in range(1, NUM_CELLS + 1):
        step.back(cost[cell - 1], out=cost[cell])
    return SpotValues(terms, cell_s, cost)


def advance_F(cell_s: float) -> FloatArray:
    """Return the probability that a spell moves to its next age phase within one cell."""
    return np.asarray(-np.expm1(-cell_s / phase_length_s()))


class _Step:
    """One cell of time, backwards. All states at once and in arrays made once, as it is gone hundreds of times."""

    def __init__(
        self, model: HazardModel, terms: SpotTerms, cell_s: float, least_gain_s: float, *, num_work_cells: int
    ) -> None:
        shape_SKW = (States.NUM, model.num_classes, num_work_cells)
        late_cost = np.float32(LATE_COST_RATIO * cell_s)
        lost_FK1 = -np.expm1(-model.loss_per_s_KF * cell_s).T[..., None].astype(np.float32)
        back_FK1 = -np.expm1(-model.return_per_s_KF * cell_s).T[..., None].astype(np.float32)
        self._ends_SK1 = np.concatenate([lost_FK1, back_FK1, lost_FK1, lost_FK1, back_FK1])
        self._advance_F11 = advance_F(cell_s)[:, None, None].astype(np.float32)
        self._least_gain_s = np.float32(least_gain_s)
        self._price_S11 = (_by_state(terms.price_H) * cell_s).astype(np.float32)
        changeover_cells = terms.changeover_s / cell_s
        speed_S11 = _by_state(terms.speed_H)
        self._hold_on = _Shift(-speed_S11, shape_SKW, late_cost=late_cost)
        # the changeover is work that has yet to be done
        self._take = _Shift(speed_S11 * (changeover_cells - 1), shape_SKW, late_cost=late_cost)
        lost_cells = np.full((1, 1, 1), changeover_cells * terms.base_speed_ratio)
        self._lose = _Shift(lost_cells, (1, *shape_SKW[1:]), late_cost=late_cost)
        self._later_SKW, self._part_SKW = (np.empty(shape_SKW, dtype=np.float32) for _ in range(2))
        self._ended_B1KW = np.empty((_NUM_BLOCKS, 1, *shape_SKW[1:]), dtype=np.float32)  # B = block of age phases

    def back(self, after: _Table, *, out: _Table) -> None:
        later = self._later(after)
        keep, take = self._hold_on(later), self._take(later)
        keep += self._price_S11
        take += self._price_S11
        take_up, take_down, take_spot, demand_up, demand_down = _blocks(take)
        keep_up, keep_down, keep_spot, keep_demand_up, keep_demand_down = _blocks(keep)
        idle_up, idle_down, spot, on_demand_up, on_demand_down = _blocks(out)
        np.minimum(keep_up, take_spot, out=idle_up)
        np.minimum(idle_up, demand_up, out=idle_up)
        np.minimum(keep_down, demand_down, out=idle_down)
        left = self._part_SKW[:_NUM_PHASES]
        np.minimum(take_up, demand_up, out=left)
        left += self._least_gain_s
        np.minimum(keep_spot, left, out=spot)
        np.minimum(take_spot, take_up, out=left)
        left += self._least_gain_s
        np.minimum(keep_demand_up, left, out=on_demand_up)
        np.add(take_down, self._least_gain_s, out=left)
        np.minimum(keep_demand_down, left, out=on_demand_down)
        out[..., 0] = 0.0

    def _later(self, after: _Table) -> _Table:
        """Return the mean over what the pool does in this cell, while what is rented stays."""
        after_BFKW, later_BFKW, part_BFKW = map(_by_block, (after, self._later_SKW, self._part_SKW))
        advance = self._advance_F11
        np.multiply(after_BFKW, 1 - advance, out=later_BFKW)
        np.multiply(after_BFKW[:, 1:], advance[:-1], out=part_BFKW[:, :-1])
        np.multiply(after_BFKW[:, -1], advance[-1], out=part_BFKW[:, -1])
        later_BFKW += part_BFKW
        ended = self._ended_B1KW
        ended[0], ended[1] = after[States.IDLE_DOWN], after[States.IDLE_UP]
        ended[2] = self._lose(after[States.IDLE_DOWN][None])
        ended[3], ended[4] = after[States.ON_DEMAND_DOWN], after[States.ON_DEMAND_UP]
        self._later_SKW *= 1 - self._ends_SK1
        np.multiply(_by_block(self._ends_SK1), ended, out=part_BFKW)
        later_BFKW += part_BFKW
        return self._later_SKW


class _Shift:
    """Reads a table some cells of work higher, ``cells_S11`` by state. What it returns holds until it is called again.

    Below 0 nothing is left; beyond the end all is late.
    """

    def __init__(self, cells_S11: FloatArray, shape_SKW: tuple[int, int, int], *, late_cost: np.float32) -> None:
        whole_S11 = np.floor(cells_S11)
        share_S11 = (cells_S11 - whole_S11).astype(np.float32)
        share_S11[share_S11 <= 1e-6] = 0.0
        self._share_S11, self._rest_S11 = share_S11, 1 - share_S11
        whole_S = whole_S11[:, 0, 0].astype(np.int64)
        ends = [0, *(np.flatnonzero(np.diff(whole_S)) + 1), len(whole_S)]
        self._alike = [(slice(start, end), int(whole_S[start])) for start, end in pairwise(ends)]
        num_late = max(0, int(whole_S.max()) + 1)
        self._late = late_cost * np.arange(1, num_late + 1, dtype=np.float32)
        # One cell more than the table has: between it and the next lower one the last is read.
        self._moved_SKW = np.zeros((*shape_SKW[:2], shape_SKW[2] + 1), dtype=np.float32)
        self._read_SKW, self._part_SKW = (np.empty(shape_SKW, dtype=np.float32) for _ in range(2))

    def __call__(self, table_SKW: _Table) -> _Table:
        moved, num_cells = self._moved_SKW, table_SKW.shape[-1]
        for states, whole in self._alike:
            if whole < 0:
                moved[states, :, -whole:] = table_SKW[states, :, : num_cells + 1 + whole]
            else:
                moved[states, :, : num_cells - whole] = table_SKW[states, :, whole:]
                np.add(table_SKW[states, :, -1:], self._late[: whole + 1], out=moved[states, :, num_cells - whole :])
        np.multiply(moved[..., :-1], self._rest_S11, out=self._read_SKW)
        np.multiply(moved[..., 1:], self._share_S11, out=self._part_SKW)
        self._read_SKW += self._part_SKW
        return self._read_SKW


def _by_state(value_H: tuple[float, float, float]) -> FloatArray:
    """Return what holds while nothing more, spot and on-demand capacity is held, by state (S, 1, 1)."""
    base, spot, demand = value_H
    return np.repeat([base, base, spot, demand, demand], _NUM_PHASES)[:, None, None]


def _by_block(table: _Table) -> _Table:
    return table.reshape(_NUM_BLOCKS, _NUM_PHASES, *table.shape[1:])


def _blocks(table: _Table) -> tuple[_Table, ...]:
    return tuple(_by_block(table))
