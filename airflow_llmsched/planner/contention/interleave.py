"""When gangs should begin their steps so that they send one after the other. Pure.

Rajasekaran et al. (NSDI 2024, CASSINI): gangs whose steps take the same time, or a few times another's, keep the order
in which they send; then offsets exist for which their sending overlaps least. Time goes round a circle: the shortest
time after which all begin again together. Where there is none within ``MAX_TURNS`` steps, no offset lasts.
Axis: T = moment of the circle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from airflow_llmsched.planner.contention.loads import GangLoad, LinkId
from airflow_llmsched.planner.layout_table import FloatArray

MAX_TURNS = 8
"""Steps of a gang on the circle, at most."""

DRIFT_RATIO = 0.01
"""How far step times may be from a ratio of small numbers: a gang that waits this long for its turn keeps in step."""

MOMENTS = 120
"""Moments of the circle that are looked at."""

EXHAUSTIVE = 2
"""Gangs besides the first of which all combinations of offsets are tried; more are moved one at a time, in rounds."""

_ROUNDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Seconds after the first gang at which each begins its steps, and the worst overload of any link.

    ``peak_ratio`` is demand over capacity at the worst moment; ``excess_ratio`` the bytes above capacity as a share of
    all bytes, on the link where it is highest; both also for gangs that all begin together.
    """

    offset_s: Mapping[str, float]
    peak_ratio: float
    excess_ratio: float
    together_peak_ratio: float
    together_excess_ratio: float


def interleave(gangs: Sequence[GangLoad], capacity_bytes_per_s: Mapping[LinkId, float]) -> Offsets | None:
    """Return the offsets that overload shared links least; None where step times have no circle, or nothing is shared.

    A gang sends at the end of its step. Deterministic.

    Raises:
        KeyError: a link that gangs share has no capacity stated.
    """
    turns = _turns([gang.step_s for gang in gangs])
    links = [link for link in sorted({link for gang in gangs for link in gang.uses}) if _num_users(gangs, link) > 1]
    if turns is None or not links:
        return None
    demand = [_demands(gang, num, links, capacity_bytes_per_s) for gang, num in zip(gangs, turns, strict=True)]
    chosen = _search(demand, turns)
    apart, together = _overload(demand, chosen), _overload(demand, [0] * len(gangs))
    circle_s = gangs[0].step_s * turns[0]
    return Offsets(
        offset_s={gang.name: shift * circle_s / MOMENTS for gang, shift in zip(gangs, chosen, strict=True)},
        peak_ratio=apart[1],
        excess_ratio=apart[0],
        together_peak_ratio=together[1],
        together_excess_ratio=together[0],
    )


def _num_users(gangs: Sequence[GangLoad], link: LinkId) -> int:
    return sum(link in gang.uses for gang in gangs)


def _turns(steps_s: Sequence[float]) -> list[int] | None:
    """Return how many steps each gang makes on the circle."""
    ratios = [Fraction(each / steps_s[0]).limit_denominator(MAX_TURNS) for each in steps_s]
    for ratio, each in zip(ratios, steps_s, strict=True):
        if not ratio or abs(float(ratio) * steps_s[0] / each - 1) > DRIFT_RATIO:
            return None
    # The circle is the least time that is a whole number of steps of each: ratio is this step over the first.
    whole = lcm(*(ratio.numerator for ratio in ratios))
    turns = [whole * ratio.denominator // ratio.numerator for ratio in ratios]
    common = np.gcd.reduce(turns)
    turns = [int(each // common) for each in turns]
    return turns if max(turns) <= MAX_TURNS else None


def _demands(
    gang: GangLoad, turns: int, links: Sequence[LinkId], capacity_bytes_per_s: Mapping[LinkId, float]
) -> FloatArray:
    """Return what a gang asks of each link over the circle, as a share of its capacity (axes: link, T)."""
    phase_T = np.arange(MOMENTS) * turns / MOMENTS % 1.0
    rows = []
    for link in links:
        if link in gang.uses:
            sends_T = phase_T >= 1 - gang.duty_ratio(link) - 1e-9
            rows.append(sends_T * gang.uses[link].alone_bytes_per_s / capacity_bytes_per_s[link])
        else:
            rows.append(np.zeros(MOMENTS))
    return np.array(rows)


def _overload(demand: Sequence[FloatArray], shifts: Sequence[int]) -> tuple[float, float]:
    total = sum(np.roll(each, shift, axis=1) for each, shift in zip(demand, shifts, strict=True))
    excess = np.maximum(total - 1, 0).sum(axis=1) / np.maximum(
        np.sum([each.sum(axis=1) for each in demand], axis=0), 1e-12
    )
    return float(excess.max()), float(np.max(total))


def _search(demand: Sequence[FloatArray], turns: Sequence[int]) -> list[int]:
    """Shift gangs after the first; each only within one of its own steps, as others look the same again."""
    ways = [range(MOMENTS // num) for num in turns]
    if len(demand) - 1 <= EXHAUSTIVE and np.prod([len(way) for way in ways[1:]]) <= MOMENTS**2:
        found = min(itertools.product([0], *ways[1:]), key=lambda shifts: (_overload(demand, shifts), shifts))
        return list(found)
    shifts = [0] * len(demand)
    for _ in range(_ROUNDS):
        before = list(shifts)
        for index in range(1, len(demand)):
            shifts[index] = min(
                ways[index],
                key=lambda shift: (_overload(demand, [*shifts[:index], shift, *shifts[index + 1 :]]), shift),
            )
        if shifts == before:
            break
    return shifts
