"""Many layouts at once: one array per degree instead of one object per layout. Owns the axis C, knows no rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

RECOMPUTE_ORDER = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL, Recompute.MODULES)
"""Code of each recompute policy in ``recompute_C``: its index here. Up to ``FULL``, more is recomputed as it grows."""

SCHEDULE_ORDER = tuple(PipelineSchedule)
"""Code of each schedule in ``schedule_C``."""

OFFLOAD_ORDER = tuple(Offload)
"""Code of each kind of offload in ``offload_C``."""

MODULE_BIT = {module: 1 << number for number, module in enumerate(RecomputeModule)}
"""Bit of each part of a layer in ``modules_C``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class LayoutTable:
    """Structure of arrays. Axis: C = candidate layout. Element types are int64.

    What a layout leaves open is filled in: ``etp_C`` is ``tp_C`` and ``shard_C`` all replicas (dp * cp). A column that
    a formula has no business reading may be empty (``factored.Factor``).
    """

    dp_C: IntArray
    tp_C: IntArray
    pp_C: IntArray
    cp_C: IntArray
    ep_C: IntArray
    zero_C: IntArray
    micro_batch_C: IntArray
    num_micro_batches_C: IntArray
    recompute_C: IntArray
    vp_C: IntArray
    etp_C: IntArray
    schedule_C: IntArray
    offload_C: IntArray
    shard_C: IntArray
    sequence_parallel_C: IntArray
    modules_C: IntArray

    @classmethod
    def of(cls, layouts: Iterable[ParallelLayout]) -> LayoutTable:
        """Build a table from layouts, in their order."""
        rows = [_row(layout) for layout in layouts]
        columns = np.array(rows, dtype=np.int64).reshape(-1, len(fields(cls))).T
        return cls(**{field.name: column.copy() for field, column in zip(fields(cls), columns, strict=True)})

    @classmethod
    def concatenate(cls, tables: Iterable[LayoutTable]) -> LayoutTable:
        """Join tables end to end."""
        parts = list(tables) or [cls.of(())]
        return cls(
            **{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)}
        )

    def __len__(self) -> int:
        return max(int(getattr(self, field.name).size) for field in fields(self))

    @property
    def world_size_C(self) -> IntArray:
        """Ranks of each candidate: dp * tp * pp * cp."""
        return self.dp_C * self.tp_C * self.pp_C * self.cp_C

    def take(self, chosen: BoolArray | IntArray) -> LayoutTable:
        """Keep some candidates, by mask or by index."""
        return LayoutTable(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def at(self, index: int) -> ParallelLayout:
        """Return one candidate as a layout."""
        tp, etp = int(self.tp_C[index]), int(self.etp_C[index])
        shard, replicas = int(self.shard_C[index]), int(self.dp_C[index] * self.cp_C[index])
        bits = int(self.modules_C[index])
        return ParallelLayout(
            dp=int(self.dp_C[index]),
            tp=tp,
            pp=int(self.pp_C[index]),
            cp=int(self.cp_C[index]),
            ep=int(self.ep_C[index]),
            zero_stage=int(self.zero_C[index]),
            micro_batch_size=int(self.micro_batch_C[index]),
            num_micro_batches=int(self.num_micro_batches_C[index]),
            recompute=RECOMPUTE_ORDER[int(self.recompute_C[index])],
            vp=int(self.vp_C[index]),
            expert_tp=None if etp == tp else etp,
            schedule=SCHEDULE_ORDER[int(self.schedule_C[index])],
            offload=OFFLOAD_ORDER[int(self.offload_C[index])],
            shard_size=None if shard == replicas else shard,
            sequence_parallel=bool(self.sequence_parallel_C[index]),
            recompute_modules=tuple(module for module, bit in MODULE_BIT.items() if bits & bit),
        )


Expresses = Callable[[LayoutTable], BoolArray]
"""Says of each candidate whether the trainer can express it."""


def _row(layout: ParallelLayout) -> tuple[int, ...]:
    """Return a layout's numbers in the order of ``LayoutTable``'s fields."""
    return (
        layout.dp,
        layout.tp,
        layout.pp,
        layout.cp,
        layout.ep,
        layout.zero_stage,
        layout.micro_batch_size,
        layout.num_micro_batches,
        RECOMPUTE_ORDER.index(layout.recompute),
        layout.vp,
        layout.tp if layout.expert_tp is None else layout.expert_tp,
        SCHEDULE_ORDER.index(layout.schedule),
        OFFLOAD_ORDER.index(layout.offload),
        layout.dp * layout.cp if layout.shard_size is None else layout.shard_size,
        int(layout.sequence_parallel),
        sum(MODULE_BIT[module] for module in set(layout.recompute_modules)),
    )
