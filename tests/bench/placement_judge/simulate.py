"""Jobs that step side by side on one fabric: each computes, then communicates, one exchange after the other, and again.

Nothing overlaps within a job: what placement is worth is thereby an upper bound, and alike for all of them. Rates are
max-min fair at every moment (``fairness``); there is no latency, no loss and no time to get up to speed.

Axes: J = job, P = phase of its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.bench.placement_judge.exchanges import Load
from tests.bench.placement_judge.fairness import Crossings, fair_rates
from tests.bench.placement_judge.fleet import FloatArray, IntArray

NOTHING_LEFT = 1e-9
"""Of a phase, relative to its size: what rounding leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepping:
    """A job on its seats: seconds of computing in a step, then what it sends, in order."""

    compute_s: float
    loads: tuple[Load, ...]

    @property
    def alone_s(self) -> float:
        """Duration of a step that no link above an access switch slows."""
        return self.compute_s + sum(load.alone_s for load in self.loads)

    @property
    def shares_links(self) -> bool:
        """Whether others, or the fabric's oversubscription, can slow it."""
        return any(load.link_K.size for load in self.loads)


def step_s_J(
    jobs: Sequence[Stepping], capacity_K: FloatArray, *, seed: int, num_steps: int = 2, num_before: int = 1
) -> FloatArray:
    """Return each job's mean step time over ``num_steps`` steps of each, after ``num_before`` that are not counted.

    Jobs begin anywhere in their computing, drawn by ``seed``; who has done its steps goes on until all have.
    """
    alone_J = np.array([job.alone_s for job in jobs])
    sharing = [at for at, job in enumerate(jobs) if job.shares_links]
    if not sharing:
        return alone_J
    run = _Run(_phases([jobs[at] for at in sharing], capacity_K), capacity_K, np.random.default_rng(seed))
    while min(len(ends) for ends in run.step_ends) <= num_before + num_steps:
        run.advance()
    for at, ends in zip(sharing, run.step_ends, strict=True):
        alone_J[at] = (ends[num_before + num_steps] - ends[num_before]) / num_steps
    return alone_J


class _Run:
    """What changes as time goes on. ``step_ends`` of a job begins with the end of the step that it was in at first."""

    def __init__(self, phases: list[list[Load]], capacity_K: FloatArray, rng: np.random.Generator) -> None:
        self._phases = phases
        self._capacity_K = capacity_K
        self._phase_J = [0] * len(phases)
        self._size_J = np.array([of_job[0].num_bytes for of_job in phases])
        self._left_J = self._size_J * rng.random(len(phases))
        self._rate_J = np.zeros(len(phases))
        self._now_s = 0.0
        self._set_rates(range(len(phases)))
        self.step_ends: list[list[float]] = [[] for _ in phases]

    def advance(self) -> None:
        """Go on to the next end of a phase, or of several at once."""
        passing_s = float((self._left_J / self._rate_J).min())
        self._now_s += passing_s
        self._left_J -= self._rate_J * passing_s
        ended = []
        for job in np.flatnonzero(self._left_J <= NOTHING_LEFT * self._size_J).tolist():
            self._phase_J[job] += 1
            if self._phase_J[job] == len(self._phases[job]):
                self._phase_J[job] = 0
                self.step_ends[job].append(self._now_s)
            self._size_J[job] = self._left_J[job] = self._current(job).num_bytes
            ended.append(job)
        self._set_rates(ended)

    def _current(self, job: int) -> Load:
        return self._phases[job][self._phase_J[job]]

    def _set_rates(self, began: Sequence[int] | range) -> None:
        """Share the links anew among all who use some; the others go at their own pace."""
        for job in began:
            self._rate_J[job] = self._current(job).ceiling_bytes_per_s
        using = [job for job in range(len(self._phases)) if self._current(job).link_K.size]
        if not using:
            return
        loads = [self._current(job) for job in using]
        crossings = Crossings(
            bundle_E=np.repeat(np.arange(len(loads)), [load.link_K.size for load in loads]),
            link_E=np.concatenate([load.link_K for load in loads]),
            weight_E=np.concatenate([load.weight_K for load in loads]),
        )
        ceiling_B = np.array([load.ceiling_bytes_per_s for load in loads])
        self._rate_J[using] = fair_rates(crossings, self._capacity_K, ceiling_B)


def _phases(jobs: Sequence[Stepping], capacity_K: FloatArray) -> list[list[Load]]:
    """Return each job's step: computing as a phase of so many seconds at one a second, then what it sends.

    A link that one job alone crosses is its own, and part of its ceiling; what is then left without links nobody else
    can slow, and is joined to the computing.
    """
    num_jobs_K = np.zeros(len(capacity_K), dtype=np.int64)
    for job in jobs:
        num_jobs_K[np.unique(np.concatenate([load.link_K for load in job.loads]))] += 1
    nothing = np.zeros(0, dtype=np.int64)
    phases = []
    for job in jobs:
        loads = [_without_own(load, num_jobs_K, capacity_K) for load in job.loads]
        own_s = job.compute_s + sum(load.alone_s for load in loads if not load.link_K.size)
        compute = Load(num_bytes=own_s, ceiling_bytes_per_s=1.0, link_K=nothing, weight_K=np.zeros(0))
        phases.append([compute, *(load for load in loads if load.link_K.size)])
    return phases


def _without_own(load: Load, num_jobs_K: IntArray, capacity_K: FloatArray) -> Load:
    own = num_jobs_K[load.link_K] == 1
    alone = (capacity_K[load.link_K[own]] / load.weight_K[own]).min(initial=load.ceiling_bytes_per_s)
    return replace(load, ceiling_bytes_per_s=float(alone), link_K=load.link_K[~own], weight_K=load.weight_K[~own])
