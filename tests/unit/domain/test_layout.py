from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, Recompute, RecomputeModule

DEGREE = st.integers(min_value=1, max_value=64)


@given(DEGREE, DEGREE, DEGREE, DEGREE, DEGREE)
def test_expert_parallelism_divides_data_parallelism_and_adds_no_ranks(dp, tp, pp, cp, ep):
    assert ParallelLayout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep).world_size == dp * tp * pp * cp


@given(DEGREE, DEGREE, DEGREE)
def test_the_batch_counts_every_sequence_of_a_step(dp, micro, num_micro):
    layout = ParallelLayout(dp=dp, tp=8, micro_batch_size=micro, num_micro_batches=num_micro)
    assert layout.global_batch_size == dp * micro * num_micro


def test_the_short_form_leaves_out_degrees_of_one_but_dp():
    assert ParallelLayout(dp=1, tp=8, micro_batch_size=2, num_micro_batches=4).describe() == (
        "dp=1 tp=8 zero=0 micro=2x4"
    )


def test_what_is_computed_again_is_told_by_the_parts_of_layers():
    kept = ParallelLayout(dp=1, micro_batch_size=1, num_micro_batches=1)
    assert kept.describe_recompute() == "recompute=none"
    parts = replace(
        kept,
        recompute=Recompute.MODULES,
        recompute_modules=(RecomputeModule.CORE_ATTENTION, RecomputeModule.NORMS),
    )
    assert parts.describe_recompute() == "recompute=core_attn+layernorm"
