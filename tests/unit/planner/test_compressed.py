from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.workload import CompressionKind, GradientCompression, WorkloadSpec
from airflow_llmsched.planner.compressed import compressed, words
from airflow_llmsched.planner.perf.compression import METHODS
from airflow_llmsched.planner.perf.hardware import node_shape
from tests.support.fleets import full_nodes, plan_of, workload
from tests.support.models import GPT2, LLAMA2_70B

H100 = node_shape("p5.48xlarge")
SLOW = replace(H100, inter_node_bandwidth_bytes_per_s=1e8)


def told(run: WorkloadSpec, layout: ParallelLayout, shape: NodeShape) -> str:
    return words(run, plan_of(run, layout, shape), full_nodes(shape, layout))


def test_what_compression_would_save_is_shown_with_its_risk_shortest_first() -> None:
    run = workload(GPT2)
    said = told(run, ParallelLayout(dp=64, zero_stage=1, num_micro_batches=4), SLOW)
    assert said.startswith("Compressing gradients was not asked for, and may cost accuracy.")
    kinds = [line.split(":")[0].strip() for line in said.splitlines()[1:]]
    assert {"power_sgd", "1bit"} <= set(kinds)
    for kind in kinds:
        assert METHODS[CompressionKind(kind)].risk in said


def test_where_it_saves_nothing_nothing_is_said() -> None:
    run = workload(GPT2)
    assert told(run, ParallelLayout(dp=8, num_micro_batches=32), H100) == ""
    assert told(run, ParallelLayout(dp=1, num_micro_batches=256), SLOW) == ""


def test_who_asked_for_it_is_told_the_risk() -> None:
    run = workload(GPT2, compression=GradientCompression(kind=CompressionKind.ONE_BIT))
    said = told(run, ParallelLayout(dp=64, num_micro_batches=4), SLOW)
    assert said == f"Gradients are compressed (1bit). {METHODS[CompressionKind.ONE_BIT].risk}"


def test_what_does_not_fit_unsharded_is_not_offered() -> None:
    run = workload(LLAMA2_70B)
    layout = ParallelLayout(dp=64, zero_stage=3, num_micro_batches=4)
    found = compressed(run, plan_of(run, layout, SLOW), full_nodes(SLOW, layout))
    assert found
    assert not any(each.fits for each in found)
    assert told(run, layout, SLOW) == ""
