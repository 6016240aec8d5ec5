from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.software import LossKernel, Software
from airflow_llmsched.domain.workload import ExpertShape, ModelShape, OptimizerSpec, PrecisionSpec
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import accelerators
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.layers import distinct_kinds, layer_kinds
from airflow_llmsched.planner.perf.memory import (
    allocator_settings,
    describe_rank,
    fuller,
    memory_breakdown,
    memory_peak,
    memory_terms,
    memory_totals,
    stage_terms,
)
from airflow_llmsched.planner.perf.stages import StageLayers, stage_bounds
from airflow_llmsched.units import GIB
from tests.support.fleets import job
from tests.support.models import GPT2, LLAMA2_7B, LLAMA2_70B, LLAMA31_8B, MIXTRAL_8X7B

STATES = ("weights", "compute_copies", "gradients", "optimizer")
DENSE_FIRST = replace(
    MIXTRAL_8X7B, name="dense-first", num_layers=14,
    experts=ExpertShape(num_routed=8, num_active=2, expert_hidden_size=14336, num_dense_layers_first=3),
)  # fmt: skip
MODELS = [LLAMA2_7B, LLAMA2_70B, LLAMA31_8B, MIXTRAL_8X7B, GPT2, DENSE_FIRST]
SOFTWARE = [Software(), Software(fused_attention=False, has_dropout=True), Software(loss=LossKernel.EAGER)]


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    pp = draw(st.sampled_from([1, 2, 4]))
    vp = draw(st.sampled_from([1, 3])) if pp > 1 else 1
    return ParallelLayout(
        dp=draw(st.sampled_from([1, 2, 8, 64])), tp=draw(st.sampled_from([1, 2, 4, 8])), pp=pp, vp=vp,
        schedule=PipelineSchedule.INTERLEAVED if vp > 1 else PipelineSchedule.ONE_F_ONE_B,
        cp=draw(st.sampled_from([1, 2, 4])), zero_stage=draw(st.integers(0, 3)),
        micro_batch_size=draw(st.sampled_from([1, 2, 4])), num_micro_batches=draw(st.sampled_from([1, 4, 32])),
        recompute=draw(st.sampled_from(Recompute)),
        recompute_modules=tuple(draw(st.sets(st.sampled_from(RecomputeModule)))),
        sequence_parallel=draw(st.booleans()), offload=draw(st.sampled_from(Offload)),
    )  # fmt: skip


models = st.sampled_from(MODELS)
softwares = st.sampled_from(SOFTWARE)


def total(one: TransformerJob, layout: ParallelLayout) -> int:
    return sum(memory_breakdown(one, layout).values())


def every_stage(model: ModelShape, layout: ParallelLayout) -> list[StageLayers]:
    kinds = distinct_kinds(model)
    bounds = stage_bounds(model.num_layers, num_chunks=layout.pp * layout.vp)
    chunks = [layer_kinds(model)[start:end] for start, end in itertools.pairwise(bounds)]
    stages = []
    for stage in range(layout.pp):
        layers = [kind for chunk in chunks[stage :: layout.pp] for kind in chunk]
        stages.append(
            StageLayers(
                stage_C=np.array([stage]), num_KC=np.array([[layers.count(kind)] for kind in kinds]),
                is_first_C=np.array([stage == 0]), is_last_C=np.array([stage == layout.pp - 1]),
            )
        )  # fmt: skip
    return stages


@settings(max_examples=60, deadline=None)
@given(model=models, software=softwares, layout=layouts())
def test_the_fullest_rank_is_found_among_all_stages(
    model: ModelShape, software: Software, layout: ParallelLayout
) -> None:
    """Brute force, stage by stage."""
    one, table = job(model, software=software), LayoutTable.of([layout])
    by_stage = [sum(int(each[0]) for each in stage_terms(one, table, stage).values())
                for stage in every_stage(model, layout)]  # fmt: skip
    peak = memory_peak(one, table)
    assert peak.total_C[0] == max(by_stage) == by_stage[int(peak.stage_C[0])]


@settings(max_examples=60, deadline=None)
@given(model=models, software=softwares, rows=st.lists(layouts(), min_size=1, max_size=6))
def test_many_layouts_at_once_cost_what_each_costs_alone(
    model: ModelShape, software: Software, rows: list[ParallelLayout]
) -> None:
    one = job(model, software=software)
    peak = memory_peak(one, LayoutTable.of(rows), reserved_bytes=GIB)
    assert np.sum(list(peak.terms.values()), axis=0).tolist() == peak.total_C.tolist()
    assert memory_totals(one, LayoutTable.of(rows), reserved_bytes=GIB).tolist() == peak.total_C.tolist()
    for index, row in enumerate(rows):
        alone = memory_breakdown(one, row, reserved_bytes=GIB)
        assert {name: int(values[index]) for name, values in peak.terms.items()} == alone


def test_the_runtime_is_a_term_of_its_own() -> None:
    with_runtime = memory_breakdown(job(), ParallelLayout(dp=1), reserved_bytes=GIB)
    assert with_runtime["runtime"] == GIB
    assert sum(with_runtime.values()) - GIB == total(job(), ParallelLayout(dp=1))


def test_what_lasts_is_not_fragmented_and_what_passes_is() -> None:
    layout = ParallelLayout(dp=1)
    terms = memory_breakdown(job(), layout)
    lasting = sum(terms[name] for name in ("weights", "optimizer"))
    passing = sum(terms.values()) - lasting - terms["allocator"]
    assert terms["allocator"] == pytest.approx(0.02 * passing, abs=2)
    fixed = memory_breakdown(job(software=Software(expandable_segments=False)), layout)
    assert fixed["allocator"] == pytest.approx(0.08 * passing, abs=2)


def test_the_allocator_settings_are_those_that_the_figures_assume() -> None:
    h100, mi300x, core = (accelerators()[name] for name in ("h100-sxm", "mi300x", "cpu-core"))
    assert allocator_settings(job(), h100) == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert allocator_settings(job(), mi300x) == "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"
    assert not allocator_settings(job(), core)
    assert not allocator_settings(job(software=Software(expandable_segments=False)), h100)


@pytest.mark.parametrize(
    ("stage", "pp", "text"),
    [
        (0, 1, "every rank"),
        (0, 4, "stage 0 of 4, which has the embedding, and most micro-batches in flight"),
        (2, 4, "the ranks of pipeline stage 2 of 4"),
        (3, 4, "stage 3 of 4, which has the output head and the loss"),
    ],
)
def test_the_fullest_rank_is_named_by_what_it_has(stage: int, pp: int, text: str) -> None:
    assert text in describe_rank(ParallelLayout(dp=1, pp=pp), stage=stage)


def test_a_large_vocabulary_makes_the_last_stage_the_fullest() -> None:
    wide = replace(LLAMA31_8B, vocab_size=1_000_000)
    layout = ParallelLayout(dp=1, pp=4, zero_stage=0, num_micro_batches=4, recompute=Recompute.FULL)
    assert memory_peak(job(wide), LayoutTable.of([layout])).stage_C[0] == 3
    assert memory_peak(job(LLAMA2_7B), LayoutTable.of([layout])).stage_C[0] == 0


@settings(max_examples=40, deadline=None)
@given(model=models, layout=layouts())
def test_more_zero_never_needs_more_memory_for_states(model: ModelShape, layout: ParallelLayout) -> None:
    by_stage = [memory_breakdown(job(model), replace(layout, zero_stage=stage)) for stage in range(4)]
    states = [sum(terms[name] for name in STATES) for terms in by_stage]
    assert states == sorted(states, reverse=True)


@settings(max_examples=25, deadline=None)
@given(layout=layouts())
def test_more_zero_never_needs_more_memory_in_all_once_there_are_replicas(layout: ParallelLayout) -> None:
    """For a model of many layers: with few, what sharding gathers can outweigh what it saves."""
    if layout.dp < 8:
        return
    one = job(LLAMA2_70B)
    plain = replace(layout, offload=Offload.NONE)
    totals = [total(one, replace(plain, zero_stage=stage)) for stage in range(4)]
    assert totals == sorted(totals, reverse=True)


@settings(max_examples=40, deadline=None)
@given(model=models, software=softwares, layout=layouts())
def test_more_tensor_parallelism_never_needs_more_memory(
    model: ModelShape, software: Software, layout: ParallelLayout
) -> None:
    """From 2 ranks on, where the sequence is split too; a first split gathers inputs that were whole before."""
    split = replace(layout, sequence_parallel=True)
    totals = [total(job(model, software=software), replace(split, tp=tp)) for tp in (2, 4, 8)]
    assert totals == sorted(totals, reverse=True)


@settings(max_examples=40, deadline=None)
@given(model=models, layout=layouts())
def test_a_larger_shard_group_never_needs_more_memory(model: ModelShape, layout: ParallelLayout) -> None:
    sizes = [size for size in (1, 2, 8, 64) if (layout.dp * layout.cp) % size == 0]
    totals = [total(job(model), replace(layout, shard_size=size)) for size in sizes]
    assert totals == sorted(totals, reverse=True)


@settings(max_examples=40, deadline=None)
@given(model=models, software=softwares, layout=layouts())
def test_more_recomputation_never_keeps_more_activations(
    model: ModelShape, software: Software, layout: ParallelLayout
) -> None:
    kept = [
        memory_breakdown(job(model, software=software), replace(layout, recompute=policy))["activations"]
        for policy in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    ]
    assert kept == sorted(kept, reverse=True)


@settings(max_examples=25, deadline=None)
@given(model=models, layout=layouts())
def test_a_larger_micro_batch_needs_more_memory(model: ModelShape, layout: ParallelLayout) -> None:
    assert total(job(model), replace(layout, micro_batch_size=2 * layout.micro_batch_size)) > total(job(model), layout)


@settings(max_examples=25, deadline=None)
@given(model=models, layout=layouts(), offload=st.sampled_from(Offload))
def test_offload_never_needs_more_memory(model: ModelShape, layout: ParallelLayout, offload: Offload) -> None:
    here = replace(layout, offload=Offload.NONE)
    assert total(job(model), replace(here, offload=offload)) <= total(job(model), here)


TORCHTITAN = Software(
    loss=LossKernel.EAGER, keeps_narrow_inputs=False, regathers_inputs=False, keeps_gathered_weights=False
)
COMPILED = replace(TORCHTITAN, fused_elementwise=True)
BY_OP: dict[str, Any] = {
    "recompute": Recompute.MODULES, "recompute_modules": (RecomputeModule.EVERY_SECOND_PRODUCT,)
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "software", "sequence", "layout", "measured_gib"),
    [
        (LLAMA31_8B, TORCHTITAN, 8192, {"dp": 8, "micro_batch_size": 2, **BY_OP}, 82.4),
        (LLAMA31_8B, COMPILED, 8192, {"dp": 8, "micro_batch_size": 2, **BY_OP}, 77.0),
        (LLAMA31_8B, TORCHTITAN, 8192, {"dp": 128, "micro_batch_size": 2, **BY_OP}, 67.0),
        (LLAMA31_8B, COMPILED, 8192, {"dp": 128, "micro_batch_size": 2, **BY_OP}, 62.0),
        (LLAMA31_8B, COMPILED, 65536, {"dp": 4, "cp": 2, "recompute": Recompute.FULL}, 84.2),
        (LLAMA31_8B, COMPILED, 262144, {"dp": 1, "cp": 8, "recompute": Recompute.FULL}, 84.5),
        (LLAMA31_8B, replace(COMPILED, loss=LossKernel.FUSED), 8192, {"dp": 32, "micro_batch_size": 2, **BY_OP}, 47.96),
        (LLAMA31_8B, replace(COMPILED, loss=LossKernel.FUSED), 8192, {"dp": 64, "micro_batch_size": 2, **BY_OP}, 46.97),
    ],
)
def test_peaks_of_torchtitan_are_within_ten_percent_of_the_measured_ones(
    model: ModelShape, software: Software, sequence: int, layout: dict[str, Any], measured_gib: float
) -> None:
    """Benchmarks of December 2024 (H100) and June 2025 (H200, loss compiled too), github.com/pytorch/torchtitan."""
    one = job(
        model, sequence_length_tokens=sequence, software=software,
        precision=PrecisionSpec(compute=NumberFormat.BF16, parameters=NumberFormat.FP32),
        optimizer=OptimizerSpec(master_weights=False),
    )  # fmt: skip
    assert total(one, ParallelLayout(zero_stage=3, **layout)) / GIB == pytest.approx(measured_gib, rel=0.1)


@pytest.mark.parametrize(
    ("layers", "hidden", "sequence", "layout", "gradients", "memory_gib"),
    [
        (24, 1024, 2048, {"dp": 16, "micro_batch_size": 18}, NumberFormat.BF16, 39.5),
        (24, 2048, 2048, {"dp": 32, "micro_batch_size": 10}, NumberFormat.BF16, 39.5),
        (32, 2560, 2048, {"dp": 32, "micro_batch_size": 6}, NumberFormat.BF16, 39.5),
        (32, 2560, 8192, {"dp": 8, "micro_batch_size": 3}, NumberFormat.FP32, 79.0),
        (48, 7168, 8192, {"dp": 8, "micro_batch_size": 1, "recompute": Recompute.FULL}, NumberFormat.FP32, 79.0),
    ],
)
def test_runs_with_the_largest_micro_batch_that_fits_fill_memory_and_fit(  # noqa: PLR0917 - a row of the table
    layers: int, hidden: int, sequence: int, layout: dict[str, Any], gradients: NumberFormat, memory_gib: float
) -> None:  # fmt: skip
    """MosaicML's throughput tables (llm-foundry, scripts/train/benchmarking, 2023): FSDP on A100 and H100."""
    model = replace(
        GPT2, name="mpt", num_layers=layers, hidden_size=hidden, num_heads=hidden // 64, num_kv_heads=hidden // 64,
        head_size=64, ffn_hidden_size=4 * hidden, vocab_size=50368, max_positions=sequence, norm_has_bias=False,
        attention_qkv_bias=False, attention_out_bias=False, mlp_bias=False,
    )  # fmt: skip
    one = job(
        model, sequence_length_tokens=sequence, software=Software(loss=LossKernel.FUSED),
        precision=PrecisionSpec(compute=NumberFormat.BF16, parameters=NumberFormat.FP32, gradients=gradients),
        optimizer=OptimizerSpec(master_weights=False),
    )  # fmt: skip
    runtime = int(1.5 * GIB)
    needed = sum(memory_breakdown(one, ParallelLayout(zero_stage=3, **layout), reserved_bytes=runtime).values())
    assert 0.9 < needed / (memory_gib * GIB) < 1.0


def test_memory_terms_are_those_of_the_peak() -> None:
    table = LayoutTable.of([ParallelLayout(dp=1, pp=2), ParallelLayout(dp=2)])
    terms, peak = memory_terms(job(), table), memory_peak(job(), table)
    assert {name: values.tolist() for name, values in terms.items()} == {
        name: values.tolist() for name, values in peak.terms.items()
    }


def test_the_fuller_of_two_peaks_is_chosen_candidate_by_candidate_with_its_terms_and_its_stage() -> None:
    """Twice as long sequences against eight times as many, which fill a pipeline of eight and leave one stage alone."""
    rows = [ParallelLayout(dp=1, pp=8), ParallelLayout(dp=1)]
    long = memory_peak(job(LLAMA2_7B, sequence_length_tokens=8192), LayoutTable.of(rows))
    many = memory_peak(
        job(LLAMA2_7B, sequence_length_tokens=4096), LayoutTable.of(replace(each, num_micro_batches=8) for each in rows)
    )
    found = fuller(long, many)
    assert found.total_C.tolist() == [many.total_C[0], long.total_C[1]]
    assert found.stage_C.tolist() == [many.stage_C[0], long.stage_C[1]]
    assert np.sum(list(found.terms.values()), axis=0).tolist() == found.total_C.tolist()
