"""What others do: on-demand only, spot whenever there is any, and Uniform Progress. Pure. Axes: see ``rental``."""

from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray
from airflow_llmsched.planner.market.rental import (
    Holding,
    RentalChoice,
    RentalView,
    first_up_pool_N,
)
from airflow_llmsched.planner.market.values import SpotTerms


class OnDemandOnly:
    """Never late, never cheap."""

    def begin(self, terms: SpotTerms, *, num_runs: int, num_pools: int) -> None:
        """Nothing to remember."""

    def choose(self, view: RentalView) -> RentalChoice:
        """Hold on-demand capacity."""
        return RentalChoice(holding_N=np.full(len(view.work_s_N), Holding.ON_DEMAND), pool_N=view.pool_N)


class GreedySpot:
    """Spot whenever a pool is up, nothing while none is, and on-demand capacity once time would run out otherwise."""

    def begin(self, terms: SpotTerms, *, num_runs: int, num_pools: int) -> None:  # noqa: ARG002  (the port's)
        """Start with every run at liberty."""
        self._changeover_s = terms.changeover_s
        self._safe_N: BoolArray = np.zeros(num_runs, dtype=np.bool_)

    def choose(self, view: RentalView) -> RentalChoice:
        """Follow the pools."""
        self._safe_N |= view.must_be_safe_N(self._changeover_s)
        taken_N = np.where(view.any_up_N, Holding.SPOT, Holding.NOTHING)
        return RentalChoice(holding_N=np.where(self._safe_N, Holding.ON_DEMAND, taken_N), pool_N=first_up_pool_N(view))


class UniformProgress:
    """Keep up with an even pace, take spot whenever it is there (Wu et al., Can't Be Late, NSDI 2024, section 4).

    Idle and behind the pace: on-demand, until it is ahead by what two changeovers take. Idle with less slack than two
    changeovers: on-demand to the end.
    """

    def begin(self, terms: SpotTerms, *, num_runs: int, num_pools: int) -> None:  # noqa: ARG002  (the port's)
        """Start with every run on pace."""
        self._terms = terms
        self._safe_N: BoolArray = np.zeros(num_runs, dtype=np.bool_)

    def choose(self, view: RentalView) -> RentalChoice:
        """Compare progress with the pace."""
        terms, now_s = self._terms, self._terms.time_s - view.left_s
        pace = terms.work_s / terms.time_s
        done_s_N = terms.work_s - view.work_s_N
        is_idle_N = view.holding_N != Holding.SPOT
        no_slack_N = is_idle_N & (view.left_s < view.work_s_N + 2 * terms.changeover_s + view.tick_s)
        self._safe_N |= no_slack_N | view.must_be_safe_N(terms.changeover_s)
        is_behind_N = done_s_N < now_s * pace
        catches_up_N = (view.holding_N == Holding.ON_DEMAND) & (done_s_N < (now_s + 2 * terms.changeover_s) * pace)
        taken_N = np.where(view.any_up_N, Holding.SPOT, np.where(is_behind_N, Holding.ON_DEMAND, Holding.NOTHING))
        taken_N = np.where(self._safe_N | catches_up_N, Holding.ON_DEMAND, taken_N)
        return RentalChoice(holding_N=taken_N, pool_N=first_up_pool_N(view))
