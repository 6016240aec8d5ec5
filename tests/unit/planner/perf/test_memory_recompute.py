from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, Recompute, RecomputeModule
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import ExpertShape, ModelShape
from airflow_llmsched.planner.layout_table import MODULE_BIT, LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.layers import LayerKind
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory import memory_breakdown, memory_totals
from airflow_llmsched.planner.perf.memory_recompute import (
    CHOICES,
    LayerOption,
    RecomputedLayers,
    again_s_by_stage,
    best_layers,
    cheapest,
    modules_of,
)
from airflow_llmsched.planner.perf.micro_batch import slowest_micro_batch
from airflow_llmsched.units import GIB
from tests.support.fleets import job
from tests.support.models import LLAMA2_7B, MIXTRAL_8X7B

H100 = node_shape("p5.48xlarge")
UNFUSED = Software(fused_attention=False)
MIXED_KINDS = replace(
    MIXTRAL_8X7B, name="mixed", num_layers=6,
    experts=ExpertShape(num_routed=8, num_active=2, expert_hidden_size=14336, num_dense_layers_first=3),
)  # fmt: skip


def machine_of(num: int = 1) -> Machine:
    return Machine(shape=H100, ranks_per_node_C=np.full(num, 8))


def again_s(one: TransformerJob, layout: ParallelLayout, modules: int) -> float:
    """Seconds of recomputation on the slowest stage, as the step's own terms price them."""
    chosen = replace(layout, recompute=Recompute.MODULES, recompute_modules=modules_of(modules))
    return float(slowest_micro_batch(one, LayoutTable.of([chosen]), machine_of()).terms_s["recompute"][0])


def needed(one: TransformerJob, layout: ParallelLayout, modules: int) -> int:
    chosen = replace(layout, recompute=Recompute.MODULES, recompute_modules=modules_of(modules))
    return sum(memory_breakdown(one, chosen).values())


def test_what_the_runtime_holds_is_not_there_for_activations() -> None:
    one, layout = job(LLAMA2_7B), ParallelLayout(dp=1, tp=8)
    capacity = needed(one, layout, 0) + 64
    roomy = best_layers(one, layout, machine_of(), capacity_bytes=capacity)
    tight = best_layers(one, layout, machine_of(), capacity_bytes=capacity, reserved_bytes=GIB // 4)
    assert roomy is not None
    assert [each.modules for each in roomy] == [()]
    assert tight is not None
    assert any(each.modules for each in tight)


@pytest.mark.parametrize("model", [replace(LLAMA2_7B, num_layers=4), MIXED_KINDS], ids=lambda model: model.name)
@pytest.mark.parametrize("pp", [1, 2])
def test_layer_by_layer_never_costs_more_than_all_layers_alike_and_fits(model: ModelShape, pp: int) -> None:
    """Between what the leanest and the fullest choice need, at every quarter."""
    one, layout = job(model, software=UNFUSED), ParallelLayout(dp=1, tp=2, pp=pp, num_micro_batches=4)
    sizes = [needed(one, layout, modules) for modules in CHOICES]
    for quarter in range(5):
        capacity = min(sizes) + (max(sizes) - min(sizes)) * quarter / 4
        layers = best_layers(one, layout, machine_of(), capacity_bytes=capacity + 64)
        fitting = [modules for modules, size in zip(CHOICES, sizes, strict=True) if size <= capacity]
        alike_s = min(_again_s_alike(one, layout, modules) for modules in fitting)
        assert layers is not None
        assert sum(each.num_layers for each in layers) == model.num_layers
        assert _again_s(one, layout, layers) <= alike_s * (1 + 1e-9)
        assert all(modules_of(0) == each.modules for each in layers) == (capacity == max(sizes))


def _again_s_alike(one: TransformerJob, layout: ParallelLayout, modules: int) -> float:
    """Sum over all layers, whatever their stage."""
    whole = replace(layout, pp=1)
    return again_s(one, whole, modules)


def _again_s(one: TransformerJob, layout: ParallelLayout, layers: tuple) -> float:  # type: ignore[type-arg]
    kinds = {each.kind for each in layers}
    total = 0.0
    for each in layers:
        bits = sum(MODULE_BIT[module] for module in each.modules)
        if len(kinds) == 1:
            total += again_s(one, replace(layout, pp=1), bits) * each.num_layers / one.model.num_layers
            continue
        experts = one.model.experts
        assert experts is not None
        dense = 2 if not each.kind.is_moe else 0
        alone = replace(
            one, model=replace(one.model, num_layers=2, experts=replace(experts, num_dense_layers_first=dense))
        )
        total += again_s(alone, replace(layout, pp=1), bits) * each.num_layers / 2
    return total


def test_no_choice_is_an_answer_too() -> None:
    assert best_layers(job(LLAMA2_7B), ParallelLayout(dp=1), machine_of(), capacity_bytes=GIB) is None


options = st.lists(
    st.builds(
        LayerOption, modules=st.integers(0, 31), kept_bytes=st.integers(0, 9).map(float),
        peak_bytes=st.integers(0, 9).map(float), again_s=st.integers(0, 9).map(float),
    ), min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    options_K=st.lists(options, min_size=1, max_size=2), nums=st.lists(st.integers(0, 3), min_size=2, max_size=2),
    scale=st.sampled_from([1.0, 2.5]), budget=st.integers(0, 60), least=st.integers(0, 12),
)  # fmt: skip
def test_cheapest_equals_brute_force(
    options_K: list[list[LayerOption]], nums: list[int], scale: float, budget: int, least: int
) -> None:
    """Every assignment of an option to every layer."""
    num_K = nums[: len(options_K)]
    layers = [kind for kind, num in enumerate(num_K) for _ in range(num)]
    best_s = None
    for chosen in itertools.product(*(options_K[kind] for kind in layers)):
        peak = max([float(least), *(option.peak_bytes for option in chosen)])
        if scale * sum(option.kept_bytes for option in chosen) + peak <= budget:
            cost_s = sum(option.again_s for option in chosen)
            best_s = cost_s if best_s is None else min(best_s, cost_s)
    found = cheapest(options_K, num_K, kept_scale=scale, budget_bytes=budget, least_peak_bytes=least)
    if best_s is None:
        assert found is None
        return
    assert found is not None
    assert [sum(numbers) for numbers in found] == num_K
    cost_s = sum(
        number * option.again_s
        for options_, numbers in zip(options_K, found, strict=True)
        for option, number in zip(options_, numbers, strict=True)
    )
    assert cost_s == best_s


@pytest.mark.parametrize("modules", [(), (RecomputeModule.NORMS, RecomputeModule.MLP)])
@pytest.mark.parametrize("policy", [Recompute.FULL, Recompute.MODULES])
def test_what_stages_compute_again_is_what_the_step_is_charged_for(
    policy: Recompute, modules: tuple[RecomputeModule, ...]
) -> None:
    """On one stage, for all layers alike, by policy and by the same choice spelled out."""
    one = job(LLAMA2_7B, software=UNFUSED)
    layout = ParallelLayout(dp=1, recompute=policy, recompute_modules=modules)
    charged_s = float(slowest_micro_batch(one, LayoutTable.of([layout]), machine_of()).terms_s["recompute"][0])
    assert again_s_by_stage(one, layout, machine_of()) == [pytest.approx(charged_s)]
    if policy is Recompute.MODULES:
        spelled = [RecomputedLayers(stage=0, kind=LayerKind(), modules=modules, num_layers=32)]
        assert again_s_by_stage(one, layout, machine_of(), spelled) == [pytest.approx(charged_s)]


def test_modules_have_names() -> None:
    assert modules_of(MODULE_BIT[RecomputeModule.NORMS] | MODULE_BIT[RecomputeModule.QKV]) == (
        RecomputeModule.NORMS, RecomputeModule.QKV,
    )  # fmt: skip


def test_all_layers_alike_is_what_the_memory_model_says() -> None:
    table = LayoutTable.of([ParallelLayout(dp=1, tp=8, recompute=Recompute.MODULES)])
    assert memory_totals(job(LLAMA2_7B), table)[0] == needed(job(LLAMA2_7B), ParallelLayout(dp=1, tp=8), 0)
