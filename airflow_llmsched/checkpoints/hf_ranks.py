"""Per-rank files in a Hugging Face checkpoint: which ranks wrote, whether all did, and who can read them back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_llmsched.checkpoints.scan import Torn, check_ranks, file_sizes, read_file
from airflow_llmsched.domain.layout import ParallelLayout

_RNG = re.compile(r"rng_state_(?P<rank>[0-9]{1,7})\.pth")
_RANK_STATE = re.compile(
    r"(?:(?:optimizer|optim|optim_states?|state|model)[-_.])?rank[-_]?(?P<rank>[0-9]{1,7})(?:\.(?:pt|pth|bin|safetensors)|/)"
)
_ZERO_OPTIMIZER = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>[0-9]{1,7})_mp_rank_(?P<model>[0-9]{1,7})_optim_states\.pt"
)
_MODEL_STATES = re.compile(r"(?:zero_pp_rank_[0-9]{1,7}_)?mp_rank_[0-9]{1,7}_model_states\.pt")

_POINTER = "latest"
_UNIVERSAL_POINTER = "latest_universal"


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


def rank_groups(directory: Path, names: Iterable[str]) -> tuple[RankGroup, ...]:
    """Return the per-rank files of a checkpoint. Raises ``Torn`` when a pointer names what is not there."""
    names = list(names)
    groups = [
        _group("the random state (rng_state_R.pth)", _RNG, names, over=None, holds_optimizer=False),
        _group("the per-rank state (rank_R files)", _RANK_STATE, names, over="world", holds_optimizer=True),
    ]
    if _POINTER in names:
        inner, convertible = _deepspeed_names(directory, names)
        what = "the ZeRO optimizer state (zero_pp_rank_R files)"
        over = None if convertible else "dp"
        groups.append(_group(what, _ZERO_OPTIMIZER, inner, over=over, holds_optimizer=True))
    elif any(re.fullmatch(r"global_step[0-9]+/", name) for name in names):
        raise Torn(f"{_POINTER} is missing beside the DeepSpeed state: its save did not finish")
    return tuple(group for group in groups if group.ranks)


def check_rank_files(groups: Sequence[RankGroup]) -> None:
    """Raise ``Torn`` when one rank's file is missing among those of the others."""
    for group in groups:
        check_ranks(f"their part of {group.what}", group.ranks, range(max(group.ranks) + 1))


def saved_world_size(groups: Sequence[RankGroup], names: Mapping[str, int]) -> int | None:
    """Return how many ranks saved, where the files say it: every rank keeps its random state."""
    for group in groups:
        if group.over != "dp":
            return max(group.ranks) + 1
    return 1 if "rng_state.pth" in names else None


def _group(
    what: str, pattern: re.Pattern[str], names: Iterable[str], *, over: str | None, holds_optimizer: bool
) -> RankGroup:
    ranks = frozenset(int(found["rank"]) for name in names if (found := pattern.fullmatch(name)))
    return RankGroup(what=what, ranks=ranks, over=over, holds_optimizer=holds_optimizer)


def _deepspeed_names(directory: Path, names: Iterable[str]) -> tuple[list[str], bool]:
    tag = (read_file(directory, _POINTER) or b"").decode(errors="replace").strip()
    if not tag or "/" in tag or tag in (".", "..") or f"{tag}/" not in names:
        raise Torn(f"{_POINTER} names {tag!r}, which is not there")
    try:
        inner = file_sizes(directory / tag)
    except FileNotFoundError as error:
        raise Torn(f"{_POINTER} names {tag!r}, which is not there") from error
    if not any(_MODEL_STATES.fullmatch(name) for name in inner):
        raise Torn(f"{tag} holds no model states (mp_rank_R_model_states.pt)")
    return list(inner), _UNIVERSAL_POINTER in names
