from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.workload import MemoryDemand, WorkloadSpec
from airflow_llmsched.planner.evaluate import Evaluation, evaluate, usable_bytes
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.calibration import Calibration, FittedKind, StepKind, packaged, rates_of
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.step import model_flop_per_step
from tests.support.fleets import job, workload
from tests.support.models import MIXTRAL_8X7B

H100 = node_shape("p5.48xlarge")
ROWS = [
    ParallelLayout(dp=4, tp=2, num_micro_batches=64, zero_stage=1),
    ParallelLayout(dp=2, pp=4, num_micro_batches=128),
]


def priced(run: WorkloadSpec, rows: list[ParallelLayout]) -> Evaluation:
    machine = Machine(shape=H100, ranks_per_node_C=np.array([min(8, row.world_size) for row in rows]))
    return evaluate(run, LayoutTable.of(rows), machine)


@pytest.mark.parametrize("index", [0, 1])
def test_breakdowns_of_a_prediction_add_up(index: int) -> None:
    evaluation = priced(workload(), ROWS)
    prediction = evaluation.prediction(index, usd_per_hour=55.0)
    assert math.fsum(prediction.step_breakdown_s.values()) == prediction.step_s
    assert prediction.step_s == pytest.approx(float(evaluation.step_s_C[index]))
    assert sum(prediction.memory_breakdown_bytes.values()) == prediction.memory_bytes_per_rank
    assert prediction.memory_bytes_per_rank == evaluation.memory_bytes_C[index]
    assert prediction.memory_breakdown_bytes["runtime"] == H100.accelerator.reserved_bytes


def test_the_fullest_rank_is_named_and_so_is_what_the_allocator_needs() -> None:
    evaluation = priced(workload(), ROWS)
    flat, piped = (evaluation.prediction(index, usd_per_hour=1.0) for index in (0, 1))
    assert flat.fullest_rank == "every rank (no pipeline)"
    assert piped.fullest_rank.startswith("the ranks of pipeline stage 0 of 4")
    assert flat.allocator_settings == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    stated = workload(None, memory=(MemoryDemand(tier="hbm", bytes_per_rank=7),))
    assert priced(stated, [ParallelLayout(dp=8)]).prediction(0, usd_per_hour=1.0).fullest_rank == ""


def test_mfu_is_operations_over_time_and_peak() -> None:
    prediction = priced(workload(), ROWS).prediction(0, usd_per_hour=55.0)
    assert prediction.mfu_ratio == pytest.approx(model_flop_per_step(job()) / (prediction.step_s * 8 * 989.5e12))
    assert 0.1 < prediction.mfu_ratio < 0.6
    assert prediction.tokens_per_s == pytest.approx(256 * 4096 / prediction.step_s)
    assert prediction.error_ratio == packaged().error_ratio(H100.accelerator)
    assert prediction.usd_per_hour == 55.0


def test_each_candidate_claims_the_band_of_its_kind_of_step() -> None:
    """A mixture of experts on a host a hundred times slower waits for it, whatever else it does."""
    fitted = FittedKind(
        rates=rates_of(H100.accelerator), error_ratio=0.1, left_out_error_ratio=0.05, num_rows_by_source={},
        error_ratio_by_kind={StepKind.MIXTURE: 0.3, StepKind.HOST_BOUND: 0.7},
    )  # fmt: skip
    slow = replace(fitted, rates=fitted.rates.changed({"host_kernel_s": 1e-3}))

    def claimed(run: WorkloadSpec, kind: FittedKind) -> float:
        calibration = Calibration(fitted_on="", kinds={"hopper": kind})
        machine = Machine(shape=H100, ranks_per_node_C=np.array([8]), calibration=calibration)
        table = LayoutTable.of([ParallelLayout(dp=8, num_micro_batches=8, micro_batch_size=4)])
        return evaluate(run, table, machine).prediction(0, usd_per_hour=1.0).error_ratio

    assert claimed(workload(), fitted) == 0.1
    assert claimed(workload(MIXTRAL_8X7B), fitted) == 0.3
    assert claimed(workload(), slow) == claimed(workload(MIXTRAL_8X7B), slow) == 0.7


def test_a_job_that_states_nothing_of_its_time_has_none() -> None:
    run = workload(None, memory=(MemoryDemand(tier="hbm", bytes_per_rank=7),))
    prediction = priced(run, [ParallelLayout(dp=8)]).prediction(0, usd_per_hour=1.0)
    assert (prediction.step_s, prediction.mfu_ratio, prediction.tokens_per_s) == (0.0, 0.0, 0.0)
    assert prediction.memory_breakdown_bytes["stated"] == 7


def test_a_twentieth_of_the_memory_is_left_free() -> None:
    assert usable_bytes(H100.accelerator) == 0.95 * H100.accelerator.memory_bytes


def test_the_longest_term_binds_and_what_is_computed_again_counts_for_hfu_only() -> None:
    again = replace(ROWS[0], recompute=Recompute.FULL)
    prediction = priced(workload(), [ROWS[0], again]).prediction(1, usd_per_hour=55.0)
    assert prediction.binding_term == "matmul"
    assert prediction.hfu_ratio > 1.25 * prediction.mfu_ratio
    assert prediction.tokens_per_s_per_rank * again.world_size == pytest.approx(prediction.tokens_per_s)
    stated = priced(workload(None), [ParallelLayout(dp=8)]).prediction(0, usd_per_hour=1.0)
    assert (stated.hfu_ratio, stated.binding_term, stated.tokens_per_s_per_rank) == (0.0, "", 0.0)
