from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.workload import BatchPhase, BudgetSpec, WorkloadSpec
from airflow_llmsched.planner.evaluate import Evaluation, evaluate, total_memory_bytes
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.phases import phase_costs
from tests.support.fleets import workload

H100 = node_shape("p5.48xlarge")
SHORT, MANY, LONG = (
    BatchPhase(from_tokens=start, sequence_length_tokens=length, num_sequences=number)
    for start, length, number in ((0, 4096, 64), (2**20, 4096, 128), (2**22, 8192, 128))
)
ROWS = [
    ParallelLayout(dp=4, tp=2, num_micro_batches=32, zero_stage=1),
    ParallelLayout(dp=2, pp=4, num_micro_batches=64, recompute=Recompute.FULL),
]


def machine(rows: list[ParallelLayout]) -> Machine:
    return Machine(shape=H100, ranks_per_node_C=np.full(len(rows), 8))


def run(*batch: BatchPhase, num_tokens: int = 2**24) -> WorkloadSpec:
    return workload(batch=batch, budget=BudgetSpec(num_tokens=num_tokens))


def priced(asked: WorkloadSpec) -> Evaluation:
    return evaluate(asked, LayoutTable.of(ROWS), machine(ROWS))


def test_a_phase_costs_what_a_run_of_it_alone_costs() -> None:
    costs = phase_costs(run(SHORT, MANY, LONG), LayoutTable.of(ROWS), machine(ROWS))
    for phase, found in zip((SHORT, MANY, LONG), costs, strict=True):
        rows = [replace(row, num_micro_batches=phase.num_sequences // row.dp) for row in ROWS]
        alone = evaluate(run(replace(phase, from_tokens=0)), LayoutTable.of(rows), machine(rows))
        assert found.step_s_C == pytest.approx(alone.step_s_C)
        assert found.memory_bytes_C.tolist() == alone.memory_bytes_C.tolist()


def test_a_run_takes_the_time_and_the_money_of_all_its_phases() -> None:
    prediction = priced(run(SHORT, MANY, LONG)).prediction(0, usd_per_hour=36.0)
    assert [phase.num_steps for phase in prediction.phases] == [4, 6, 12]
    assert prediction.run_s == pytest.approx(math.fsum(each.num_steps * each.step_s for each in prediction.phases))
    assert prediction.run_usd == pytest.approx(prediction.run_s / 100)
    assert prediction.phases[-1].step_s == pytest.approx(prediction.step_s)


def test_a_run_draws_the_joules_of_all_its_phases() -> None:
    prediction = priced(run(SHORT, MANY, LONG)).prediction(0, usd_per_hour=36.0)
    joules = []
    for phase in (SHORT, MANY, LONG):
        row = replace(ROWS[0], num_micro_batches=phase.num_sequences // ROWS[0].dp)
        alone = evaluate(run(replace(phase, from_tokens=0)), LayoutTable.of([row]), machine([row]))
        joules.append(alone.prediction(0, usd_per_hour=1.0).step_energy_j or 0.0)
    assert min(joules) > 0
    assert prediction.step_energy_j == pytest.approx(joules[-1])
    assert prediction.run_energy_j == pytest.approx(4 * joules[0] + 6 * joules[1] + 12 * joules[2])
    as_the_heaviest = joules[-1] * prediction.run_s / prediction.step_s
    assert abs(as_the_heaviest / (prediction.run_energy_j or 0.0) - 1) > 0.001


def test_the_phase_with_the_longest_sequences_needs_the_memory_that_is_planned_for() -> None:
    prediction = priced(run(LONG, replace(SHORT, from_tokens=2**22))).prediction(1, usd_per_hour=1.0)
    needs = [phase.memory_bytes_per_rank for phase in prediction.phases]
    assert needs[0] == prediction.memory_bytes_per_rank > needs[1]


def test_a_phase_of_shorter_sequences_that_fills_the_pipeline_may_need_the_memory_that_is_planned_for() -> None:
    """One sequence of 8,192 a replica keeps one micro-batch in flight; 128 of 4,096 as many as there are stages."""
    few = BatchPhase(from_tokens=2**22, sequence_length_tokens=8192, num_sequences=2)
    asked = run(replace(MANY, from_tokens=0), few)
    rows = [ParallelLayout(dp=2, pp=8), ParallelLayout(dp=2, pp=1, tp=8)]
    table = LayoutTable.of(rows)
    found = evaluate(asked, table, machine(rows))
    for number, fullest in enumerate((0, 1)):
        prediction = found.prediction(number, usd_per_hour=1.0)
        needs = [phase.memory_bytes_per_rank for phase in prediction.phases]
        assert prediction.memory_bytes_per_rank == needs[fullest] == max(needs)
        assert needs[fullest] > needs[1 - fullest]
    assert found.prediction(0, usd_per_hour=1.0).fullest_rank.startswith("the ranks of pipeline stage 0 of 8")
    totals = total_memory_bytes(asked, table, H100)
    assert totals.tolist() == found.memory_bytes_C.tolist()


def test_a_run_of_one_phase_takes_its_steps() -> None:
    prediction = priced(run(LONG)).prediction(0, usd_per_hour=36.0)
    assert prediction.phases == ()
    assert prediction.run_s == pytest.approx(16 * prediction.step_s)


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 2**23))
def test_cutting_a_phase_in_two_costs_at_most_one_step_more(cut: int) -> None:
    prediction = priced(run(MANY, replace(MANY, from_tokens=2**20 + cut))).prediction(0, usd_per_hour=1.0)
    whole = priced(run(replace(MANY, from_tokens=0))).prediction(0, usd_per_hour=1.0)
    assert whole.run_s * (1 - 1e-9) <= prediction.run_s <= whole.run_s + prediction.step_s * (1 + 1e-9)
