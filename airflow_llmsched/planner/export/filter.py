"""Which layouts a tool can express, many at once, so that a search looks only at those. Pure.

Axis: C = candidate layout.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from airflow_llmsched.domain.layout import MAX_ZERO_STAGE, ParallelLayout
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError, SpecErrors
from airflow_llmsched.planner.export.gaps import Gap, found_gaps, gap_error
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.planner.export.tools import TOOLS, find_tool
from airflow_llmsched.planner.layout_table import (
    MODULE_BIT,
    OFFLOAD_ORDER,
    RECOMPUTE_ORDER,
    SCHEDULE_ORDER,
    BoolArray,
    Expresses,
    IntArray,
    LayoutTable,
)

_PLAIN = ParallelLayout(dp=8, zero_stage=2)
"""A layout that every tool can express, so that what is left is the workload's own."""


def expressible_by(tools: Iterable[str], workload: WorkloadSpec) -> Expresses:
    """Return the filter for a search of layouts that all of ``tools`` can express.

    Raises:
        SpecError: there is no such tool, or it cannot express the workload, whatever the layout.
    """
    gaps = tuple(gap for tool in tools for gap in find_tool(tool).gaps)
    _check_workload(workload, gaps)
    known: dict[int, bool] = {}

    def expresses(table: LayoutTable) -> BoolArray:
        kinds, first, which_C = np.unique(_kind_C(table), return_index=True, return_inverse=True)
        for kind, index in zip(kinds.tolist(), first.tolist(), strict=True):
            if kind not in known:
                known[kind] = not found_gaps(gaps, _run(workload, table.at(index)))
        return np.array([known[kind] for kind in kinds.tolist()], dtype=np.bool_)[which_C]

    return expresses


def _check_workload(workload: WorkloadSpec, gaps: tuple[Gap, ...]) -> None:
    run = _run(workload, _PLAIN)
    found = [(gap, value) for gap, value in found_gaps(gaps, run) if not gap.path.startswith("layout.")]
    if not found:
        return
    able = [name for name, tool in TOOLS.items() if tool.splits and not found_gaps(tool.gaps, run)]
    errors: list[SpecError] = [gap_error(gap, value, able=able) for gap, value in found]
    raise errors[0] if len(errors) == 1 else SpecErrors(errors)


def _run(workload: WorkloadSpec, layout: ParallelLayout) -> PlannedRun:
    """A run on one node: where ranks are is decided later, and no tool minds but for uneven nodes."""
    return PlannedRun(workload=workload, layout=layout, ranks_on_nodes=(layout.world_size,))


def _kind_C(table: LayoutTable) -> IntArray:
    """Number candidates by all that gaps ask of a layout: a tool can express all of one number, or none of them."""
    replicas_C = table.dp_C * table.cp_C
    answers = [
        *(degree_C > 1 for degree_C in (table.tp_C, table.pp_C, table.vp_C, table.cp_C, table.ep_C)),
        table.etp_C == 1,
        table.etp_C == table.tp_C,
        table.shard_C == replicas_C,
        table.shard_C % table.cp_C == 0,
        table.shard_C * table.tp_C % (table.ep_C * table.etp_C) == 0,
    ]
    codes = (
        (table.zero_C, MAX_ZERO_STAGE + 1),
        (table.recompute_C, len(RECOMPUTE_ORDER)),
        (table.schedule_C, len(SCHEDULE_ORDER)),
        (table.offload_C, len(OFFLOAD_ORDER)),
        (table.sequence_parallel_C, 2),
        (table.modules_C, 1 << len(MODULE_BIT)),
    )
    kind_C = np.zeros(len(table), dtype=np.int64)
    for column_C, num_values in [*((answer_C, 2) for answer_C in answers), *codes]:
        kind_C = kind_C * num_values + column_C
    return kind_C
