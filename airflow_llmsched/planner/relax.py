"""What stood in the way of a plan, and the smallest change known to help. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_llmsched.domain.hardware import Accelerator, NodeShape
from airflow_llmsched.domain.placement import NotPlaced
from airflow_llmsched.domain.workload import ParallelismWish, WorkloadSpec
from airflow_llmsched.planner.evaluate import usable_bytes
from airflow_llmsched.planner.layout_rules import LayoutRule
from airflow_llmsched.planner.layouts import legal_layouts
from airflow_llmsched.planner.perf.demands import Shortage
from airflow_llmsched.planner.ranks import nearest_rank_counts, rank_counts, reserved_slots
from airflow_llmsched.units import GIB

_MAX_LOOKS = 8
"""Rank counts that are looked at on each side for a legal layout."""


@dataclass(slots=True, kw_only=True)
class Obstacles:
    """Tally of one search, filled while candidates fall out."""

    workload: WorkloadSpec
    num_candidates: int = 0
    num_free_slots: int = 0
    unknown_shapes: tuple[str, ...] = ()
    tried_counts: tuple[int, ...] = ()
    slots_per_node: int = 1
    slots_per_domain: int = 1
    formats: tuple[str, ...] = ()
    refusal: NotPlaced | None = None
    breaks_wishes: bool = False
    wish_refusal: NotPlaced | None = None
    num_inexpressible: int = 0
    leanest_bytes: int | None = None
    leanest_accelerator: Accelerator | None = None
    shortage: tuple[Shortage, NodeShape] | None = None
    _turned_down: Counter[str] = field(default_factory=Counter)

    def add_candidates(self, number: int) -> None:
        """Count candidates that came up."""
        self.num_candidates += number

    def turn_down(self, reason: str, number: int) -> None:
        """Count candidates that fell out for one reason."""
        if number:
            self._turned_down[reason] += number

    def note_counts(self, counts: list[int], *, slots_per_node: int, slots_per_domain: int) -> None:
        """Remember which rank counts were tried, and how many slots the largest node and domain offered."""
        self.tried_counts = tuple(sorted({*self.tried_counts, *counts}))
        self.slots_per_node = max(self.slots_per_node, slots_per_node)
        self.slots_per_domain = max(self.slots_per_domain, slots_per_domain)

    def has_legal_layout(self, workload: WorkloadSpec, count: int) -> bool:
        """Whether any layout of ``workload`` is legal on ``count`` ranks of such nodes."""
        space = legal_layouts(
            workload, world_sizes=[count], slots_per_node=self.slots_per_node, slots_per_domain=self.slots_per_domain
        )
        return len(space) > 0

    def note_format(self, accelerator: Accelerator) -> None:
        """Remember formats that an accelerator does have."""
        known = {*self.formats, *(each.value for each in accelerator.peak_flop_per_s)}
        self.formats = tuple(sorted(known))

    def note_refusal(self, refusal: NotPlaced) -> None:
        """Remember the refusal of the smallest gang: the first, as gangs come in order of size."""
        self.refusal = self.refusal or refusal

    def note_wish_refusal(self, refusal: NotPlaced) -> None:
        """Remember what levels required of groups leave no place: the smallest gang, the last, as larger come first."""
        self.wish_refusal = refusal

    def note_memory(self, leanest_bytes: int, accelerator: Accelerator) -> None:
        """Remember the candidate that came closest to fitting."""
        shortest = self.leanest_bytes is None or self.leanest_accelerator is None
        if shortest or leanest_bytes - accelerator.memory_bytes < self._missing_bytes:
            self.leanest_bytes, self.leanest_accelerator = leanest_bytes, accelerator

    def note_shortage(self, shortage: Shortage, shape: NodeShape) -> None:
        """Remember the node shape that came closest to what ranks state to hold outside their accelerators."""
        if self.shortage is None or shortage.missing_bytes < self.shortage[0].missing_bytes:
            self.shortage = (shortage, shape)

    def rejections(self) -> dict[str, int]:
        """Return reasons with their counts, most frequent first, ties in the order of the text."""
        return dict(sorted(self._turned_down.items(), key=lambda item: (-item[1], item[0])))

    @property
    def _missing_bytes(self) -> int:
        if self.leanest_bytes is None or self.leanest_accelerator is None:
            return 0
        return self.leanest_bytes - self.leanest_accelerator.memory_bytes


def relaxation(obstacles: Obstacles) -> str | None:
    """Say what would help, by how far the last candidates got."""
    if obstacles.num_inexpressible:
        return f"plan for another trainer: {obstacles.num_inexpressible:,} layouts fit that this one cannot express"
    short_of_memory = _short_of_memory(obstacles)
    if short_of_memory is not None:
        return short_of_memory
    if obstacles.breaks_wishes:
        refusal = obstacles.wish_refusal
        told = "" if refusal is None else f"{refusal.summary}: {refusal.relaxation}"
        return told or "drop a required placement wish of a group, or make it preferred"
    if obstacles.refusal is not None:
        return f"{obstacles.refusal.summary}: {obstacles.refusal.relaxation or 'nothing smaller fits either'}"
    if obstacles.formats:
        return f"set precision.compute to one of {', '.join(obstacles.formats)}"
    return _to_be_legal(obstacles) if obstacles.tried_counts else _to_have_ranks(obstacles)


def _short_of_memory(obstacles: Obstacles) -> str | None:
    if obstacles.leanest_bytes is not None and obstacles.leanest_accelerator is not None:
        return _to_fit(obstacles.leanest_bytes, obstacles.leanest_accelerator) + _or_split(obstacles)
    return None if obstacles.shortage is None else _to_share(*obstacles.shortage)


def _to_fit(leanest_bytes: int, accelerator: Accelerator) -> str:
    needed, usable = f"{leanest_bytes / GIB:.1f} GiB", f"{usable_bytes(accelerator) / GIB:.1f} GiB"
    return (
        f"the leanest legal layout needs {needed} on each {accelerator.name}, which has {usable} to use: allow more "
        "ranks, a higher ZeRO stage, more recomputation, a smaller micro-batch or an offload "
        "(parallelism.may_offload), or use accelerators with more memory"
    )


def _or_split(obstacles: Obstacles) -> str:
    """Name the trainer where it is what kept the model whole: more of anything else may never make up for that."""
    num_split = obstacles.rejections().get(LayoutRule.SHIPPED_TRAINER, 0)
    if not num_split:
        return ""
    return (
        f". The shipped trainer keeps the model whole: {num_split:,} layouts that split it need a trainer that does "
        "(launcher.command)"
    )


def _to_share(shortage: Shortage, shape: NodeShape) -> str:
    stated, share = f"{shortage.num_bytes / GIB:.1f} GiB", f"{shortage.share_bytes / GIB:.1f} GiB"
    return (
        f"a rank states {stated} of {shortage.tier} (memory.tiers), and an accelerator's share of a {shape.name} is "
        f"{share}: state less, or use nodes with more for each accelerator"
    )


def _to_be_legal(obstacles: Obstacles) -> str:
    workload = obstacles.workload
    for name, value in _pins(workload.parallelism):
        unpinned = replace(workload, parallelism=_unpinned(workload.parallelism, name))
        for count in reversed(obstacles.tried_counts):
            if obstacles.has_legal_layout(unpinned, count):
                return f"unpin parallelism.{name} = {value}: {count} ranks then have a legal layout"
    reason = next(iter(obstacles.rejections()), "no candidate came up")
    tried = ", ".join(map(str, obstacles.tried_counts))
    near = _near_legal_counts(obstacles)
    advice = f"; on {' or '.join(map(str, near))} one is" if near else ""
    return f"no layout is legal on {tried} ranks, mostly because {reason}{advice}"


def _near_legal_counts(obstacles: Obstacles) -> list[int]:
    """Return the closest rank count below and above those tried that has a legal layout, of few that were looked at."""
    workload = obstacles.workload
    least, most = obstacles.tried_counts[0], obstacles.tried_counts[-1]
    free = replace(workload, capacity=replace(workload.capacity, min_ranks=1, max_ranks=None))
    counts = rank_counts(free, max_ranks=2 * most)
    found = []
    for side in ([each for each in reversed(counts) if each < least], [each for each in counts if each > most]):
        found += [next((each for each in side[:_MAX_LOOKS] if obstacles.has_legal_layout(free, each)), None)]
    return [each for each in found if each is not None]


def _to_have_ranks(obstacles: Obstacles) -> str:
    workload, free = obstacles.workload, obstacles.num_free_slots
    least, most = workload.capacity.min_ranks, workload.capacity.max_ranks
    if obstacles.unknown_shapes and free <= 0:
        return f"say what kind of node {', '.join(obstacles.unknown_shapes)} is: `llmsched hardware` lists those known"
    if free < least:
        reserved = reserved_slots(workload)
        besides = f" besides {reserved} for other roles" if reserved else ""
        usable = f"{max(free, 0)} slots are usable{besides}"
        return f"wait for capacity, or lower capacity.min_ranks: {usable}, {least} are needed"
    tried = str(least) if least == min(free, most or free) else f"{least} to {min(free, most or free)}"
    for name, value in _pins(workload.parallelism):
        unpinned = replace(workload, parallelism=_unpinned(workload.parallelism, name))
        if rank_counts(unpinned, max_ranks=free):
            return f"unpin parallelism.{name} = {value}: no rank count of {tried} allows it"
    near = nearest_rank_counts(workload, ranks=least)
    return (
        f"the batch and the model do not divide over {tried} ranks; they do over "
        f"{' or '.join(map(str, near)) or 'no number near it'}"
    )


def _unpinned(wish: ParallelismWish, name: str) -> ParallelismWish:
    nothing: dict[str, Any] = {name: None}
    return replace(wish, **nothing)


def _pins(wish: ParallelismWish) -> list[tuple[str, object]]:
    names = (
        "dp", "tp", "pp", "cp", "ep", "zero_stage", "micro_batch_size", "recompute", "vp", "expert_tp", "schedule",
        "offload", "shard_size",
    )  # fmt: skip
    return [(name, getattr(wish, name)) for name in names if getattr(wish, name) is not None]
