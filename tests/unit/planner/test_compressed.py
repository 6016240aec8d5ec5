from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.workload import CompressionKind, GradientCompression
from airflow_llmsched.planner.compressed import compressed, words
from airflow_llmsched.planner.perf.compression import METHODS
from airflow_llmsched.planner.perf.hardware import node_shape
from tests.support.fleets import plan_of, workload
from tests.support.models import GPT2, LLAMA2_70B

H100 = node_shape("p5.48xlarge")
SLOW = replace(H100, inter_node_bandwidth_bytes_per_s=1e8)


def test_what_compression_would_save_is_shown_with_its_risk_shortest_first() -> None:
    run = workload(GPT2)
    told = words(run, plan_of(run, ParallelLayout(dp=64, zero_stage=1, num_micro_batches=4), SLOW), SLOW)
    assert told.startswith("Compressing gradients was not asked for, and may cost accuracy.")
    kinds = [line.split(":")[0].strip() for line in told.splitlines()[1:]]
    assert {"power_sgd", "1bit"} <= set(kinds)
    for kind in kinds:
        assert METHODS[CompressionKind(kind)].risk in told


def test_where_it_saves_nothing_nothing_is_said() -> None:
    run = workload(GPT2)
    assert words(run, plan_of(run, ParallelLayout(dp=8, num_micro_batches=32), H100), H100) == ""
    assert words(run, plan_of(run, ParallelLayout(dp=1, num_micro_batches=256), SLOW), SLOW) == ""


def test_who_asked_for_it_is_told_the_risk() -> None:
    run = workload(GPT2, compression=GradientCompression(kind=CompressionKind.ONE_BIT))
    told = words(run, plan_of(run, ParallelLayout(dp=64, num_micro_batches=4), SLOW), SLOW)
    assert told == f"Gradients are compressed (1bit). {METHODS[CompressionKind.ONE_BIT].risk}"


def test_what_does_not_fit_unsharded_is_not_offered() -> None:
    run = workload(LLAMA2_70B)
    plan = plan_of(run, ParallelLayout(dp=64, zero_stage=3, num_micro_batches=4), SLOW)
    assert not any(each.fits for each in compressed(run, plan, SLOW))
    assert words(run, plan, SLOW) == ""
