"""Published step times: Narayanan et al. 2021 (SC '21), table 1; llm-foundry's benchmark tables (MosaicML, 2024)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, Recompute, RecomputeModule
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import ModelShape, PrecisionSpec
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf import machine
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.memory_offload import offload_terms_s
from airflow_llmsched.planner.perf.rates import generation_of, prior_of_generation
from airflow_llmsched.planner.perf.step import (
    Machine,
    hardware_flop_per_step,
    model_flop_per_step,
    peak_flop_per_s,
    step_breakdown,
    step_terms,
)
from tests.support.fleets import job
from tests.support.models import GPT2, LLAMA2_7B, LLAMA2_70B, LLAMA31_8B, MIXTRAL_8X7B, megatron_gpt

BAND = 0.35
"""Formulas alone, before anything was fitted, are that near to published steps."""

H100 = node_shape("p5.48xlarge")
# Selene: a DGX A100 has eight 200 Gb/s InfiniBand cards
DGX_A100 = replace(node_shape("p4de.24xlarge"), inter_node_bandwidth_bytes_per_s=25e9)
FP16 = PrecisionSpec(compute=NumberFormat.FP16, parameters=NumberFormat.FP16)


@pytest.fixture(autouse=True)
def _unfitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are of formulas: they reckon with priors, whatever measurements say by now."""
    monkeypatch.setattr(machine, "rates_of", lambda chip: prior_of_generation(generation_of(chip)))


def step_s(model: ModelShape, layout: ParallelLayout, *, shape=H100, **others) -> float:  # type: ignore[no-untyped-def]
    ranks_per_node = min(shape.num_accelerators, layout.world_size)
    return math.fsum(step_breakdown(job(model, **others), layout, shape=shape, ranks_per_node=ranks_per_node).values())


@pytest.mark.parametrize(
    ("heads", "hidden", "layers", "tp", "pp", "dp", "batch", "tflop_per_s"),
    [
        (24, 2304, 24, 1, 1, 32, 512, 137),
        (32, 3072, 30, 2, 1, 32, 512, 138),
        (32, 4096, 36, 4, 1, 32, 512, 142),
        (48, 6144, 40, 8, 1, 32, 1024, 135),
        (64, 8192, 48, 8, 2, 32, 1536, 138),
        (80, 10240, 60, 8, 4, 32, 1792, 140),
        (96, 12288, 80, 8, 8, 24, 2304, 148),
    ],
)
def test_megatron_steps_are_inside_the_band(  # noqa: PLR0917 - a row of the table
    heads: int, hidden: int, layers: int, tp: int, pp: int, dp: int, batch: int, tflop_per_s: float
) -> None:  # fmt: skip
    """The paper gives TFLOP/s per GPU by its equation 3, recomputation included; micro-batches of 4 are assumed."""
    model = megatron_gpt(name="paper", num_heads=heads, hidden_size=hidden, num_layers=layers)
    flop = 96 * batch * 2048 * layers * hidden**2 * (1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden))
    published_s = flop / (tflop_per_s * 1e12 * tp * pp * dp)
    layout = ParallelLayout(
        dp=dp, tp=tp, pp=pp, micro_batch_size=4, num_micro_batches=batch // dp // 4, recompute=Recompute.FULL
    )
    predicted_s = step_s(
        model, layout, shape=DGX_A100, sequence_length_tokens=2048, num_sequences=batch, precision=FP16
    )
    assert predicted_s == pytest.approx(published_s, rel=BAND)


def test_fully_sharded_training_of_7b_on_128_h100_is_inside_the_band() -> None:
    """llm-foundry, large scale: 768 sequences of 2048, micro-batch 6, fused attention, 654 a second."""
    model = replace(megatron_gpt(name="mpt-7b", num_heads=32, hidden_size=4096, num_layers=32), vocab_size=50368)
    layout = ParallelLayout(dp=128, zero_stage=3, micro_batch_size=6, recompute=Recompute.SELECTIVE)
    precision = PrecisionSpec(parameters=NumberFormat.FP32)
    predicted_s = step_s(model, layout, sequence_length_tokens=2048, num_sequences=768, precision=precision)
    assert predicted_s == pytest.approx(768 / 654, rel=BAND)


def test_a_single_rank_neither_communicates_nor_waits() -> None:
    terms = step_breakdown(job(GPT2), ParallelLayout(dp=1, num_micro_batches=256), shape=H100, ranks_per_node=1)
    assert {name for name, seconds in terms.items() if seconds > 0} == {
        "matmul", "attention", "elementwise", "optimizer",
    }  # fmt: skip


def test_a_tensor_group_that_leaves_its_node_is_slower() -> None:
    layout = ParallelLayout(dp=1, tp=8, num_micro_batches=256)
    inside, outside = (
        step_breakdown(job(LLAMA2_70B), layout, shape=H100, ranks_per_node=ranks)["tensor_parallel"] for ranks in (8, 4)
    )
    assert outside > inside


def test_an_offloaded_optimizer_runs_on_the_host_and_hides_only_its_traffic() -> None:
    layout = ParallelLayout(dp=8, zero_stage=2, num_micro_batches=32)
    here, away = (
        step_breakdown(job(LLAMA2_7B), replace(layout, offload=offload), shape=H100, ranks_per_node=8)
        for offload in (Offload.NONE, Offload.OPTIMIZER_HOST)
    )
    assert (here["offload_traffic"], here["offload_update"], away["optimizer"]) == (0, 0, 0)
    assert away["offload_update"] > 5 * here["optimizer"]
    moved_s = offload_terms_s(job(LLAMA2_7B), LayoutTable.of([replace(layout, offload=Offload.OPTIMIZER_HOST)]), H100)
    assert 0 < away["offload_traffic"] < 0.2 * moved_s["offload_traffic"][0]
    others = here.keys() - {"offload_traffic", "offload_update", "optimizer"}
    assert all(away[name] == here[name] for name in others)


def test_lora_counts_no_weight_gradients_of_frozen_matrices() -> None:
    full, lora = model_flop_per_step(job(LLAMA2_7B)), model_flop_per_step(job(LLAMA2_7B, lora_rank=8))
    assert 0.6 * full < lora < 0.8 * full


def test_an_accelerator_without_the_format_has_no_peak() -> None:
    with pytest.raises(KeyError):
        peak_flop_per_s(node_shape("p4d.24xlarge"), NumberFormat.FP8)


def test_recomputation_counts_for_the_hardware_and_not_for_the_model() -> None:
    """A full second forward pass is a third more, but for the logits (Korthikanti et al. 2022, appendix A)."""
    table = LayoutTable.of(
        [
            ParallelLayout(dp=1, recompute=recompute, recompute_modules=(RecomputeModule.MLP,))
            for recompute in (Recompute.NONE, Recompute.SELECTIVE, Recompute.MODULES, Recompute.FULL)
        ]
    )
    none, selective, mlp, full = hardware_flop_per_step(job(LLAMA2_7B), table) / model_flop_per_step(job(LLAMA2_7B))
    assert none == selective == 1
    assert 1 < mlp < full == pytest.approx(4 / 3, rel=0.01)


def test_every_product_that_a_set_of_modules_computes_again_counts_for_the_hardware() -> None:
    """torchtitan's policy repeats keys, attention's output and the gate's branch: 3 of the 7 products of a layer."""
    h, width, num_layers = 4096, 11008, 32
    sets = ((RecomputeModule.QKV,), (RecomputeModule.EVERY_SECOND_PRODUCT,), (RecomputeModule.NORMS,))
    table = LayoutTable.of(
        [ParallelLayout(dp=1, recompute=Recompute.MODULES, recompute_modules=modules) for modules in sets]
    )
    here = job(LLAMA2_7B)
    again_C = (hardware_flop_per_step(here, table) - model_flop_per_step(here)) / here.tokens_per_step / num_layers
    assert again_C == pytest.approx([2 * h * 3 * h, 2 * h * (h + h + width), 0])


layouts = st.builds(
    ParallelLayout, dp=st.sampled_from([1, 2, 8, 64]), tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]), zero_stage=st.integers(0, 3), micro_batch_size=st.sampled_from([1, 2]),
    num_micro_batches=st.sampled_from([1, 4, 32]), recompute=st.sampled_from(Recompute),
)  # fmt: skip
models = st.sampled_from([LLAMA2_7B, LLAMA31_8B, MIXTRAL_8X7B, GPT2])


@settings(max_examples=25, deadline=None)
@given(model=models, layout=layouts)
def test_no_term_is_negative_and_more_bandwidth_never_slows_a_step(model: ModelShape, layout: ParallelLayout) -> None:
    faster = replace(
        H100,
        inter_node_bandwidth_bytes_per_s=2 * H100.inter_node_bandwidth_bytes_per_s,
        intra_node_bandwidth_bytes_per_s=2 * H100.intra_node_bandwidth_bytes_per_s,
    )
    terms = step_breakdown(job(model), layout, shape=H100, ranks_per_node=min(8, layout.world_size))
    assert min(terms.values()) >= 0
    assert step_s(model, layout, shape=faster) <= step_s(model, layout) * (1 + 1e-12)


@settings(max_examples=25, deadline=None)
@given(model=models, layout=layouts)
def test_a_step_is_never_faster_than_the_peak_allows(model: ModelShape, layout: ParallelLayout) -> None:
    work = job(model, num_sequences=layout.global_batch_size)
    peak = peak_flop_per_s(H100, NumberFormat.BF16) * layout.world_size
    seconds = step_breakdown(work, layout, shape=H100, ranks_per_node=min(8, layout.world_size)).values()
    assert math.fsum(seconds) > model_flop_per_step(work) / peak


@settings(max_examples=25, deadline=None)
@given(model=models, rows=st.lists(layouts, min_size=1, max_size=4))
def test_many_layouts_at_once_cost_what_each_costs_alone(model: ModelShape, rows: list[ParallelLayout]) -> None:
    ranks = [min(8, row.world_size) for row in rows]
    terms = step_terms(job(model), LayoutTable.of(rows), Machine(shape=H100, ranks_per_node_C=np.array(ranks)))
    for index, row in enumerate(rows):
        alone = step_breakdown(job(model), row, shape=H100, ranks_per_node=ranks[index])
        assert {name: float(values[index]) for name, values in terms.items()} == pytest.approx(alone)


@settings(max_examples=25, deadline=None)
@given(model=models, layout=layouts)
def test_a_higher_peak_never_slows_a_step(model: ModelShape, layout: ParallelLayout) -> None:
    """Where the host does not bind: a device that waits for it hides less traffic the faster it is."""
    recorded = Software(recorded_launches=True)
    peaks = {number_format: 2 * rate for number_format, rate in H100.accelerator.peak_flop_per_s.items()}
    faster = replace(H100, accelerator=replace(H100.accelerator, peak_flop_per_s=peaks))
    slow_s, fast_s = (step_s(model, layout, shape=shape, software=recorded) for shape in (H100, faster))
    assert fast_s <= slow_s * (1 + 1e-12)


@settings(max_examples=25, deadline=None)
@given(model=models, layout=layouts)
def test_more_replicas_at_the_same_global_batch_never_raise_compute(model: ModelShape, layout: ParallelLayout) -> None:
    batched = replace(layout, num_micro_batches=2 * layout.num_micro_batches)
    doubled = replace(layout, dp=2 * layout.dp)
    few, many = (
        step_breakdown(job(model), each, shape=H100, ranks_per_node=min(8, each.world_size))
        for each in (batched, doubled)
    )
    assert all(many[name] <= few[name] * (1 + 1e-12) for name in ("matmul", "attention", "elementwise", "recompute"))
