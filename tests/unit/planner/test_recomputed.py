from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout, Recompute, RecomputeModule
from airflow_llmsched.domain.workload import BatchPhase
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.recomputed import words
from tests.support.fleets import full_nodes, plan_of, workload
from tests.support.models import LLAMA2_7B

H100 = node_shape("p5.48xlarge")
PIPELINE = ParallelLayout(
    dp=1, tp=1, pp=8, micro_batch_size=8, num_micro_batches=32, recompute=Recompute.FULL
)  # fmt: skip


def test_where_memory_is_left_less_needs_to_be_computed_again() -> None:
    told = words(workload(LLAMA2_7B), plan_of(workload(LLAMA2_7B), PIPELINE, H100), full_nodes(H100, PIPELINE))
    first, *stages = told.splitlines()
    assert first.startswith("A trainer that can be told layer by layer what to compute again would take about ")
    assert stages[0].startswith("  stage 0: ")
    assert "nothing" not in stages[0]
    assert "layers layernorm" in stages[0]
    assert stages[4] == "  and 4 more stages, which have fewer micro-batches in flight"


@pytest.mark.parametrize(
    "layout",
    [
        replace(PIPELINE, recompute=Recompute.NONE),
        replace(PIPELINE, recompute=Recompute.SELECTIVE),
        replace(
            PIPELINE, recompute=Recompute.MODULES, recompute_modules=(RecomputeModule.EVERY_SECOND_PRODUCT,)
        ),
    ],
)  # fmt: skip
def test_where_little_or_nothing_is_computed_again_nothing_is_said(layout: ParallelLayout) -> None:
    assert words(workload(LLAMA2_7B), plan_of(workload(LLAMA2_7B), layout, H100), full_nodes(H100, layout)) == ""


def test_nothing_is_advised_on_where_another_phase_may_have_less_memory_to_spare() -> None:
    whole = BatchPhase(from_tokens=0, sequence_length_tokens=4096, num_sequences=256)
    run = workload(LLAMA2_7B, batch=(whole, replace(whole, from_tokens=2**24, num_sequences=128)))
    assert words(run, plan_of(run, PIPELINE, H100), full_nodes(H100, PIPELINE))
    more = replace(whole, from_tokens=2**24, sequence_length_tokens=2048, num_sequences=512)
    run = workload(LLAMA2_7B, batch=(whole, more))
    assert not words(run, plan_of(run, PIPELINE, H100), full_nodes(H100, PIPELINE))


def test_what_does_not_fit_in_any_way_is_not_advised_on() -> None:
    run = workload(LLAMA2_7B)
    tight = replace(H100, accelerator=replace(H100.accelerator, memory_bytes=8 * 2**30))
    assert words(run, plan_of(run, PIPELINE, H100), full_nodes(tight, PIPELINE)) == ""


def test_a_job_without_a_model_has_no_layers() -> None:
    run = workload(None)
    assert words(run, plan_of(workload(LLAMA2_7B), PIPELINE, H100), full_nodes(H100, PIPELINE)) == ""
