"""What a pool's price will be, with a band, from what it was. Pure.

The last price is hard to beat (prices of spot capacity move rarely and stay where they went), so the forecast goes back
from it towards the long-run mean only where the history shows that prices do: log prices as a first-order
autoregression, with no pull at all unless the test of Dickey and Fuller (1979) sees one. The band is that of the errors
which the same forecast made in the past, so that it covers what it says without any law of errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import FloatArray

MIN_SAMPLES = 8
"""Fewer prices say nothing of what comes back: the last one is the forecast, and the band is all that was seen."""

_NO_PULL_T = -2.86
"""Critical value of the Dickey-Fuller test with a mean: 5% of prices that wander look as if they came back."""

_MAX_ERRORS = 2000
_MAX_TICKS_AHEAD = 10_000
_ROUNDING = 1e-9
"""A price that stays is inside of its band, whatever logs do to its last digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceForecast:
    """A price and the band that it stays in with the probability asked for, in dollars for a node and hour."""

    usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float


@dataclass(frozen=True, slots=True, eq=False)
class PriceModel:
    """Fitted to one pool's prices, one every ``tick_s`` seconds. Build by :meth:`of`.

    ``kept_ratio`` is the share of the distance from the mean that is left after one tick: 1 is the last price for ever.
    """

    tick_s: float
    log_usd_T: FloatArray
    mean_log_usd: float
    kept_ratio: float

    @classmethod
    def of(cls, usd_per_hour: Sequence[float] | FloatArray, *, tick_s: float) -> PriceModel:
        """Fit the pull towards the mean.

        Raises:
            SpecError: there is no price, or one that is not above 0.
        """
        prices_T = np.asarray(usd_per_hour, dtype=np.float64)
        if len(prices_T) == 0 or not (np.isfinite(prices_T) & (prices_T > 0)).all():
            raise SpecError(path="usd_per_hour", value=list(usd_per_hour)[:5], hint="needs prices, all above 0")
        if not tick_s > 0:
            raise SpecError(path="tick_s", value=tick_s, hint="must be above 0")
        log_T = np.log(prices_T)
        return cls(tick_s=tick_s, log_usd_T=log_T, mean_log_usd=float(log_T.mean()), kept_ratio=_kept_ratio(log_T))

    def forecast(self, *, after_s: float, coverage_ratio: float = 0.9) -> PriceForecast:
        """Return the price ``after_s`` seconds after the last one, and the band that covers ``coverage_ratio``."""
        num_ticks = max(1, round(after_s / self.tick_s))
        middle = float(self._ahead(self.log_usd_T[-1:], num_ticks)[0])
        below, above = self._errors(num_ticks, coverage_ratio)
        return PriceForecast(
            usd_per_hour=math.exp(middle),
            low_usd_per_hour=math.exp(middle + below),
            high_usd_per_hour=math.exp(middle + above),
        )

    def mean_usd_per_hour(self, *, over_s: float) -> float:
        """Return what the price is expected to be on average from the last one on, for ``over_s`` seconds.

        It is the mean over the path of the forecast itself, each price holding for its tick: without a pull, the last
        price.
        """
        last_log_usd = float(self.log_usd_T[-1])
        num_ticks = over_s / self.tick_s
        if self.kept_ratio == 1.0 or not num_ticks > 1:
            return math.exp(last_log_usd)
        tick_T = np.arange(min(math.ceil(num_ticks), _MAX_TICKS_AHEAD))
        usd_T = np.exp(self.mean_log_usd + self.kept_ratio**tick_T * (last_log_usd - self.mean_log_usd))
        held_T = np.clip(num_ticks - tick_T, 0.0, 1.0)
        return float(usd_T @ held_T / held_T.sum())

    def _ahead(self, log_usd_T: FloatArray, num_ticks: int) -> FloatArray:
        return np.asarray(log_usd_T + (1 - self.kept_ratio**num_ticks) * (self.mean_log_usd - log_usd_T))

    def _errors(self, num_ticks: int, coverage_ratio: float) -> tuple[float, float]:
        """Return the band's ends relative to the forecast, in logs: quantiles of past errors, with the edge's share.

        With ``n`` errors, the next lies between their ``k``-th smallest and largest with probability
        (n + 1 - 2 k) / (n + 1): the band takes the largest ``k`` that covers enough (split conformal prediction, Vovk
        et al. 2005, as if errors were exchangeable). Too few errors for that give all that was seen.
        """
        log_T = self.log_usd_T
        horizon = min(num_ticks, len(log_T) - 1)
        if len(log_T) < MIN_SAMPLES or len(log_T) - horizon < MIN_SAMPLES:
            spread = float(np.ptp(log_T)) + _ROUNDING
            return -spread, spread
        errors = np.sort((log_T[horizon:] - self._ahead(log_T[:-horizon], num_ticks))[-_MAX_ERRORS:])
        skip = max(0, math.floor((len(errors) + 1) * (1 - coverage_ratio) / 2) - 1)
        return min(-_ROUNDING, float(errors[skip])), max(_ROUNDING, float(errors[-1 - skip]))


def _kept_ratio(log_T: FloatArray) -> float:
    """Return the slope of a price's distance from the mean on the one before; 1 unless it is clearly below."""
    away_T = log_T - log_T.mean()
    variance = float(away_T.var())
    if len(log_T) < MIN_SAMPLES or variance < 1e-12:
        return 1.0
    before_T, after_T = away_T[:-1], away_T[1:]
    seen = float(before_T @ before_T)
    slope = float(before_T @ after_T) / seen
    rest_T = after_T - slope * before_T
    deviation = math.sqrt(float(rest_T @ rest_T) / (len(rest_T) - 2) / seen)
    if slope - 1 > _NO_PULL_T * deviation:
        return 1.0
    # Least squares takes what wanders for what comes back, by about (1 + 3 slope) / T (Kendall 1954): give that back.
    return float(np.clip(slope + (1 + 3 * slope) / len(log_T), 0.0, 1.0))
