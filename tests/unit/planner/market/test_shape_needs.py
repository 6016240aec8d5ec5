"""A run planned anew for each node shape: how many nodes it takes, for how long, or why it cannot run there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.domain.workload import (
    BatchPhase,
    BudgetSpec,
    CapacityWish,
    ModelShape,
    NumberFormat,
    PrecisionSpec,
    WorkloadSpec,
)
from airflow_llmsched.planner.market.shape_needs import MAX_COUNTS, plan_shape
from airflow_llmsched.planner.perf.calibration import packaged
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from tests.support.models import LLAMA2_7B, LLAMA2_70B
from tests.support.specs import load_small

SOLVER = BestFitSolver()


def job(model: ModelShape = LLAMA2_7B, *, num_sequences: int = 256, num_steps: int = 1000, **changes) -> WorkloadSpec:
    spec = load_small()
    return replace(
        spec,
        model=model,
        batch=(BatchPhase(from_tokens=0, sequence_length_tokens=4096, num_sequences=num_sequences),),
        budget=BudgetSpec(num_steps=num_steps),
        launcher=replace(spec.launcher, command=("train",)),
        **{"precision": PrecisionSpec(), "capacity": CapacityWish(), **changes},
    )


def test_more_nodes_are_listed_only_as_far_as_they_end_sooner() -> None:
    needs = plan_shape(job(), node_shape("p5.48xlarge"), solver=SOLVER)
    assert not isinstance(needs, str)
    assert needs[0].num_nodes == 1
    assert 2 < len(needs) <= MAX_COUNTS
    assert [each.num_nodes for each in needs] == sorted({each.num_nodes for each in needs})
    assert [each.work_s for each in needs] == sorted((each.work_s for each in needs), reverse=True)


def test_the_first_count_is_the_fewest_that_hold_the_model() -> None:
    needs = plan_shape(job(LLAMA2_70B), node_shape("p4d.24xlarge"), solver=SOLVER)
    assert not isinstance(needs, str)
    fewest = needs[0].num_nodes
    assert fewest > 1
    for fewer in range(1, fewest):
        refusal = plan_shape(job(LLAMA2_70B), node_shape("p4d.24xlarge"), solver=SOLVER, num_nodes=fewer)
        assert isinstance(refusal, str)


def test_twice_the_steps_take_twice_as_long() -> None:
    once, twice = (
        plan_shape(job(num_steps=steps), node_shape("p5.48xlarge"), solver=SOLVER, num_nodes=2) for steps in (500, 1000)
    )
    assert not isinstance(once, str)
    assert not isinstance(twice, str)
    assert twice[0].work_s == pytest.approx(2 * once[0].work_s)


def test_a_shape_that_cannot_hold_the_model_on_any_count_says_so() -> None:
    small = job(LLAMA2_70B, capacity=CapacityWish(max_ranks=8))
    refusal = plan_shape(small, node_shape("p4d.24xlarge"), solver=SOLVER)
    assert isinstance(refusal, str)
    assert "needs more memory than the accelerator has" in refusal


def test_a_shape_without_the_number_format_says_so() -> None:
    spec = job(precision=PrecisionSpec(compute=NumberFormat.FP8))
    refusal = plan_shape(spec, node_shape("p4d.24xlarge"), solver=SOLVER)
    assert isinstance(refusal, str)
    assert "no such number format" in refusal


def test_bounds_on_ranks_bound_the_nodes() -> None:
    needs = plan_shape(job(capacity=CapacityWish(min_ranks=16, max_ranks=32)), node_shape("p5.48xlarge"), solver=SOLVER)
    assert not isinstance(needs, str)
    assert {each.num_nodes for each in needs} <= {2, 3, 4}
    refusal = plan_shape(
        job(capacity=CapacityWish(min_ranks=19, max_ranks=19)), node_shape("p5.48xlarge"), solver=SOLVER
    )
    assert refusal == "on which no number of ranks divides batch and model within the spec's bounds"


def test_wishes_about_levels_of_a_topology_that_is_not_known_yet_hold() -> None:
    """A lease is asked for in one placement scope."""
    wish = PlacementWish(group=RankGroup.GANG, level="block", required=True)
    with_wish = plan_shape(job(placement=(wish,)), node_shape("p5.48xlarge"), solver=SOLVER)
    assert with_wish == plan_shape(job(), node_shape("p5.48xlarge"), solver=SOLVER)


def test_the_layout_that_is_timed_fits_the_nodes_and_not_fewer() -> None:
    """Or a count would be paid for of which a part stands idle."""
    one, two = (
        plan_shape(job(), node_shape("p5.48xlarge"), solver=SOLVER, num_nodes=num_nodes) for num_nodes in (1, 2)
    )
    assert not isinstance(one, str)
    assert not isinstance(two, str)
    assert 0.45 < two[0].work_s / one[0].work_s < 0.65


def test_machines_that_were_measured_to_be_slower_take_longer() -> None:
    known = packaged()
    rates = known.kinds["hopper"].rates
    slower = replace(known.kinds["hopper"], rates=replace(rates, matmul_ratio=rates.matmul_ratio / 2))
    kept = replace(known, kinds={**known.kinds, "hopper": slower})
    shape = node_shape("p5.48xlarge")
    usual, measured = (plan_shape(job(), shape, solver=SOLVER, num_nodes=1, calibration=each) for each in (None, kept))
    assert isinstance(usual, tuple)
    assert isinstance(measured, tuple)
    assert measured[0].work_s > 1.2 * usual[0].work_s
