from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.planner.layout_table import LayoutTable

degree = st.integers(1, 16)
layouts = st.builds(
    ParallelLayout, dp=degree, tp=degree, pp=degree, cp=degree, ep=degree, zero_stage=st.integers(0, 3),
    micro_batch_size=degree, num_micro_batches=degree, recompute=st.sampled_from(Recompute), vp=degree,
    schedule=st.sampled_from(PipelineSchedule), offload=st.sampled_from(Offload), sequence_parallel=st.booleans(),
    recompute_modules=st.sets(st.sampled_from(RecomputeModule)).map(lambda chosen: tuple(
        module for module in RecomputeModule if module in chosen
    )),
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


def test_what_a_layout_leaves_open_is_filled_in() -> None:
    table = LayoutTable.of([ParallelLayout(dp=4, tp=2, cp=2), ParallelLayout(dp=4, tp=2, expert_tp=1, shard_size=2)])
    assert table.etp_C.tolist() == [2, 1]
    assert table.shard_C.tolist() == [8, 2]
    assert table.at(1).expert_tp == 1
    assert table.at(1).shard_size == 2
    assert table.at(0).expert_tp is None


def test_joining_nothing_gives_an_empty_table() -> None:
    assert len(LayoutTable.concatenate([])) == 0
