"""Whether a run may go on spending: what it will have cost at its present pace, against what it may cost. Pure.

What has been spent is for others to count; here it is a number, as is what the capacity in question costs an hour.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.domain.workload import OnOverrun
from airflow_llmsched.errors import SpecError
from airflow_llmsched.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands. ``goodput_tokens_per_s`` is what it keeps per second of renting, losses included.

    ``usd_per_hour`` is what the whole gang costs, ``is_running`` whether it does so already. ``save_s`` is what a last
    checkpoint takes, which has to be paid as well.
    """

    spent_usd: float
    usd_per_hour: float
    left_tokens: float
    goodput_tokens_per_s: float
    is_running: bool
    save_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for what has no meaning."""
        for name in ("spent_usd", "usd_per_hour", "left_tokens", "goodput_tokens_per_s", "save_s"):
            if not getattr(self, name) >= 0:
                raise SpecError(path=name, value=getattr(self, name), hint="must be 0 or more")

    @property
    def left_s(self) -> float:
        """How long the rest takes at this goodput: for ever at none."""
        if self.left_tokens == 0:
            return 0.0
        return self.left_tokens / self.goodput_tokens_per_s if self.goodput_tokens_per_s > 0 else float("inf")

    @property
    def projected_usd(self) -> float:
        """What the run will have cost when it ends."""
        if self.left_s == 0 or self.usd_per_hour == 0:
            return self.spent_usd
        return self.spent_usd + self.left_s * self.usd_per_hour / HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Rent, or go on."""

    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Go on, and have somebody decide: ``short_usd`` is missing (infinite while nothing is produced)."""

    words: str
    short_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAndStop:
    """Save, stop, give the capacity back. A raised cap lets the run go on from there."""

    words: str
    short_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    """Do not rent: nothing runs, and what is asked for does not fit into the cap."""

    words: str
    short_usd: float


BudgetVerdict = Go | Ask | CheckpointAndStop | Deny


def judge(standing: Standing, *, max_usd: float | None, on_overrun: OnOverrun = OnOverrun.STOP) -> BudgetVerdict:
    """Say whether the run may spend on.

    While the cap holds at the present pace: ``Go``. When it does not, what does not run yet is denied, whatever
    ``on_overrun`` says, because denying costs nothing; what runs is stopped, or somebody is asked. Asking ends where
    the money does: what is left must pay for a last checkpoint, and once it no more than does, the run is stopped.
    """
    if max_usd is None:
        return Go(words="no budget is set")
    projected_usd = standing.projected_usd
    if projected_usd <= max_usd:
        return Go(words=f"{_dollars(projected_usd)} are projected of {_dollars(max_usd)}")
    words, short_usd = _overrun(standing, max_usd), projected_usd - max_usd
    if not standing.is_running:
        return Deny(words=words, short_usd=short_usd)
    save_usd = standing.save_s * standing.usd_per_hour / HOUR_S
    if on_overrun is OnOverrun.ASK and standing.spent_usd + save_usd < max_usd:
        return Ask(words=words, short_usd=short_usd)
    return CheckpointAndStop(words=words, short_usd=short_usd)


def _overrun(standing: Standing, max_usd: float) -> str:
    spent = f"{_dollars(standing.spent_usd)} of {_dollars(max_usd)} are spent"
    if standing.spent_usd >= max_usd and standing.left_tokens > 0:
        return f"{spent}, with {standing.left_tokens:.3g} tokens to go"
    price = f"at {_dollars(standing.usd_per_hour)} an hour"
    if standing.goodput_tokens_per_s == 0:
        return f"{spent}; {price} the rest is paid for and no tokens are kept"
    return (
        f"{spent}; {standing.left_tokens:.3g} tokens at {standing.goodput_tokens_per_s:.3g} a second take "
        f"{standing.left_s / HOUR_S:.3g} h, {price} {_dollars(standing.projected_usd)} in all, "
        f"{_dollars(standing.projected_usd - max_usd)} too much"
    )


def _dollars(usd: float) -> str:
    return f"${usd:,.2f}"
