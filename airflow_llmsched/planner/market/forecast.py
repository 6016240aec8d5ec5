"""How long spot capacity stays and how long it stays away, and what one pool's past says about its next hours.

Proportional hazards (Cox 1972) with a piecewise-constant baseline: all pools share how the hazard falls with age (what
has lasted five hours is worth more than what has just come), and each has two factors of its own, one for losing
capacity and one for getting it back. A new pool starts from what other pools were like, and what it shows moves it
away from there as fast as it shows it (Bayes' rule over ``K`` classes; a pool drifts between them). Where traces say
when they were taken, both hazards also change with the hour of the day, as far as days agree on it (see ``hours``).

A gang needs all its nodes, so a pool is up when it can serve the whole gang. A trace says for how many nodes it was
watched, and ``gang_hazards`` what that means for another count, under which assumption. Pure.

Axes: K = class of pools, F = age phase, N = run that is decided for (all at once in a replay, one in production).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market.hours import NUM_FOLDS, NUM_HOURS, HourEffect, fit_effect, fold_of, hour_of
from airflow_llmsched.units import DAY_S, HOUR_S, MINUTE_S

PHASE_START_S = (0.0, 12 * MINUTE_S, 30 * MINUTE_S, HOUR_S, 2 * HOUR_S, 5 * HOUR_S)
"""Where the hazard's baseline steps. Most spells of spot capacity end within their first hour."""

DRIFT_PER_HOUR = 0.01
"""How fast what a pool showed grows stale: the share of belief that goes back to the prior each hour."""

WINDOW_S = 30 * HOUR_S
"""A pool's factors are fitted on windows of this length, because they change from day to day."""

NUM_FACTORS = 4
"""Levels of each factor; their product is the number of classes."""

_UNKNOWN_AGE_S = HOUR_S
_PSEUDO_EVENTS = 0.1
_SHRINKAGE_EVENTS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class AvailabilityTrace:
    """Whether a pool had room for ``num_nodes`` together, once every ``tick_s`` seconds, first at ``start_s``.

    ``start_s`` is in Unix seconds; None: not known, and the trace then says nothing about hours of the day.
    """

    tick_s: float
    up: BoolArray
    start_s: float | None = None
    num_nodes: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class HazardModel:
    """Rates per second at which capacity goes (``loss``) and comes back (``return``), by class and age phase.

    They are the day's mean; ``loss_hours`` and ``return_hours`` say how each hour differs. ``num_nodes`` is how many
    nodes must be there together for a pool to be up.
    """

    loss_per_s_KF: FloatArray
    return_per_s_KF: FloatArray
    prior_K: FloatArray
    loss_hours: HourEffect = field(default_factory=HourEffect)
    return_hours: HourEffect = field(default_factory=HourEffect)
    num_nodes: int = 1

    @property
    def num_classes(self) -> int:
        """How many kinds of pool it tells apart."""
        return len(self.prior_K)

    def availability_K(self) -> FloatArray:
        """Return the share of time that pools of each class are up."""
        up_s = mean_spell_s(self.loss_per_s_KF)
        down_s = mean_spell_s(self.return_per_s_KF)
        return np.asarray(up_s / (up_s + down_s))

    def mean_loss_per_hour(self) -> float:
        """Return how often capacity that is there goes, over what pools are like and how long they are up."""
        up_s, share_K = mean_spell_s(self.loss_per_s_KF), self.prior_K * self.availability_K()
        return float(HOUR_S * (share_K / up_s).sum() / share_K.sum())


NO_SPOT = HazardModel(
    loss_per_s_KF=np.full((1, len(PHASE_START_S)), 1.0 / HOUR_S),
    return_per_s_KF=np.full((1, len(PHASE_START_S)), 1e-15),
    prior_K=np.ones(1),
)
"""What there is none of: capacity that is down and does not come back."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolBelief:
    """What is thought of one pool after what it has shown: probability of each class, and the spell it is in."""

    weight_NK: FloatArray
    up_N: BoolArray
    age_s_N: FloatArray

    def phase_N(self) -> IntArray:
        """Return the age phase of the present spell."""
        return phase_of(self.age_s_N)


def fit(traces: Sequence[AvailabilityTrace], *, num_factors: int = NUM_FACTORS) -> HazardModel:
    """Fit the shared shape and the spread of the pools' factors.

    Raises:
        SpecError: there is no trace, or none that changes at all, or they are of different counts of nodes.
    """
    counts = sorted({trace.num_nodes for trace in traces})
    if len(counts) > 1:
        raise SpecError(path="traces", value=counts, hint="must all be of the same num_nodes: one hazard is fitted")
    if not traces or all(trace.up.all() or not trace.up.any() for trace in traces):
        raise SpecError(path="traces", value=len(traces), hint="needs availability that comes and goes at least once")
    events_UF, exposure_s_UF = _sum_exposures(traces)
    shape_UF = (events_UF + _PSEUDO_EVENTS) / (exposure_s_UF + _PSEUDO_EVENTS * HOUR_S)
    factors = np.log([factor for trace in traces for factor in _window_factors(trace, shape_UF)])
    levels = (np.arange(num_factors) + 0.5) / num_factors
    losses, returns = np.quantile(factors[:, 0], levels), np.quantile(factors[:, 1], levels)
    count = np.full((num_factors, num_factors), 0.5)  # no class is thought impossible
    for loss, back in factors:
        count[np.abs(losses - loss).argmin(), np.abs(returns - back).argmin()] += 1
    loss_K, return_K = (each.ravel() for each in np.meshgrid(np.exp(losses), np.exp(returns), indexing="ij"))
    return HazardModel(
        loss_per_s_KF=loss_K[:, None] * shape_UF[1],
        return_per_s_KF=return_K[:, None] * shape_UF[0],
        prior_K=(count / count.sum()).ravel(),
        loss_hours=_hour_effect(traces, shape_UF, state=1),
        return_hours=_hour_effect(traces, shape_UF, state=0),
        num_nodes=counts[0],
    )


def first_belief(model: HazardModel, up_N: BoolArray) -> PoolBelief:
    """Return what is thought of pools that are seen for the first time. How long they have been so is not known."""
    availability_K = model.availability_K()
    seen_NK = np.where(up_N[:, None], availability_K, 1 - availability_K)
    weight_NK = model.prior_K * seen_NK
    return PoolBelief(
        weight_NK=weight_NK / weight_NK.sum(axis=1, keepdims=True),
        up_N=up_N.copy(),
        age_s_N=np.full(len(up_N), _UNKNOWN_AGE_S),
    )


def observe(
    model: HazardModel, belief: PoolBelief, up_N: BoolArray, *, after_s: float, at_s_N: FloatArray | None = None
) -> PoolBelief:
    """Return the belief after the pools were seen again ``after_s`` seconds later, at ``at_s_N`` (Unix seconds)."""
    changed_N = up_N != belief.up_N
    between_s_N = None if at_s_N is None else at_s_N - after_s / 2
    passed_NK = hazard_NK(model, belief, at_s_N=between_s_N) * after_s
    log_NK = np.where(
        changed_N[:, None], np.log(-np.expm1(-passed_NK)), -passed_NK
    )  # after a long silence all are tiny
    weight_NK = belief.weight_NK * np.exp(log_NK - log_NK.max(axis=1, keepdims=True))
    weight_NK /= weight_NK.sum(axis=1, keepdims=True)
    drift = -np.expm1(-DRIFT_PER_HOUR * after_s / HOUR_S)
    return PoolBelief(
        weight_NK=(1 - drift) * weight_NK + drift * model.prior_K,
        up_N=up_N.copy(),
        age_s_N=np.where(changed_N, 0.0, belief.age_s_N + after_s),
    )


def hazard_NK(model: HazardModel, belief: PoolBelief, *, at_s_N: FloatArray | None = None) -> FloatArray:
    """Return the rate per second at which the present spell ends, for each class; the day's mean without a time."""
    phase_N = belief.phase_N()
    loss_NK, return_NK = model.loss_per_s_KF[:, phase_N].T, model.return_per_s_KF[:, phase_N].T
    return np.where(belief.up_N[:, None], loss_NK, return_NK) * _hour_factor_N(model, belief, at_s_N)[:, None]


def change_probability(
    model: HazardModel, belief: PoolBelief, *, within_s: float, at_s_N: FloatArray | None = None
) -> FloatArray:
    """Return the probability that the present spell ends within ``within_s`` seconds, as the pool ages meanwhile (N,).

    For a pool that is up this is the probability of an interruption. ``at_s_N`` is now, in Unix seconds.
    """
    table_KF = np.where(belief.up_N[:, None, None], model.loss_per_s_KF, model.return_per_s_KF)
    ends_s = np.append(PHASE_START_S[1:], np.inf)
    starts_s = np.asarray(PHASE_START_S)
    num_slices = 1 if at_s_N is None else max(1, math.ceil(within_s / HOUR_S))
    slice_s, cumulative_NK = within_s / num_slices, np.zeros_like(belief.weight_NK)
    for number in range(num_slices):
        age_s_N1 = (belief.age_s_N + number * slice_s)[:, None]
        overlap_s_NF = np.clip(np.minimum(ends_s, age_s_N1 + slice_s) - np.maximum(starts_s, age_s_N1), 0.0, None)
        middle_s_N = None if at_s_N is None else at_s_N + (number + 0.5) * slice_s
        factor_N1 = _hour_factor_N(model, belief, middle_s_N)[:, None]
        cumulative_NK += factor_N1 * np.einsum("nkf,nf->nk", table_KF, overlap_s_NF)
    return np.asarray((belief.weight_NK * -np.expm1(-cumulative_NK)).sum(axis=1))


def phase_of(age_s: FloatArray) -> IntArray:
    """Return the age phase that ages in seconds fall into."""
    return np.asarray(np.searchsorted(PHASE_START_S, age_s, side="right") - 1)


def phase_length_s() -> FloatArray:
    """Return how long each phase lasts; the last has no end (F,)."""
    return np.append(np.diff(PHASE_START_S), np.inf)


def mean_spell_s(hazard_per_s_KF: FloatArray) -> FloatArray:
    """Return the mean length of a spell with these hazards (K,)."""
    return np.asarray(phase_occupancy_s(hazard_per_s_KF).sum(axis=1))


def phase_occupancy_s(hazard_per_s_KF: FloatArray) -> FloatArray:
    """Return the mean time that a spell spends in each phase (K, F)."""
    lasting_KF = np.exp(-hazard_per_s_KF * phase_length_s())
    reached_KF = np.cumprod(np.concatenate([np.ones_like(lasting_KF[:, :1]), lasting_KF[:, :-1]], axis=1), axis=1)
    return np.asarray(reached_KF * (1 - lasting_KF) / hazard_per_s_KF)


def _sum_exposures(traces: Sequence[AvailabilityTrace]) -> tuple[FloatArray, FloatArray]:
    parts = [_exposure(trace) for trace in traces]
    return np.sum([events for events, _ in parts], axis=0), np.sum([exposure for _, exposure in parts], axis=0)


def _hour_factor_N(model: HazardModel, belief: PoolBelief, at_s_N: FloatArray | None) -> FloatArray:
    if at_s_N is None:
        return np.ones(len(belief.up_N))
    return np.where(belief.up_N, model.loss_hours.factor_N(at_s_N), model.return_hours.factor_N(at_s_N))


def _hour_effect(traces: Sequence[AvailabilityTrace], shape_UF: FloatArray, *, state: int) -> HourEffect:
    """Return how the end of spells in ``state`` depends on the hour, over all traces that say when they were taken.

    Each day of each trace has a level of its own, so that restless days in some hours more than in others do not count.
    """
    observed_DH, expected_DH = np.zeros((2, NUM_FOLDS, NUM_HOURS))
    for trace in traces:
        if trace.start_s is None or len(trace.up) < 2:
            continue
        at_s_T = np.asarray(trace.start_s + (np.arange(len(trace.up) - 1) + 0.5) * trace.tick_s, dtype=np.float64)
        phase_T, is_T = phase_of(_age_s_T(trace))[:-1], trace.up[:-1] == bool(state)
        ended_T = (is_T & (trace.up[1:] != trace.up[:-1])).astype(np.float64)
        expected_T = is_T * shape_UF[state, phase_T] * trace.tick_s
        day_T = np.unique(at_s_T // DAY_S, return_inverse=True)[1]
        level_D = (np.bincount(day_T, ended_T) + _SHRINKAGE_EVENTS) / (
            np.bincount(day_T, expected_T) + _SHRINKAGE_EVENTS
        )
        cell_T = fold_of(at_s_T), hour_of(at_s_T)
        np.add.at(observed_DH, cell_T, ended_T)
        np.add.at(expected_DH, cell_T, expected_T * level_D[day_T])
    return fit_effect(observed_DH, expected_DH)


def _age_s_T(trace: AvailabilityTrace) -> FloatArray:
    """Return how long each sample's spell has lasted by the middle of its tick."""
    changes = np.flatnonzero(trace.up[1:] != trace.up[:-1]) + 1
    starts = np.repeat([0, *changes], np.diff([0, *changes, len(trace.up)]))
    return np.asarray((np.arange(len(trace.up)) - starts + 0.5) * trace.tick_s)


def _exposure(trace: AvailabilityTrace) -> tuple[FloatArray, FloatArray]:
    """Return spells that ended and seconds at risk, by state (0 down, 1 up) and age phase. The last one is censored."""
    changes = np.flatnonzero(trace.up[1:] != trace.up[:-1]) + 1
    phase_T = phase_of(_age_s_T(trace))
    state_T = trace.up.astype(np.int64)
    events, exposure_s = np.zeros((2, len(PHASE_START_S))), np.zeros((2, len(PHASE_START_S)))
    np.add.at(exposure_s, (state_T, phase_T), trace.tick_s)
    np.add.at(events, (state_T[changes - 1], phase_T[changes - 1]), 1.0)
    return events, exposure_s


def _window_factors(trace: AvailabilityTrace, shape_UF: FloatArray) -> list[tuple[float, float]]:
    """Return (loss, return) factors of overlapping windows, shrunk towards 1 by one pseudo-event each."""
    length = max(1, int(WINDOW_S / trace.tick_s))
    factors = []
    for start in range(0, max(1, len(trace.up) - length + 1), max(1, length // 2)):
        window = AvailabilityTrace(trace.tick_s, trace.up[start : start + length])
        events_UF, exposure_s_UF = _exposure(window)
        seen_U = events_UF.sum(axis=1) + _SHRINKAGE_EVENTS
        factor_U = seen_U / ((exposure_s_UF * shape_UF).sum(axis=1) + _SHRINKAGE_EVENTS)
        factors.append((float(factor_U[1]), float(factor_U[0])))
    return factors
