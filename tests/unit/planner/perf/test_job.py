from __future__ import annotations

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.workload import BatchPhase, PrecisionSpec, TrainingStage
from airflow_llmsched.planner.perf.job import filling_phases, heaviest_phase, job_of
from tests.support.fleets import job, workload


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


def test_memory_must_hold_every_phase_that_has_more_sequences_than_those_with_longer_ones() -> None:
    short, shorter, warm_up, long, longest = (
        BatchPhase(from_tokens=start, sequence_length_tokens=length, num_sequences=number)
        for start, length, number in ((0, 1024, 256), (1, 512, 256), (2, 1024, 128), (3, 2048, 64), (4, 8192, 64))
    )
    assert filling_phases(workload(batch=(short, shorter, warm_up, long, longest))) == [longest, short]
    assert filling_phases(workload(batch=(warm_up, short))) == [short]


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
