"""How far traffic beside the training may go before collectives suffer, and how much of the harm a limit takes away.

Staging and saving share links with collectives. In one traffic class they share fairly; in a lower one they get what
collectives leave; under a limit they never ask for more. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.planner.contention.loads import GangLoad, LinkId
from airflow_llmsched.planner.contention.slowdown import fair_rate

RECOVERED_RATIO = 0.8
"""Share of the harm that a limit is to take away. Less would be too little, all would leave nothing for the traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """Traffic over one link that is not the training's: it would go at ``bytes_per_s``, for ``duty_ratio`` of the time.

    ``is_lower_class``: the network serves collectives first.
    """

    bytes_per_s: float
    duty_ratio: float = 1.0
    is_lower_class: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """A limit on background traffic: the gang's step without either, with the traffic as it is, and with the limit."""

    limit_bytes_per_s: float
    alone_s: float
    unprotected_s: float
    protected_s: float

    @property
    def recovered_ratio(self) -> float:
        """Share of the slowdown that the limit takes away; 1 where there is none."""
        lost_s = self.unprotected_s - self.alone_s
        return 1.0 if lost_s <= 0 else (self.unprotected_s - self.protected_s) / lost_s


def step_beside_s(gang: GangLoad, link: LinkId, background: Background, *, capacity_bytes_per_s: float) -> float:
    """Return seconds of a step beside background traffic on one of the gang's links."""
    use = gang.uses[link]
    if background.is_lower_class:
        return gang.step_s
    beside = fair_rate(use.alone_bytes_per_s, [background.bytes_per_s], capacity_bytes_per_s)
    duty = background.duty_ratio
    mean = duty * beside + (1 - duty) * use.alone_bytes_per_s
    return gang.step_s + use.active_s * (use.alone_bytes_per_s / mean - 1)


def protect(
    gang: GangLoad,
    link: LinkId,
    background: Background,
    *,
    capacity_bytes_per_s: float,
    needed_bytes_per_s: float = 0.0,
) -> Protection:
    """Return the largest limit that takes away ``RECOVERED_RATIO`` of the harm, but no less than is needed.

    Where there is none, or where slower traffic that goes on for longer harms more, the traffic is not limited.

    ``needed_bytes_per_s`` is the mean rate at which staging or saving is done in time; traffic that is slowed goes on
    for longer, at most all the time, which is counted. Raises ``KeyError`` for a link that the gang does not use.
    """
    use = gang.uses[link]
    unprotected_s = step_beside_s(gang, link, background, capacity_bytes_per_s=capacity_bytes_per_s)
    harm_ratio = (unprotected_s - gang.step_s) / use.active_s
    # Beside traffic of rate b that never pauses, sending takes own / (capacity - b) as long.
    bearable = capacity_bytes_per_s - use.alone_bytes_per_s / (1 + (1 - RECOVERED_RATIO) * harm_ratio)
    limit = min(background.bytes_per_s, max(bearable, needed_bytes_per_s))
    if limit <= 0:  # too little harm to tell from rounding, beside a gang that fills the link
        limit = background.bytes_per_s
    stretched = Background(
        bytes_per_s=limit,
        duty_ratio=min(1.0, background.duty_ratio * background.bytes_per_s / limit),
        is_lower_class=background.is_lower_class,
    )
    protected_s = step_beside_s(gang, link, stretched, capacity_bytes_per_s=capacity_bytes_per_s)
    helps = protected_s < unprotected_s
    return Protection(
        limit_bytes_per_s=limit if helps else background.bytes_per_s,
        alone_s=gang.step_s,
        unprotected_s=unprotected_s,
        protected_s=protected_s if helps else unprotected_s,
    )
