from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.workload import BatchPhase, ExpertShape, PrecisionSpec, TrainingStage
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.job import heaviest_phase, job_of, telling_stages
from tests.support.fleets import job, workload
from tests.support.models import LLAMA2_7B


def test_the_heaviest_phase_has_the_longest_sequences_then_the_most() -> None:
    phases = (
        BatchPhase(from_tokens=0, sequence_length_tokens=4096, num_sequences=1024),
        BatchPhase(from_tokens=10, sequence_length_tokens=8192, num_sequences=64),
        BatchPhase(from_tokens=20, sequence_length_tokens=8192, num_sequences=128),
    )
    run = workload(batch=phases)
    assert heaviest_phase(run) == phases[2]
    planned = job_of(run)
    assert planned is not None
    assert planned.tokens_per_step == 8192 * 128


def test_a_workload_without_a_model_has_no_job() -> None:
    assert job_of(workload(None)) is None


def test_only_the_lora_stage_trains_adapters() -> None:
    lora = job_of(workload(stage=TrainingStage.LORA, lora_rank=8))
    full = job_of(workload(stage=TrainingStage.SFT))
    assert lora is not None
    assert lora.lora_rank == 8
    assert full is not None
    assert full.lora_rank is None


def test_fp8_products_keep_activations_in_sixteen_bits() -> None:
    assert job(precision=PrecisionSpec(compute=NumberFormat.FP8)).compute_bytes == 2


@pytest.mark.parametrize("num_dense_layers_first", [0, 1, 3, 4, 5, 8])
def test_telling_stages_include_the_heaviest_whatever_a_layer_costs(num_dense_layers_first: int) -> None:
    """Brute force over all stages of a mixture of experts with dense layers first."""
    experts = ExpertShape(
        num_routed=8, num_active=2, expert_hidden_size=16, num_dense_layers_first=num_dense_layers_first
    )
    model = replace(LLAMA2_7B, num_layers=8, experts=experts)
    for pp, num_micro_batches in ((1, 4), (2, 1), (4, 2), (8, 64)):
        table = LayoutTable.of([ParallelLayout(dp=1, pp=pp, num_micro_batches=num_micro_batches)])
        per_stage = 8 // pp
        for dense_cost, moe_cost, head_cost in ((1, 5, 0), (5, 1, 0), (2, 2, 30), (3, 4, 2)):

            def cost(stage: int, dense: int, moe: int) -> int:
                in_flight = min(num_micro_batches, pp - stage)  # noqa: B023 - called in this round only
                head = head_cost if stage == pp - 1 else 0  # noqa: B023 - the same
                return in_flight * (dense * dense_cost + moe * moe_cost) + head  # noqa: B023 - the same

            every = []
            for stage in range(pp):
                dense = int(np.clip(num_dense_layers_first - stage * per_stage, 0, per_stage))
                every.append(cost(stage, dense, per_stage - dense))
            told = [
                cost(int(each.stage_C[0]), int(each.num_dense_C[0]), int(each.num_moe_C[0]))
                for each in telling_stages(model, table)
            ]
            assert max(told) == max(every)
