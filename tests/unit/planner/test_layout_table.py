from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.planner.layout_table import LayoutTable

degree = st.integers(1, 16)
layouts = st.builds(
    ParallelLayout, dp=degree, tp=degree, pp=degree, cp=degree, ep=degree, zero_stage=st.integers(0, 3),
    micro_batch_size=degree, num_micro_batches=degree, recompute=st.sampled_from(Recompute),
)  # fmt: skip


@given(rows=st.lists(layouts, max_size=6))
def test_layouts_come_back_as_they_went_in(rows: list[ParallelLayout]) -> None:
    table = LayoutTable.of(rows)
    assert [table.at(index) for index in range(len(table))] == rows
    assert table.world_size_C.tolist() == [row.world_size for row in rows]


@given(rows=st.lists(layouts, min_size=1, max_size=6))
def test_taking_and_joining_parts_restores_the_whole(rows: list[ParallelLayout]) -> None:
    table = LayoutTable.of(rows)
    first = np.arange(len(table)) < len(table) // 2
    joined = LayoutTable.concatenate([table.take(first), table.take(~first)])
    assert [joined.at(index) for index in range(len(joined))] == rows


def test_joining_nothing_gives_an_empty_table() -> None:
    assert len(LayoutTable.concatenate([])) == 0
