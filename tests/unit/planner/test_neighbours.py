from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.workload import ParallelismWish, WorkloadSpec
from airflow_llmsched.planner.export.filter import expressible_by
from airflow_llmsched.planner.layout_rules import LayoutRule
from airflow_llmsched.planner.neighbours import Neighbour, neighbours, term_changes_s
from airflow_llmsched.planner.perf.calibration import Calibration, FittedKind, rates_of
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, machine_of, workload
from tests.support.models import LLAMA31_8B, QWEN3_30B_A3B

PINNED = ParallelismWish(
    dp=2, tp=8, pp=1, cp=1, zero_stage=1, micro_batch_size=1, recompute=Recompute.SELECTIVE
)  # fmt: skip


def best(run: WorkloadSpec) -> Plan:
    return search(run, fleet(2), node_shapes(), solver=BestFitSolver()).plans[0]


def around(run: WorkloadSpec, plan: Plan | None = None) -> tuple[Neighbour, ...]:
    plan = plan or best(run)
    return neighbours(run, plan, machine_of(plan, fleet(2), node_shapes()["p5.48xlarge"]))


def of(found: Sequence[Neighbour], field: str) -> dict[object, Neighbour]:
    return {each.value: each for each in found if each.field == field}


@pytest.fixture(scope="module")
def split() -> tuple[Neighbour, ...]:
    """Around a plan of eight tensor-parallel ranks, none of it pinned any longer."""
    plan = best(workload(num_sequences=64, parallelism=PINNED))
    return around(workload(num_sequences=64), plan)


def test_each_neighbour_keeps_the_ranks_and_the_batch(split: tuple[Neighbour, ...]) -> None:
    assert len(split) >= 8
    for each in split:
        assert each.layout.world_size == 16
        if each.obstacle is None:
            assert each.layout.global_batch_size == 64


def test_a_neighbour_differs_in_its_field_and_in_what_makes_room_for_it(split: tuple[Neighbour, ...]) -> None:
    chosen = ParallelLayout(
        dp=2, tp=8, zero_stage=1, micro_batch_size=1, num_micro_batches=32, recompute=Recompute.SELECTIVE
    )
    for each in split:
        back = {name: getattr(chosen, name) for name in ("dp", "pp", "num_micro_batches", each.field)}
        assert replace(each.layout, **back) == chosen
        assert each.value != getattr(chosen, each.field)


def test_tensor_parallelism_beyond_the_node_is_an_obstacle_with_both_rates(split: tuple[Neighbour, ...]) -> None:
    beyond = of(split, "tp")[16]
    assert beyond.prediction is None
    assert beyond.obstacle is not None
    assert beyond.obstacle.startswith(LayoutRule.TP_INSIDE_DOMAIN)
    near, far = node_shapes()["p5.48xlarge"].levels
    assert f"{near.fabric.name} ends with 8 accelerators, each with 450 GB/s each way" in beyond.obstacle
    assert f"{far.fabric.name} beyond it has 50 GB/s for each" in beyond.obstacle


def test_where_fast_links_could_go_further_it_is_said_how_many_ranks_they_join() -> None:
    shape = node_shapes()["p6e-gb200.36xlarge"]
    run = workload(num_sequences=64, parallelism=replace(PINNED, dp=2, tp=4))
    tree = fleet(2, slots=4, shape=shape.name)
    plan = search(run, tree, node_shapes(), solver=BestFitSolver()).plans[0]
    around = neighbours(workload(num_sequences=64), plan, machine_of(plan, tree, shape))
    assert of(around, "tp")[8].obstacle == f"{LayoutRule.TP_INSIDE_DOMAIN}: nvswitch4 joins at most 4 of these ranks"


def test_fewer_tensor_parallel_ranks_are_priced_with_more_replicas(split: tuple[Neighbour, ...]) -> None:
    fewer = of(split, "tp")[4]
    assert (fewer.layout.dp, fewer.obstacle, fewer.missing_bytes) == (4, None, 0)
    assert fewer.prediction is not None
    assert fewer.prediction.step_s > 0


def test_the_prediction_is_what_a_search_predicts_for_the_same_layout(split: tuple[Neighbour, ...]) -> None:
    fewer = of(split, "tp")[4]
    same = best(workload(num_sequences=64, parallelism=replace(PINNED, dp=4, tp=4)))
    assert fewer.prediction is not None
    assert same.layout == fewer.layout
    assert fewer.prediction.step_s == pytest.approx(same.prediction.step_s)
    assert fewer.prediction.memory_bytes_per_rank == same.prediction.memory_bytes_per_rank


def test_what_does_not_fit_says_by_how_much() -> None:
    run = workload(LLAMA31_8B, num_sequences=64, sequence_length_tokens=32768)
    pins = replace(PINNED, dp=16, tp=1, zero_stage=3, recompute=Recompute.FULL)
    plan = best(replace(run, parallelism=pins))
    kept = of(around(run, plan), "recompute")[Recompute.NONE]
    assert kept.prediction is not None
    usable_bytes = node_shapes()["p5.48xlarge"].accelerator.memory_bytes * 0.95
    assert kept.missing_bytes == kept.prediction.memory_bytes_per_rank - int(usable_bytes) > 0


def test_pinned_fields_are_left_alone() -> None:
    found = around(workload(LLAMA31_8B, num_sequences=64, parallelism=PINNED))
    assert found == ()
    free = around(workload(LLAMA31_8B, num_sequences=64, parallelism=replace(PINNED, zero_stage=None)))
    assert {each.field for each in free} == {"zero_stage"}


def test_experts_have_neighbours_too_and_a_job_without_a_model_has_none() -> None:
    run = workload(QWEN3_30B_A3B, num_sequences=64)
    assert of(around(run), "ep")
    assert around(replace(run, model=None), best(run)) == ()


def test_a_pipeline_has_neighbours_of_other_chunks_and_of_another_schedule() -> None:
    run = workload(num_sequences=64)
    pins = replace(PINNED, dp=2, tp=2, pp=4, vp=1, schedule=PipelineSchedule.ONE_F_ONE_B)
    found = around(run, best(replace(run, parallelism=pins)))
    chunks, schedules = of(found, "vp"), of(found, "schedule")
    assert set(chunks) == {2}
    assert chunks[2].layout.schedule is PipelineSchedule.INTERLEAVED
    assert chunks[2].prediction is not None
    zero_bubble = schedules[PipelineSchedule.ZERO_BUBBLE].prediction
    assert zero_bubble is not None
    assert zero_bubble.step_breakdown_s["pipeline_bubble"] > 0


def test_other_numbers_of_stages_share_out_the_same_chunks() -> None:
    run = workload(num_sequences=64)
    pins = replace(PINNED, dp=2, tp=2, pp=4, vp=2, schedule=PipelineSchedule.INTERLEAVED)
    stages = of(around(run, best(replace(run, parallelism=pins))), "pp")
    assert {pp: (each.layout.vp, each.layout.schedule.value) for pp, each in stages.items()} == {
        8: (1, "1f1b"),
        2: (4, "interleaved"),
    }
    assert all(each.obstacle is None for each in stages.values())


def test_what_the_trainer_cannot_express_is_an_obstacle() -> None:
    run = workload(num_sequences=64)
    plan = best(replace(run, parallelism=PINNED))
    machine = machine_of(plan, fleet(2), node_shapes()["p5.48xlarge"])
    found = neighbours(run, plan, machine, expresses=expressible_by(["deepspeed"], run))
    split = of(found, "cp")[2]
    assert (split.prediction, split.obstacle) == (None, "the trainer cannot express it")
    assert of(found, "tp")[4].obstacle is None


def test_neighbours_reckon_with_the_calibration_that_the_plan_does() -> None:
    run, shape = workload(num_sequences=64), node_shapes()["p5.48xlarge"]
    plan = best(replace(run, parallelism=PINNED))
    slow = FittedKind(
        rates=rates_of(shape.accelerator).changed({"matmul_ratio": 0.2, "host_kernel_s": 3e-4}),
        error_ratio=0.07,
        left_out_error_ratio=0.03,
        num_rows_by_source={"run": 20},
    )
    usual, measured = (
        of(neighbours(run, plan, replace(machine_of(plan, fleet(2), shape), calibration=calibration)), "tp")[
            4
        ].prediction
        for calibration in (None, Calibration(fitted_on="2026-11-30", kinds={"hopper": slow}))
    )
    assert usual is not None
    assert measured is not None
    assert measured.error_ratio == 0.07
    assert measured.step_s > 1.3 * usual.step_s


def test_the_largest_change_of_a_term_comes_first() -> None:
    changes = term_changes_s({"a": 1.0, "b": 2.0}, {"b": 1.5, "c": 3.0})
    assert list(changes.items()) == [("c", 3.0), ("a", -1.0), ("b", -0.5)]
