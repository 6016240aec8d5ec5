"""Many layouts at once: one array per degree instead of one object per layout. Owns the axis C, knows no rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from airflow_llmsched.domain.layout import ParallelLayout, Recompute

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

RECOMPUTE_ORDER = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
"""Code of each recompute policy in ``recompute_C``: its index here. More is recomputed as the code grows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutTable:
    """Structure of arrays. Axis: C = candidate layout. Element types are int64."""

    dp_C: IntArray
    tp_C: IntArray
    pp_C: IntArray
    cp_C: IntArray
    ep_C: IntArray
    zero_C: IntArray
    micro_batch_C: IntArray
    num_micro_batches_C: IntArray
    recompute_C: IntArray

    @classmethod
    def of(cls, layouts: Iterable[ParallelLayout]) -> LayoutTable:
        """Build a table from layouts, in their order."""
        rows = [
            (
                layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.zero_stage,
                layout.micro_batch_size, layout.num_micro_batches, RECOMPUTE_ORDER.index(layout.recompute),
            )
            for layout in layouts
        ]  # fmt: skip
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
        return int(self.dp_C.size)

    @property
    def world_size_C(self) -> IntArray:
        """Ranks of each candidate: dp * tp * pp * cp."""
        return self.dp_C * self.tp_C * self.pp_C * self.cp_C

    def take(self, chosen: BoolArray | IntArray) -> LayoutTable:
        """Keep some candidates, by mask or by index."""
        return LayoutTable(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def at(self, index: int) -> ParallelLayout:
        """Return one candidate as a layout."""
        return ParallelLayout(
            dp=int(self.dp_C[index]),
            tp=int(self.tp_C[index]),
            pp=int(self.pp_C[index]),
            cp=int(self.cp_C[index]),
            ep=int(self.ep_C[index]),
            zero_stage=int(self.zero_C[index]),
            micro_batch_size=int(self.micro_batch_C[index]),
            num_micro_batches=int(self.num_micro_batches_C[index]),
            recompute=RECOMPUTE_ORDER[int(self.recompute_C[index])],
        )
