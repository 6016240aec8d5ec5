"""On-demand capacity can be out of stock too: how often, for how long, and what a promise is then worth. Pure.

Stock comes and goes as a two-state Markov chain. What is held is kept: running out of stock takes nothing away, it only
refuses. So a run is late only if it needs on-demand capacity while there is none, for longer than it has time to spare.

A run that orders on-demand capacity while it still has a margin of ``k`` ticks to spare, and asks again at every tick,
is late with a probability of at most ``out_ratio * stays_out ** k``: there is none when it first asks, and none at any
later asking. Working on spot capacity meanwhile only helps. Assumed: stock does not know of this run, nor of the spot
pools, and outages are as long as they have been.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.forecast import AvailabilityTrace
from airflow_llmsched.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StockModel:
    """Rates at which stock runs out and comes back. ``ALWAYS`` never runs out."""

    out_per_hour: float
    back_per_hour: float

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for what has no meaning."""
        if not 0 <= self.out_per_hour < math.inf:
            raise SpecError(path="out_per_hour", value=self.out_per_hour, hint="must be 0 or more, and finite")
        if not 0 < self.back_per_hour < math.inf:
            raise SpecError(path="back_per_hour", value=self.back_per_hour, hint="must be above 0, and finite")

    @classmethod
    def of(cls, traces: Sequence[AvailabilityTrace]) -> StockModel:
        """Fit to traces of stock (``up`` is in stock), shrunk by half an event in an hour on each side.

        Raises:
            SpecError: there is nothing to see.
        """
        if not any(len(trace.up) > 1 for trace in traces):
            raise SpecError(path="traces", value=len(traces), hint="needs stock that was looked at more than once")
        seen_h, changes = [0.0, 0.0], [0.5, 0.5]
        for trace in traces:
            for was_there, is_there in zip(trace.up[:-1], trace.up[1:], strict=True):
                seen_h[int(was_there)] += trace.tick_s / HOUR_S
                changes[int(was_there)] += bool(was_there != is_there)
        return cls(out_per_hour=changes[1] / (seen_h[1] + 1), back_per_hour=changes[0] / (seen_h[0] + 1))

    @property
    def out_ratio(self) -> float:
        """Return the share of time that is out of stock."""
        return self.out_per_hour / (self.out_per_hour + self.back_per_hour)

    def out_probability(self, *, in_stock: bool | None, after_s: float) -> float:
        """Return the probability of being out of stock ``after_s`` from now; None: how it is now is not known."""
        if in_stock is None:
            return self.out_ratio
        fades = math.exp(-(self.out_per_hour + self.back_per_hour) * after_s / HOUR_S)
        return self.out_ratio * (1 - fades) if in_stock else self.out_ratio + (1 - self.out_ratio) * fades

    def margin_s(self, *, max_miss_ratio: float, tick_s: float) -> float:
        """Return the time to spare, in whole ticks, with which to order to be late no more often than that.

        Raises:
            SpecError: ``max_miss_ratio`` is no probability above 0.
        """
        if not 0 < max_miss_ratio <= 1:
            raise SpecError(path="max_miss_ratio", value=max_miss_ratio, hint="must be above 0 and at most 1")
        if self.out_ratio <= max_miss_ratio:
            return 0.0
        stays_out = self.out_probability(in_stock=False, after_s=tick_s)
        return math.ceil(math.log(max_miss_ratio / self.out_ratio) / math.log(stays_out) - 1e-9) * tick_s

    def miss_probability(
        self, *, slack_s: float, margin_s: float, tick_s: float, in_stock: bool | None = None
    ) -> float:
        """Return what may be stated of a run that has ``slack_s`` to spare now and orders at ``margin_s``.

        ``slack_s`` is the time left beyond the work, one changeover and one tick. What is in stock and due is taken at
        once, and then nothing can be missed.
        """
        until_order_s = slack_s - margin_s
        if until_order_s >= 0:
            at_first = self.out_probability(in_stock=in_stock, after_s=until_order_s)
            return at_first * self._none_in(margin_s, tick_s)
        if slack_s < -tick_s:
            return 1.0
        at_first = self.out_probability(in_stock=in_stock, after_s=0.0)
        return at_first * self._none_in(slack_s + tick_s, tick_s)

    def _none_in(self, spare_s: float, tick_s: float) -> float:
        """Return the probability that stock that is out is out at every tick of so much time, too."""
        return self.out_probability(in_stock=False, after_s=tick_s) ** math.floor(spare_s / tick_s + 1e-9)


ALWAYS = StockModel(out_per_hour=0.0, back_per_hour=1.0)
