"""Small jobs on parts of accelerators: MIG instances and time slices. Pure.

A job's slices are of one accelerator. It goes where the fewest are left over. One that has to wait is promised the
accelerator that can take it soonest, and whoever comes after may use that only if he is gone by then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.queue import SliceAsk, SlicedSlot, SliceHold

NO_NODES: frozenset[NodeId] = frozenset()


@dataclass(slots=True, kw_only=True)
class _Use:
    num_slices: int
    start_s: float
    end_s: float


@dataclass(slots=True, kw_only=True)
class SliceBoard:
    """Divided accelerators and who uses or will use how many slices of each, from when until when (Unix seconds)."""

    now_s: float
    slots: Sequence[SlicedSlot]
    uses: dict[tuple[NodeId, int], list[_Use]] = field(default_factory=dict)

    @classmethod
    def of(cls, *, now_s: float, sliced: Iterable[SlicedSlot], held: Iterable[tuple[SliceHold, float]]) -> SliceBoard:
        """Return the board of what is held now, each with its end."""
        slots = sorted(sliced, key=lambda each: (each.node, each.slot))
        board = cls(now_s=now_s, slots=slots, uses={(each.node, each.slot): [] for each in slots})
        for hold, end_s in held:
            if (hold.node, hold.slot) in board.uses:
                board.take(hold, start_s=now_s, end_s=end_s)
        return board

    def take(self, hold: SliceHold, *, start_s: float, end_s: float) -> None:
        """Let a job use slices."""
        use = _Use(num_slices=hold.num_slices, start_s=start_s, end_s=end_s)
        self.uses[hold.node, hold.slot].append(use)

    def fitting_now(
        self, ask: SliceAsk, *, end_s: float, excluded: frozenset[NodeId] = NO_NODES
    ) -> tuple[SliceHold, float] | None:
        """Return slices that are free from now until ``end_s``, and which part of an accelerator they are.

        Here and below, ``excluded`` are nodes that will not do.
        """
        best: tuple[int, SlicedSlot] | None = None
        for slot in self._of_kind(ask, excluded):
            left = self._left(slot, self.now_s, end_s) - ask.num_slices
            if left >= 0 and (best is None or left < best[0]):
                best = left, slot
        if best is None:
            return None
        hold = SliceHold(node=best[1].node, slot=best[1].slot, num_slices=ask.num_slices)
        return hold, ask.num_slices / best[1].num_slices

    def soonest(
        self, ask: SliceAsk, *, runs_for_s: float, excluded: frozenset[NodeId] = NO_NODES
    ) -> tuple[float, SliceHold] | None:
        """Return when and where an ask fits first; None where no accelerator has so many slices."""
        best: tuple[float, SlicedSlot] | None = None
        for slot in self._of_kind(ask, excluded):
            moments = sorted({self.now_s, *(use.end_s for use in self.uses[slot.node, slot.slot])})
            fits = (at_s for at_s in moments if self._left(slot, at_s, at_s + runs_for_s) >= ask.num_slices)
            first = next((at_s for at_s in fits if math.isfinite(at_s)), None)
            if first is not None and (best is None or first < best[0]):
                best = first, slot
        if best is None:
            return None
        return best[0], SliceHold(node=best[1].node, slot=best[1].slot, num_slices=ask.num_slices)

    def could_ever(self, ask: SliceAsk, excluded: frozenset[NodeId] = NO_NODES) -> bool:
        """Whether any accelerator has so many slices."""
        return any(True for _ in self._of_kind(ask, excluded))

    def smallest_part(self, ask: SliceAsk, excluded: frozenset[NodeId] = NO_NODES) -> float:
        """Return the least part of an accelerator that the ask can come to."""
        return min((ask.num_slices / slot.num_slices for slot in self._of_kind(ask, excluded)), default=0.0)

    def _of_kind(self, ask: SliceAsk, excluded: frozenset[NodeId]) -> Iterable[SlicedSlot]:
        return (
            slot
            for slot in self.slots
            if ask.kind in (None, slot.kind) and slot.num_slices >= ask.num_slices and slot.node not in excluded
        )

    def _left(self, slot: SlicedSlot, start_s: float, end_s: float) -> int:
        """Return the fewest slices that are free at any time in between: use grows only where one begins."""
        uses = self.uses[slot.node, slot.slot]
        moments = [start_s, *(use.start_s for use in uses if start_s < use.start_s < end_s)]
        return slot.num_slices - max(
            sum(use.num_slices for use in uses if use.start_s <= at_s < use.end_s) for at_s in moments
        )
