"""Per-rank files in a Hugging Face checkpoint: which ranks wrote, whether all did, and who can read them back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_llmsched.checkpoints.hf_deepspeed import DeepSpeedState
from airflow_llmsched.checkpoints.scan import check_ranks
from airflow_llmsched.domain.layout import ParallelLayout

_RNG = re.compile(r"rng_state_(?P<rank>[0-9]{1,6})\.pth")
_RANK_STATE = re.compile(
    r"(?:(?:optimizer|optim|optim_states?|state|model)[-_.])?rank[-_]?(?P<rank>[0-9]{1,6})(?:\.(?:pt|pth|bin|safetensors)|/)"
)
_ZERO_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>[0-9]{1,6})_mp_rank_[0-9]{1,6}_optim_states\.pt")

_ZERO = "the ZeRO optimizer state (zero_pp_rank_R files)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Files of which each rank wrote one. ``over`` is ``dp`` or ``world``: what a layout must match; None: nothing."""

    what: str
    ranks: frozenset[int]
    over: str | None
    holds_optimizer: bool

    def problem_under(self, layout: ParallelLayout) -> str | None:
        """Return why a gang with ``layout`` cannot read these files back, or None when it can."""
        if self.over is None:
            return None
        saved = max(self.ranks) + 1
        offered = layout.dp if self.over == "dp" else layout.world_size
        if saved == offered:
            return None
        kind = "data-parallel ranks" if self.over == "dp" else "ranks"
        return (
            f"{self.what} was saved by {saved} {kind} and {offered} are offered: keep {saved}, "
            "or convert the checkpoint first (DeepSpeed: a universal checkpoint)"
        )


def rank_groups(names: Iterable[str], deepspeed: DeepSpeedState | None) -> tuple[RankGroup, ...]:
    """Return the per-rank files among the ``names`` of a checkpoint and in its DeepSpeed state. Pure."""
    names = list(names)
    groups = [
        _group("the random state (rng_state_R.pth)", _RNG, names, over=None, holds_optimizer=False),
        _group("the per-rank state (rank_R files)", _RANK_STATE, names, over="world", holds_optimizer=True),
    ]
    if deepspeed is not None:
        over = None if deepspeed.convertible else "dp"
        groups.append(_group(_ZERO, _ZERO_OPTIMIZER, deepspeed.sizes, over=over, holds_optimizer=True))
    return tuple(group for group in groups if group.ranks)


def check_rank_files(groups: Sequence[RankGroup]) -> None:
    """Raise ``Torn`` when one rank's file is missing among those of the others.

    There are at least as many ranks as data-parallel ones, so each kind of file vouches for the ranks of the others.
    """
    num_ranks = max((max(group.ranks) + 1 for group in groups), default=0)
    for group in groups:
        expected = max(group.ranks) + 1 if group.what == _ZERO else num_ranks
        check_ranks(f"their part of {group.what}", group.ranks, range(expected))


def saved_world_size(groups: Sequence[RankGroup], names: Mapping[str, int]) -> int | None:
    """Return how many ranks saved, where the files say it: every rank keeps its random state."""
    for group in groups:
        if group.what != _ZERO:
            return max(group.ranks) + 1
    return 1 if "rng_state.pth" in names else None


def _group(
    what: str, pattern: re.Pattern[str], names: Iterable[str], *, over: str | None, holds_optimizer: bool
) -> RankGroup:
    ranks = frozenset(int(found["rank"]) for name in names if (found := pattern.fullmatch(name)))
    return RankGroup(what=what, ranks=ranks, over=over, holds_optimizer=holds_optimizer)
