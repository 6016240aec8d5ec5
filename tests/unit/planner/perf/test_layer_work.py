"""The operations of a layer: their matrix products are those that FLOP counts know, and splits divide them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.flops import layer_flops
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.layer_work import LayerWork
from airflow_llmsched.planner.perf.layers import distinct_kinds
from airflow_llmsched.planner.perf.ops import Device, Part
from airflow_llmsched.planner.perf.rates import Rates
from tests.support.fleets import job
from tests.support.models import DEEPSEEK_V3, GEMMA2_9B, LLAMA2_7B, LLAMA2_70B, MIXTRAL_8X7B

IDEAL = Rates(
    matmul_ratio=1.0, matmul_half_depth_size=0.0, matmul_half_area_size=0.0, attention_ratio=1.0, memory_ratio=1.0,
    kernel_s=0.0,
)  # fmt: skip
H100 = node_shape("p5.48xlarge").accelerator
PEAK = 9.895e14
MEMORY_IS_FREE = replace(H100, memory_bandwidth_bytes_per_s=1e30)


DEEPSEEK_V3_DENSE = replace(DEEPSEEK_V3, experts=None, num_predict_ahead_layers=0)


def work(task: TransformerJob, layout: ParallelLayout, accelerator=H100) -> LayerWork:  # type: ignore[no-untyped-def]
    return LayerWork(job=task, table=LayoutTable.of([layout]), device=Device.of(task, accelerator, IDEAL))


def seconds(built: LayerWork, model: ModelShape, *, phase: str = "forward", part: Part | None = None) -> float:
    operations = [each for each in built.operations(distinct_kinds(model)[-1]) if part in {None, each.part}]
    return sum(float(np.squeeze(getattr(each, phase).total_s)) for each in operations)


@pytest.mark.parametrize("model", [LLAMA2_7B, LLAMA2_70B, GEMMA2_9B, DEEPSEEK_V3_DENSE], ids=lambda model: model.name)
def test_with_free_memory_and_ideal_rates_a_layer_takes_its_operations(model: ModelShape) -> None:
    """Scores apart: a fused kernel skips half of them, for the mask."""
    flops = layer_flops(model, distinct_kinds(model)[0], sequence_length_tokens=4096)
    built = work(job(model), ParallelLayout(dp=1, micro_batch_size=2), MEMORY_IS_FREE)
    products_s = seconds(built, model) - seconds(built, model, part=Part.CORE)
    assert products_s * PEAK == pytest.approx(2 * 4096 * flops.matmul_flop)
    backward_s = seconds(built, model, phase="backward") - seconds(built, model, phase="backward", part=Part.CORE)
    assert backward_s == pytest.approx(2 * products_s)
    assert seconds(built, model, phase="weight_gradient") == pytest.approx(products_s)


def test_tensor_parallelism_does_not_divide_the_way_to_a_latent() -> None:
    whole, split = (work(job(DEEPSEEK_V3_DENSE), ParallelLayout(dp=1, tp=tp), MEMORY_IS_FREE) for tp in (1, 8))
    down_s = 4096 * 2 * 7168 * (1536 + 512 + 64) / PEAK
    whole_s, split_s = (seconds(each, DEEPSEEK_V3_DENSE, part=Part.QKV) for each in (whole, split))
    assert split_s - down_s == pytest.approx((whole_s - down_s) / 8)


def test_a_layer_with_four_norms_takes_twice_the_time_of_two_in_them() -> None:
    two = replace(GEMMA2_9B, num_norms_per_layer=2)
    four_s, two_s = (
        seconds(work(job(model), ParallelLayout(dp=1)), model, part=Part.NORMS) for model in (GEMMA2_9B, two)
    )
    assert four_s == pytest.approx(2 * two_s)


def test_experts_of_one_rank_compute_for_the_tokens_of_all() -> None:
    """With balanced load each rank has as many copies of tokens as without expert parallelism, and padding is small."""
    balanced = replace(job(MIXTRAL_8X7B), software=Software(expert_load_ratio=1.0))
    alone, spread = (work(balanced, ParallelLayout(dp=8, ep=ep, micro_batch_size=8), MEMORY_IS_FREE) for ep in (1, 8))
    assert seconds(alone, MIXTRAL_8X7B) == pytest.approx(seconds(spread, MIXTRAL_8X7B), rel=0.05)
    flops = layer_flops(MIXTRAL_8X7B, distinct_kinds(MIXTRAL_8X7B)[-1], sequence_length_tokens=4096)
    assert seconds(alone, MIXTRAL_8X7B, part=Part.MLP) * PEAK == pytest.approx(8 * 4096 * flops.mlp_flop, rel=0.05)


def test_tensor_parallelism_divides_products_and_sequence_parallelism_the_rest() -> None:
    whole, split, unsplit = (
        work(job(LLAMA2_7B), layout)
        for layout in (
            ParallelLayout(dp=1), ParallelLayout(dp=1, tp=4), ParallelLayout(dp=1, tp=4, sequence_parallel=False)
        )
    )  # fmt: skip
    assert seconds(split, LLAMA2_7B, part=Part.NORMS) == pytest.approx(seconds(whole, LLAMA2_7B, part=Part.NORMS) / 4)
    assert seconds(unsplit, LLAMA2_7B, part=Part.NORMS) == seconds(whole, LLAMA2_7B, part=Part.NORMS)
    assert seconds(split, LLAMA2_7B, part=Part.CORE) == pytest.approx(seconds(whole, LLAMA2_7B, part=Part.CORE) / 4)


def test_unfused_attention_pays_for_writing_scores_and_for_what_the_mask_hides() -> None:
    fused = work(job(LLAMA2_7B), ParallelLayout(dp=1))
    task = replace(job(LLAMA2_7B), software=Software(fused_attention=False))
    unfused = work(task, ParallelLayout(dp=1))
    assert seconds(unfused, LLAMA2_7B, part=Part.CORE) > 2 * seconds(fused, LLAMA2_7B, part=Part.CORE)


def test_a_number_of_heads_that_no_softmax_kernel_serves_costs_more_passes() -> None:
    served, other = (
        work(
            replace(job(LLAMA2_7B), software=Software(fused_attention=False, num_heads_per_softmax=multiple)),
            ParallelLayout(dp=1, tp=16),
        )
        for multiple in (2, 4)
    )
    assert seconds(other, LLAMA2_7B, part=Part.CORE) > seconds(served, LLAMA2_7B, part=Part.CORE)


def test_fused_elementwise_work_moves_less() -> None:
    plain = work(job(LLAMA2_7B), ParallelLayout(dp=1))
    fused = work(replace(job(LLAMA2_7B), software=Software(fused_elementwise=True)), ParallelLayout(dp=1))
    for part in (Part.NORMS, Part.ACTIVATION):
        assert seconds(fused, LLAMA2_7B, part=part) < seconds(plain, LLAMA2_7B, part=part)
