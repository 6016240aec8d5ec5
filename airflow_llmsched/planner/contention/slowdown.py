"""How much longer a gang's step takes because others use its links. Pure.

Gangs step at paces of their own, so that who sends when is taken to be independent: on each link a gang finds each
other gang sending for that one's share of the time, and those who send at once share the link fairly (max-min). A gang
waits for its slowest link. Steps that take longer are busy longer, so that the answer is a fixed point. Traffic that
computing hides counts as though nothing hid it: what is said is the most that sharing can cost.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.contention.loads import GangLoad, LinkId

MAX_ENUMERATED = 8
"""Other gangs on one link whose every combination is looked at; of more, how many send at once, at their mean rate."""

_ROUNDS = 200
_CLOSE_RATIO = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """What sharing costs one gang: ``step_s`` instead of ``alone_s``, on which link, and by whom (most first)."""

    name: str
    alone_s: float
    step_s: float
    link: LinkId | None
    culprits: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """How many times as long a step takes: 1.07 is 7% more."""
        return self.step_s / self.alone_s


def fair_rate(own: float, others: Sequence[float], capacity: float) -> float:
    """Return what one of several senders gets of a link, who would send at these rates alone (max-min fair)."""
    left, num = capacity, len(others) + 1
    for wanted in sorted(others):
        if wanted >= left / num or own <= left / num:
            break
        left -= wanted
        num -= 1
    return min(own, left / num)


def slowdowns(gangs: Sequence[GangLoad], capacity_bytes_per_s: Mapping[LinkId, float]) -> tuple[Slowdown, ...]:
    """Return what each gang's step becomes beside the others, in their order.

    Raises:
        KeyError: a link that gangs share has no capacity stated.
    """
    users: dict[LinkId, list[int]] = defaultdict(list)
    for index, gang in enumerate(gangs):
        for link in gang.uses:
            users[link].append(index)
    shared = {link: using for link, using in users.items() if len(using) > 1}
    extra_s = [dict.fromkeys(shared, 0.0) for _ in gangs]
    step_s = [gang.step_s for gang in gangs]
    for _ in range(_ROUNDS):
        duty = [
            {link: _duty(gang, link, extra_s[index][link], step_s[index]) for link in gang.uses if link in shared}
            for index, gang in enumerate(gangs)
        ]
        for link, using in shared.items():
            for index in using:
                others = [(gangs[other].uses[link].alone_bytes_per_s, duty[other][link]) for other in using]
                del others[using.index(index)]
                factor = _longer(gangs[index].uses[link].alone_bytes_per_s, others, capacity_bytes_per_s[link])
                extra_s[index][link] = gangs[index].uses[link].active_s * (factor - 1)
        before, step_s = step_s, [gang.step_s + max(extra_s[i].values(), default=0.0) for i, gang in enumerate(gangs)]
        if all(abs(new - old) <= _CLOSE_RATIO * old for new, old in zip(step_s, before, strict=True)):
            break
    return tuple(_told(index, gangs, step_s[index], extra_s[index], shared) for index in range(len(gangs)))


def _duty(gang: GangLoad, link: LinkId, extra_s: float, step_s: float) -> float:
    return min(1.0, (gang.uses[link].active_s + extra_s) / step_s)


def _longer(own: float, others: Sequence[tuple[float, float]], capacity: float) -> float:
    """Return how many times as long sending takes, given others' rates and the shares of time that they send."""
    senders = _each_case(others) if len(others) <= MAX_ENUMERATED else _by_number(others)
    expected = sum(chance * fair_rate(own, rates, capacity) for chance, rates in senders)
    return own / expected


def _each_case(others: Sequence[tuple[float, float]]) -> Iterator[tuple[float, Sequence[float]]]:
    """Yield every combination of others that send at once, with its chance."""
    for sends in itertools.product((False, True), repeat=len(others)):
        chance = math.prod(duty if sending else 1 - duty for (_, duty), sending in zip(others, sends, strict=True))
        if chance > 0:
            yield chance, [rate for (rate, _), sending in zip(others, sends, strict=True) if sending]


def _by_number(others: Sequence[tuple[float, float]]) -> Iterator[tuple[float, Sequence[float]]]:
    """Yield how many others send at once, with its chance (Poisson binomial), each at the mean rate of who sends."""
    chance_K = np.ones(1)
    for _, duty in others:
        chance_K = np.convolve(chance_K, [1 - duty, duty])
    mean = sum(rate * duty for rate, duty in others) / sum(duty for _, duty in others)
    for number, chance in enumerate(chance_K.tolist()):
        if chance > 0:
            yield chance, [mean] * number


def _told(
    index: int,
    gangs: Sequence[GangLoad],
    step_s: float,
    extra_s: Mapping[LinkId, float],
    shared: Mapping[LinkId, list[int]],
) -> Slowdown:
    gang = gangs[index]
    link = max(extra_s, key=lambda each: extra_s[each], default=None)
    if link is None or extra_s[link] <= 0:
        return Slowdown(name=gang.name, alone_s=gang.step_s, step_s=step_s, link=None)
    others = [gangs[other] for other in shared[link] if other != index]
    others.sort(key=lambda other: (-other.uses[link].bytes_per_step / other.step_s, other.name))
    names = tuple(each.name for each in others)
    return Slowdown(name=gang.name, alone_s=gang.step_s, step_s=step_s, link=link, culprits=names)
