"""From a space of legal layouts to those that fit and that no other beats, block by block. Pure.

Memory comes first, as it is cheaper than time, and time only for what fits. Recompute policies that treat a layer as a
whole go first. They bound how fast and how lean any set of modules could make a row: recomputing more never makes a
step faster, and what full recomputation keeps is kept by any. A row whose bound is beaten already needs no closer look,
which spares most of the sets without losing a member of the front.

Axes: C = candidate, R = row (``layouts.LayoutSpace``), P = policy, G = group of places that are alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.evaluate import memory_bytes, step_seconds, total_s, usable_bytes
from airflow_llmsched.planner.factored import code
from airflow_llmsched.planner.layout_table import BoolArray, Expresses, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.layouts import WHOLE_POLICIES, LayoutSpace, Policy
from airflow_llmsched.planner.pareto import is_beyond, staircase
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.rates import Rates

BLOCK_SIZE = 1 << 17
"""Candidates that are written out at once: so few that a block's arrays stay near the processor."""

PASSING_TERMS = ("recomputed_layer", "allocator")
"""Memory that recomputing less could do without."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contenders:
    """Candidates that fit, with the row they come of."""

    table: LayoutTable
    row_C: IntArray
    step_s_C: FloatArray
    memory_bytes_C: IntArray

    def __len__(self) -> int:
        return len(self.row_C)

    def take(self, chosen: BoolArray | IntArray) -> Contenders:
        """Keep some, by mask or by index."""
        return Contenders(
            table=self.table.take(chosen),
            row_C=self.row_C[chosen],
            step_s_C=self.step_s_C[chosen],
            memory_bytes_C=self.memory_bytes_C[chosen],
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Contenders]) -> Contenders:
        """Join end to end; there must be some."""
        return cls(
            table=LayoutTable.concatenate(each.table for each in parts),
            row_C=np.concatenate([each.row_C for each in parts]),
            step_s_C=np.concatenate([each.step_s_C for each in parts]),
            memory_bytes_C=np.concatenate([each.memory_bytes_C for each in parts]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bounds:
    """Rows that sets of modules could make better, and by how much at most."""

    row_R: IntArray
    step_s_R: FloatArray
    memory_bytes_R: IntArray


@dataclass(slots=True, kw_only=True, eq=False)
class Sift:
    """One sift of one space on one shape.

    ``ranks_per_node_S`` are the fewest ranks on a node where a stem's gang is placed. Rows whose stems have the same
    ``group_S`` differ in nothing that counts but time and memory, so that two costs decide between them. ``rates`` are
    those of ``Machine``. What is not on a front in the end is counted: it was too large, not to be expressed by the
    trainer (``expresses``), or beaten.
    """

    workload: WorkloadSpec
    shape: NodeShape
    space: LayoutSpace
    ranks_per_node_S: IntArray
    group_S: IntArray
    expresses: Expresses | None = None
    rates: Rates | None = None
    num_too_large: int = 0
    num_inexpressible: int = 0
    num_beaten: int = 0
    leanest_bytes: int | None = None
    _fronts: dict[int, Contenders] = field(default_factory=dict)

    def run(self, row_R: IntArray) -> Contenders | None:
        """Return the members of each group's front among some rows, or None when nothing fits."""
        whole = [each for each in self.space.policies if each in WHOLE_POLICIES]
        sets = [each for each in self.space.policies if each not in WHOLE_POLICIES]
        if not whole:
            whole, sets = sets, []
        bounds = [
            found for block in _blocks(row_R, len(whole)) if (found := self._look(block, whole, bound=bool(sets)))
        ]
        if bounds:
            self._look_closer(bounds, sets)
        return Contenders.concatenate(list(self._fronts.values())) if self._fronts else None

    def _look(self, row_R: IntArray, policies: Sequence[Policy], *, bound: bool) -> _Bounds | None:
        table = self.space.expand(row_R, policies)
        terms = memory_bytes(self.workload, table, self.shape)
        memory_C = np.sum(list(terms.values()), axis=0)
        self._note_leanest(memory_C)
        fits_C = memory_C <= usable_bytes(self.shape.accelerator)
        self.num_too_large += int(np.count_nonzero(~fits_C))
        if self.expresses is not None:
            can_C = self.expresses(table)
            self.num_inexpressible += int(np.count_nonzero(fits_C & ~can_C))
            fits_C &= can_C
        if not bound:
            self._compare(table, np.repeat(row_R, len(policies)), memory_C, fits_C)
            return None
        passing_C = np.sum([terms[name] for name in PASSING_TERMS if name in terms], axis=0)
        floor_R = (memory_C - passing_C).reshape(-1, len(policies)).min(axis=1)
        has_hope_R = floor_R <= usable_bytes(self.shape.accelerator)
        num_sets = len(self.space.policies) - len(policies)
        self.num_too_large += int(np.count_nonzero(~has_hope_R)) * num_sets
        hopeful_C = np.repeat(has_hope_R, len(policies))
        row_R = row_R[has_hope_R]
        step_s_C = self._compare(
            table.take(hopeful_C),
            np.repeat(row_R, len(policies)),
            memory_C[hopeful_C],
            fits_C[hopeful_C],
            all_timed=True,
        )
        return _Bounds(
            row_R=row_R,
            step_s_R=step_s_C.reshape(-1, len(policies)).min(axis=1),
            memory_bytes_R=floor_R[has_hope_R],
        )

    def _look_closer(self, bounds: Sequence[_Bounds], sets: Sequence[Policy]) -> None:
        row_R = np.concatenate([each.row_R for each in bounds])
        step_s_R = np.concatenate([each.step_s_R for each in bounds])
        memory_R = np.concatenate([each.memory_bytes_R for each in bounds])
        # The fastest rows come first, so that what they yield may spare others.
        order = np.argsort(step_s_R, kind="stable")
        for block in _blocks(order, len(sets)):
            is_beaten = self._is_beaten(row_R[block], step_s_R[block], memory_R[block], or_on=True)
            self.num_beaten += int(np.count_nonzero(is_beaten)) * len(sets)
            if not is_beaten.all():
                self._look(row_R[block[~is_beaten]], sets, bound=False)

    def _compare(
        self, table: LayoutTable, row_C: IntArray, memory_C: IntArray, fits_C: BoolArray, *, all_timed: bool = False
    ) -> FloatArray:
        """Time candidates, and let those that fit compete with the fronts so far."""
        if not all_timed:
            table, row_C, memory_C, fits_C = table.take(fits_C), row_C[fits_C], memory_C[fits_C], fits_C[fits_C]
        if not len(row_C):
            return np.zeros(0)
        stem_C = self.space.stem_of(row_C)
        machine = Machine(shape=self.shape, ranks_per_node_C=self.ranks_per_node_S[stem_C], rates=self.rates)
        step_s_C = total_s(step_seconds(self.workload, table, machine), table)
        is_open_C = fits_C & ~self._is_beaten(row_C, step_s_C, memory_C, or_on=False)
        self.num_beaten += int(np.count_nonzero(fits_C)) - int(np.count_nonzero(is_open_C))
        new = Contenders(
            table=table.take(is_open_C), row_C=row_C[is_open_C], step_s_C=step_s_C[is_open_C],
            memory_bytes_C=memory_C[is_open_C],
        )  # fmt: skip
        for group, indices in self._by_group(new.row_C):
            self._merge(group, new.take(indices))
        return step_s_C

    def _merge(self, group: int, new: Contenders) -> None:
        old = self._fronts.get(group)
        both = new if old is None else Contenders.concatenate([old, new])
        front = staircase(both.step_s_C, both.memory_bytes_C, tie_breaks=simplest_first(both.table))
        self.num_beaten += len(both) - len(front)
        self._fronts[group] = both.take(front)

    def _is_beaten(self, row_C: IntArray, step_s_C: FloatArray, memory_C: IntArray, *, or_on: bool) -> BoolArray:
        is_beaten_C = np.zeros(len(row_C), dtype=np.bool_)
        for group, indices in self._by_group(row_C):
            front = self._fronts.get(group)
            if front is not None:
                is_beaten_C[indices] = is_beyond(
                    step_s_C[indices], memory_C[indices], first_F=front.step_s_C, second_F=front.memory_bytes_C,
                    or_on=or_on,
                )  # fmt: skip
        return is_beaten_C

    def _by_group(self, row_C: IntArray) -> Iterator[tuple[int, IntArray]]:
        groups, which_C = code(self.group_S[self.space.stem_of(row_C)])
        for number, group in enumerate(groups.tolist()):
            yield group, np.flatnonzero(which_C == number)

    def _note_leanest(self, memory_C: IntArray) -> None:
        leanest_bytes = int(memory_C.min())
        self.leanest_bytes = leanest_bytes if self.leanest_bytes is None else min(self.leanest_bytes, leanest_bytes)


def simplest_first(table: LayoutTable) -> list[IntArray]:
    """Return what decides between candidates of equal cost, most significant first: the plainer layout is better."""
    return [
        table.world_size_C, table.pp_C, table.vp_C, table.cp_C, table.tp_C, table.ep_C, table.schedule_C,
        table.offload_C, table.recompute_C, table.zero_C, -table.shard_C, -table.micro_batch_C, -table.etp_C,
        table.modules_C,
    ]  # fmt: skip


def _blocks(indices: IntArray, num_each: int) -> Iterator[IntArray]:
    size = max(BLOCK_SIZE // num_each, 1)
    for start in range(0, len(indices), size):
        yield indices[start : start + size]
