"""From a space of legal layouts to those that fit and that no other beats, block by block. Pure.

Memory comes first, as it is cheaper than time, and time only for what fits. All layouts of a branch (a stem with a
recompute policy) are bounded by one look at its leanest sharding: what sharding decides, which is traffic between
replicas, the optimizer's time and the buffers that ZeRO 3 gathers into, is left out, and no layout of the branch is
faster or leaner than what remains. A branch whose bound is beaten need not be written out.

Sets of modules are first bounded together, by the policies that treat a layer as a whole: recomputing more never makes
a step faster, and what full recomputation keeps is kept by any set.

Axes: C = candidate, S = stem, R = row, P = policy (``layouts.LayoutSpace``), B = branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.evaluate import (
    memory_bytes,
    step_seconds,
    total_bytes,
    total_memory_bytes,
    total_s,
    usable_bytes,
)
from airflow_llmsched.planner.factored import code
from airflow_llmsched.planner.layout_table import BoolArray, Expresses, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.layouts import WHOLE_POLICIES, LayoutSpace
from airflow_llmsched.planner.pareto import is_beyond, staircase
from airflow_llmsched.planner.perf.machine import Machine

Scalar = TypeVar("Scalar", bound=np.generic)

BLOCK_SIZE = 1 << 17
"""Candidates that are written out at once: so few that a block's arrays stay near the processor."""

FIRST_BLOCK_SIZE = 1 << 13
"""Candidates of the first block. Blocks grow, as the more is known, the fewer are looked at."""

SHARDING_TERMS = ("data_parallel", "optimizer", "offload_traffic", "offload_update")
"""All time that depends on what replicas shard."""

SHARDING_BUFFERS = ("sharding_buffers", "allocator")
"""Memory that sharding less could do without."""

PASSING_TERMS = (*SHARDING_BUFFERS, "recomputed_layer")
"""Memory that recomputing less could do without too."""


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
class _Branches:
    """Stems with one policy each. No layout of a branch is faster or leaner than its bounds.

    ``floor_bytes_B`` leaves out what recomputation brings back, too.
    """

    stem_B: IntArray
    policy_B: IntArray
    num_layouts_B: IntArray
    step_s_B: FloatArray
    memory_bytes_B: FloatArray
    floor_bytes_B: FloatArray

    def take(self, chosen: BoolArray | IntArray | slice) -> _Branches:
        return _Branches(**{each.name: getattr(self, each.name)[chosen] for each in fields(self)})


@dataclass(slots=True, kw_only=True, eq=False)
class Sift:
    """One sift of one space on one machine, which has a row for each stem.

    Layouts whose stems have the same ``group_S`` differ in nothing that counts but time and memory, so that two costs
    decide between them. What is not on a front in the end is counted: it was too large, not to be expressed by the
    trainer (``expresses``), without room for what it offloads, or beaten. ``leanest_bytes`` is the least that one was
    found to need.
    """

    workload: WorkloadSpec
    space: LayoutSpace
    machine: Machine
    group_S: IntArray
    expresses: Expresses | None = None
    num_too_large: int = 0
    num_inexpressible: int = 0
    num_beaten: int = 0
    num_without_room: int = 0
    leanest_bytes: int | None = None
    _fronts: dict[int, Contenders] = field(default_factory=dict)

    def run(self, stem_S: IntArray) -> Contenders | None:
        """Return the members of each group's front among the layouts of some stems, or None when nothing fits."""
        stem_S = stem_S[self.space.num_S[stem_S] > 0]
        whole, sets = self._whole_and_sets
        branches = self._bounded(stem_S, whole)
        self._look_at(branches)
        if len(sets):
            together = self._open(_together(branches, num_policies=len(whole), num_sets=len(sets)))
            self._look_at(self._bounded(together.stem_B, sets))
        if self.leanest_bytes is None and len(stem_S):
            # Not one had to be written out. The leanest is looked at all the same, to tell by how much it does not fit.
            leanest = branches.take(np.array([np.argmin(branches.memory_bytes_B)]))
            self._weigh(self.space.expand(*self._layouts_of(leanest)))
        return Contenders.concatenate(list(self._fronts.values())) if self._fronts else None

    @property
    def _whole_and_sets(self) -> tuple[IntArray, IntArray]:
        """Numbers of the policies that treat a layer as a whole, and of the sets; all are one kind if pinned to it."""
        is_whole_P = np.array([each in WHOLE_POLICIES for each in self.space.policies])
        whole, sets = np.flatnonzero(is_whole_P), np.flatnonzero(~is_whole_P)
        return (whole, sets) if len(whole) else (sets, whole)

    def _bounded(self, stem_S: IntArray, policies: IntArray) -> _Branches:
        """Bound branches by the leanest sharding; not at all where there is but one, or where things are elsewhere."""
        stem_B, policy_B = np.repeat(stem_S, len(policies)), np.tile(policies, len(stem_S))
        least_s_B, leanest_bytes_B, floor_bytes_B = np.zeros((3, len(stem_B)))
        if self.workload.model and not self.space.offload_H.any() and len(self.space.zero_H) > 1:
            for block in _blocks(len(stem_B)):
                table = self.space.most_sharded(stem_B[block], policy_B[block])
                terms = memory_bytes(self.workload, table, self._shape)
                leanest_bytes_B[block] = total_bytes(_without(terms, SHARDING_BUFFERS), table)
                floor_bytes_B[block] = total_bytes(_without(terms, PASSING_TERMS), table)
                seconds = _without(self._step_seconds(table, stem_B[block]), SHARDING_TERMS)
                # Sums in another order differ in their last digits.
                least_s_B[block] = total_s(seconds, table) * (1 - 1e-9)
        return _Branches(
            stem_B=stem_B,
            policy_B=policy_B,
            num_layouts_B=self.space.num_S[stem_B],
            step_s_B=least_s_B,
            memory_bytes_B=leanest_bytes_B,
            floor_bytes_B=floor_bytes_B,
        )

    def _look_at(self, branches: _Branches) -> None:
        """Write out the branches that are not beaten in the end, and let what fits compete."""
        # The fastest come first, so that what they yield may spare others.
        left, room = branches.take(np.argsort(branches.step_s_B, kind="stable")), FIRST_BLOCK_SIZE
        while len((left := self._open(left)).stem_B):
            num = max(int(np.searchsorted(np.cumsum(left.num_layouts_B), room, side="right")), 1)
            row_C, policy_C = self._layouts_of(left.take(slice(num)))
            left, room = left.take(slice(num, None)), min(4 * room, BLOCK_SIZE)
            table = self.space.expand(row_C, policy_C)
            memory_C = self._weigh(table)
            fits_C = memory_C <= self._usable_bytes
            self.num_too_large += int(np.count_nonzero(~fits_C))
            if self.expresses is not None:
                can_C = self.expresses(table)
                self.num_inexpressible += int(np.count_nonzero(fits_C & ~can_C))
                fits_C &= can_C
            if fits_C.any():
                self._compare(table.take(fits_C), row_C[fits_C], memory_C[fits_C])

    def _layouts_of(self, branches: _Branches) -> tuple[IntArray, IntArray]:
        """Return the rows of some branches, and with each its policy."""
        num_B = branches.num_layouts_B
        return self.space.rows_of(branches.stem_B), np.repeat(branches.policy_B, num_B)

    def _weigh(self, table: LayoutTable) -> IntArray:
        memory_C = total_memory_bytes(self.workload, table, self._shape)
        leanest_bytes = int(memory_C.min())
        self.leanest_bytes = leanest_bytes if self.leanest_bytes is None else min(self.leanest_bytes, leanest_bytes)
        return memory_C

    def _open(self, branches: _Branches) -> _Branches:
        """Return the branches that may yet have something on a front, and count the layouts of the others."""
        is_large_B = branches.memory_bytes_B > self._usable_bytes
        self.num_too_large += int(branches.num_layouts_B[is_large_B].sum())
        branches = branches.take(~is_large_B)
        is_beaten_B = self._is_beaten(branches.stem_B, branches.step_s_B, branches.memory_bytes_B, or_on=True)
        self.num_beaten += int(branches.num_layouts_B[is_beaten_B].sum())
        return branches.take(~is_beaten_B)

    def _compare(self, table: LayoutTable, row_C: IntArray, memory_C: IntArray) -> None:
        """Time candidates that fit, and let them compete with the fronts so far."""
        stem_C = self.space.stem_of(row_C)
        step_s_C = total_s(self._step_seconds(table, stem_C), table)
        has_room_C = np.isfinite(step_s_C)  # a step never ends where the node has no room for what it offloads
        is_open_C = has_room_C & ~self._is_beaten(stem_C, step_s_C, memory_C, or_on=False)
        self.num_without_room += int(np.count_nonzero(~has_room_C))
        self.num_beaten += int(np.count_nonzero(has_room_C & ~is_open_C))
        new = Contenders(
            table=table.take(is_open_C), row_C=row_C[is_open_C], step_s_C=step_s_C[is_open_C],
            memory_bytes_C=memory_C[is_open_C],
        )  # fmt: skip
        for group, indices in self._by_group(stem_C[is_open_C]):
            self._merge(group, new.take(indices))

    def _merge(self, group: int, new: Contenders) -> None:
        old = self._fronts.get(group)
        both = new if old is None else Contenders.concatenate([old, new])
        front = staircase(both.step_s_C, both.memory_bytes_C, tie_breaks=simplest_first(both.table))
        self.num_beaten += len(both) - len(front)
        self._fronts[group] = both.take(front)

    def _is_beaten(
        self, stem_C: IntArray, step_s_C: FloatArray, memory_bytes_C: FloatArray | IntArray, *, or_on: bool
    ) -> BoolArray:
        is_beaten_C = np.zeros(len(stem_C), dtype=np.bool_)
        for group, own in self._by_group(stem_C):
            front = self._fronts.get(group)
            if front is not None:
                is_beaten_C[own] = is_beyond(
                    step_s_C[own], memory_bytes_C[own], first_F=front.step_s_C, second_F=front.memory_bytes_C,
                    or_on=or_on,
                )  # fmt: skip
        return is_beaten_C

    def _by_group(self, stem_C: IntArray) -> Iterator[tuple[int, IntArray]]:
        groups, which_C = code(self.group_S[stem_C])
        for number, group in enumerate(groups.tolist()):
            yield group, np.flatnonzero(which_C == number)

    def _step_seconds(self, table: LayoutTable, stem_C: IntArray) -> Mapping[str, FloatArray]:
        return step_seconds(self.workload, table, self.machine.take(stem_C))

    @property
    def _shape(self) -> NodeShape:
        return self.machine.shape

    @property
    def _usable_bytes(self) -> float:
        return usable_bytes(self._shape.accelerator)


def simplest_first(table: LayoutTable) -> list[IntArray]:
    """Return what decides between candidates of equal cost, most significant first: the plainer layout is better."""
    return [
        table.world_size_C, table.pp_C, table.vp_C, table.cp_C, table.tp_C, table.ep_C, table.schedule_C,
        table.offload_C, table.recompute_C, table.zero_C, -table.shard_C, -table.micro_batch_C, -table.etp_C,
        table.modules_C,
    ]  # fmt: skip


def _together(branches: _Branches, *, num_policies: int, num_sets: int) -> _Branches:
    """Bound all sets of modules of each stem by its branches, which are as many as there are policies, side by side."""
    floor_bytes = branches.floor_bytes_B.reshape(-1, num_policies).min(axis=1)
    return _Branches(
        stem_B=branches.stem_B[::num_policies],
        policy_B=branches.policy_B[::num_policies],
        num_layouts_B=branches.num_layouts_B[::num_policies] * num_sets,
        step_s_B=branches.step_s_B.reshape(-1, num_policies).min(axis=1),
        memory_bytes_B=floor_bytes,
        floor_bytes_B=floor_bytes,
    )


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK_SIZE) for start in range(0, size, BLOCK_SIZE))


def _without(terms: Mapping[str, NDArray[Scalar]], names: Sequence[str]) -> dict[str, NDArray[Scalar]]:
    return {name: values_C for name, values_C in terms.items() if name not in names}
