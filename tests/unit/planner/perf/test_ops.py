"""The roofline of single operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.software import AttentionKernel, Software
from airflow_llmsched.domain.workload import PrecisionSpec
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.ops import Device, Pass, sustained_peak_flop_per_s
from airflow_llmsched.planner.perf.rates import Rates
from tests.support.fleets import job
from tests.support.models import LLAMA2_7B

RATES = Rates(kernel_s=0.0)
H100 = node_shape("p5.48xlarge").accelerator


def device(compute: NumberFormat = NumberFormat.BF16, rates: Rates = RATES) -> Device:
    return Device.of(job(LLAMA2_7B, precision=PrecisionSpec(compute=compute)), H100, rates)


def test_an_endless_product_reaches_its_share_of_the_peak() -> None:
    size = 10**7
    rate = 2 * size**3 / device().product(size, size, size).matmul_s
    assert rate == pytest.approx(0.8 * H100.peak_flop_per_s[NumberFormat.BF16], rel=1e-3)


def test_a_product_of_half_depth_reaches_half_of_that() -> None:
    deep, shallow = (
        device().product(1e6, 1e6, depth).matmul_s / depth for depth in (1e9, RATES.matmul_half_depth_size)
    )
    assert shallow == pytest.approx(2 * deep, rel=1e-3)


def test_a_thin_product_is_bound_by_memory() -> None:
    rows, size = 1, 8192
    moved = 2 * (rows * size + size * size + rows * size)
    fast = replace(RATES, matmul_half_area_size=0.0, matmul_half_depth_size=0.0)
    seconds = device(rates=fast).product(rows, size, size).matmul_s
    assert seconds == pytest.approx(moved / (RATES.memory_ratio * H100.memory_bandwidth_bytes_per_s))


def test_eight_bits_are_faster_in_products_and_not_in_attention() -> None:
    narrow, wide = device(NumberFormat.FP8), device()
    assert narrow.product(8192, 8192, 8192).matmul_s < wide.product(8192, 8192, 8192).matmul_s
    attention = {"flop": 1e13, "num_keys": 4096, "head_size": 128, "num_bytes": 1e6}
    assert narrow.fused_attention(**attention).attention_s == wide.fused_attention(**attention).attention_s


def test_small_heads_and_short_sequences_slow_fused_attention_down() -> None:
    def seconds(keys: int, head_size: int) -> float:
        return float(device().fused_attention(flop=1e13, num_keys=keys, head_size=head_size, num_bytes=1).attention_s)

    assert seconds(1024, 128) > seconds(8192, 128) < seconds(8192, 64)


def test_kernels_of_earlier_years_reach_less_of_a_new_device() -> None:
    def seconds(kernel: AttentionKernel) -> float:
        task = replace(job(LLAMA2_7B), software=Software(attention_kernel=kernel))
        attention = Device.of(task, H100, RATES).fused_attention(flop=1e13, num_keys=4096, head_size=128, num_bytes=1)
        return float(attention.attention_s)

    current = seconds(AttentionKernel.CURRENT)
    assert seconds(AttentionKernel.FLASH_2) == pytest.approx(current / RATES.older_attention_ratio)
    assert seconds(AttentionKernel.FLASH_1) > seconds(AttentionKernel.FLASH_2)


def test_passes_add_up_by_kind() -> None:
    both = Pass(matmul_s=1.0, num_kernels=1) + Pass(elementwise_s=2.0, num_kernels=3).times(2)
    assert (both.matmul_s, both.elementwise_s, both.num_kernels, both.total_s) == (1.0, 4.0, 7, 5.0)


@given(m=st.integers(1, 10**5), n=st.integers(1, 10**5), k=st.integers(1, 10**5), groups=st.integers(1, 64))
def test_no_product_beats_the_peak_or_the_memory(m: int, n: int, k: int, groups: int) -> None:
    seconds = device().product(m, n, k, num_groups=groups).matmul_s
    assert seconds >= 2 * m * n * k * groups / H100.peak_flop_per_s[NumberFormat.BF16]
    assert seconds >= 2 * groups * m * n / H100.memory_bandwidth_bytes_per_s


def test_four_bits_are_sustained_at_twice_the_rate_of_eight() -> None:
    ultra, blackwell = (node_shape(name).accelerator for name in ("gb300-nvl72", "gb200-nvl72"))
    for kind in (ultra, blackwell):
        eight = kind.peak_flop_per_s[NumberFormat.FP8]
        assert sustained_peak_flop_per_s(kind, NumberFormat.FP4) == pytest.approx(2 * eight)
        assert sustained_peak_flop_per_s(kind, NumberFormat.FP8) == eight
    assert ultra.peak_flop_per_s[NumberFormat.FP4] > 2 * ultra.peak_flop_per_s[NumberFormat.FP8]
