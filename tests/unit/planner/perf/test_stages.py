from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, PipelineSchedule
from airflow_llmsched.domain.workload import ExpertShape, ModelShape
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.layers import layer_kinds
from airflow_llmsched.planner.perf.stages import num_in_flight_C, stage_bounds, telling_stages
from tests.support.models import LLAMA2_7B


def mixture(*, num_layers: int, num_dense_layers_first: int) -> ModelShape:
    experts = ExpertShape(
        num_routed=8, num_active=2, expert_hidden_size=16, num_dense_layers_first=num_dense_layers_first
    )
    return replace(LLAMA2_7B, num_layers=num_layers, experts=experts)


def table_of(*, pp: int, vp: int = 1, num_micro_batches: int = 8) -> LayoutTable:
    schedule = PipelineSchedule.INTERLEAVED if vp > 1 else PipelineSchedule.ONE_F_ONE_B
    return LayoutTable.of([
        ParallelLayout(dp=1, pp=pp, vp=vp, schedule=schedule, num_micro_batches=num_micro_batches)
    ])  # fmt: skip


@given(num_layers=st.integers(1, 200), data=st.data())
def test_chunks_cover_all_layers_and_differ_by_one_at_most(num_layers: int, data: st.DataObject) -> None:
    num_chunks = data.draw(st.integers(1, num_layers))
    sizes = np.diff(stage_bounds(num_layers, num_chunks=num_chunks))
    assert sizes.sum() == num_layers
    assert sizes.max() - sizes.min() <= 1


def test_what_is_missing_to_a_full_row_is_taken_from_both_ends() -> None:
    """Llama 3.1 405B: 126 layers over 16 stages leave one fewer to the first and to the last."""
    assert np.diff(stage_bounds(126, num_chunks=16)).tolist() == [7, *[8] * 14, 7]
    assert np.diff(stage_bounds(7, num_chunks=4)).tolist() == [2, 2, 2, 1]


@pytest.mark.parametrize("num_dense_layers_first", [0, 1, 3, 4, 5, 8])
@pytest.mark.parametrize("num_layers", [8, 10])
def test_telling_stages_include_the_heaviest_whatever_a_layer_costs(
    num_layers: int, num_dense_layers_first: int
) -> None:
    """Brute force over all stages of a mixture of experts with dense layers first."""
    model = mixture(num_layers=num_layers, num_dense_layers_first=num_dense_layers_first)
    for pp, vp, num_micro_batches in ((1, 1, 4), (2, 1, 1), (4, 1, 2), (8, 1, 64), (2, 2, 4), (4, 2, 64)):
        table = table_of(pp=pp, vp=vp, num_micro_batches=num_micro_batches)
        bounds = stage_bounds(num_layers, num_chunks=pp * vp)
        chunks = [layer_kinds(model)[start:end] for start, end in itertools.pairwise(bounds)]
        for dense_cost, moe_cost, head_cost in ((1, 5, 0), (5, 1, 0), (2, 2, 30), (3, 4, 2)):
            every = []
            for stage in range(pp):
                layers = [kind for chunk in chunks[stage::pp] for kind in chunk]
                cost = sum(moe_cost if kind.is_moe else dense_cost for kind in layers)
                in_flight = num_in_flight_C(table, np.array([stage]))[0]
                every.append(in_flight * cost + (head_cost if stage == pp - 1 else 0))
            told = []
            for each in telling_stages(model, table):
                moe = [kind.is_moe for kind in dict.fromkeys(layer_kinds(model))]
                cost = sum(
                    int(num) * (moe_cost if is_moe else dense_cost)
                    for num, is_moe in zip(each.num_KC[:, 0], moe, strict=True)
                )
                in_flight = num_in_flight_C(table, each.stage_C)[0]
                told.append(in_flight * cost + (head_cost if each.is_last_C[0] else 0))
            assert max(told) == pytest.approx(max(every))


def test_stages_of_many_candidates_are_their_own() -> None:
    layouts = [ParallelLayout(dp=1, pp=pp, num_micro_batches=8) for pp in (1, 4, 2)]
    stages = list(telling_stages(mixture(num_layers=8, num_dense_layers_first=3), LayoutTable.of(layouts)))
    assert stages[0].num_layers_C.tolist() == [8, 2, 4]
    assert stages[-1].is_last_C.all()
    assert stages[0].num_KC.tolist() == [[3, 2, 3], [5, 0, 1]]


@pytest.mark.parametrize(
    ("stage", "pp", "vp", "num_micro_batches", "in_flight"),
    [(0, 4, 1, 8, 4.0), (3, 4, 1, 8, 1.0), (0, 4, 1, 2, 2.0), (0, 4, 2, 8, 5.5), (0, 8, 3, 64, 8 * (1 + 7 / 24))],
)
def test_the_first_stage_holds_most_micro_batches(
    stage: int, pp: int, vp: int, num_micro_batches: int, in_flight: float
) -> None:
    """Korthikanti et al. 2022, section 4.2.3: pp (1 + (pp - 1) / (pp vp)) on the first stage when interleaved."""
    held_C = num_in_flight_C(table_of(pp=pp, vp=vp, num_micro_batches=num_micro_batches), np.array([stage]))
    assert held_C.tolist() == pytest.approx([in_flight])
