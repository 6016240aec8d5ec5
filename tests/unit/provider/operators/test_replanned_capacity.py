"""A task that rents without being told how many nodes of which shape: the planner says so for each shape on offer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.errors import CapacityError
from airflow_llmsched.provider import run_files
from tests.support.pipeline import TRAINER, plain_spec
from tests.support.provider_cloud import opened_by_the_provider
from tests.support.sim_cloud import SimCloudHarness, sim_pool

A100, H100, OTHER = "p4d.24xlarge", "p5.48xlarge", "z9.metal"


def _spec(model: str, **changes):
    spec = plain_spec(
        model={"preset": model},
        batch={"sequence_length": 4096, "global_batch": "64 sequences"},
        budget={"steps": 1000},
        launcher={"kind": "plain", "command": list(TRAINER)},
        **{"capacity": {}, **changes},
    )
    return {name: block for name, block in spec.items() if name not in ("communication", "memory")}


@pytest.fixture
def market():
    """Two shapes on demand, of which a node of the first costs less by the hour."""
    pools = [
        sim_pool(zone, shape=shape, usd_per_hour=usd_per_hour, start_up_s=0.0, num_free=64)
        for zone, shape, usd_per_hour in (("a", A100, 22.0), ("b", H100, 44.0), ("c", OTHER, 0.01))
    ]
    harness = SimCloudHarness(*pools, clock=SystemClock(), consistency_s=0.0)
    with opened_by_the_provider(harness):
        yield harness


def _opened(make_pipeline, model: str, **changes):
    pipeline = make_pipeline()
    pipeline.spec = _spec(model, **changes)
    pipeline.run("open_run", rents_capacity=True)
    pipeline.run("stage_dataset")
    return pipeline


def test_a_dearer_shape_that_is_cheaper_to_the_end_is_rented_and_planned_on(make_pipeline, market):
    pipeline = _opened(make_pipeline, "llama-2-7b")
    rented = pipeline.run("provision", shapes=())
    assert rented["shape"] == H100
    assert len(market.billed()) == rented["num_nodes"]
    pipeline.run("plan_training")
    best = run_files.read_plan(pipeline.scope).plans[0]
    assert best.node_shape == H100
    assert set(best.placement.nodes) <= market.billed()
    assert len(best.placement.nodes) == rented["num_nodes"]


def test_the_cheapest_shape_by_the_hour_cannot_hold_the_model_and_another_is_rented(make_pipeline, market):
    market.pools[0].offer = replace(market.pools[0].offer, usd_per_hour=0.01)
    pipeline = _opened(make_pipeline, "llama-3.1-70b", capacity={"max_ranks": 32})
    assert pipeline.run("provision", shapes=())["shape"] == H100
    fits_a100 = _opened(make_pipeline, "llama-3.1-70b", capacity={"max_ranks": 64})
    fits_a100.clear()
    assert fits_a100.run("provision", shapes=())["shape"] == A100


def test_a_shape_the_planner_does_not_know_is_named_where_nothing_could_be_had(make_pipeline, market):
    for pool in market.pools:
        pool.num_free = 0
    pipeline = _opened(make_pipeline, "llama-2-7b")
    with pytest.raises(CapacityError, match=r"1 node shape z9\.metal, whose hardware the planner does not know"):
        pipeline.run("provision", shapes=[A100, H100, OTHER], wait="0s")
    assert not market.billed()


def test_a_run_that_no_shape_can_hold_is_told_so_at_once_and_not_after_the_wait(make_pipeline, market):
    pipeline = _opened(make_pipeline, "llama-3.1-70b")
    with pytest.raises(AirflowFailException, match=r"p4d\.24xlarge, on which the run cannot be planned"):
        pipeline.run("provision", shapes={A100: {"num_nodes": 1}}, wait="9h")
    assert not market.billed()


def test_a_deadline_is_worth_more_nodes(make_pipeline, market):
    at_leisure = _opened(make_pipeline, "llama-2-7b")
    few = at_leisure.run("provision", shapes=[H100])["num_nodes"]
    at_leisure.run("release")
    hurried = make_pipeline(dag_id="hurried")
    hurried.spec = _spec("llama-2-7b")
    hurried.spec["budget"] = {"steps": 1000, "deadline": "40min"}
    hurried.run("open_run", rents_capacity=True)
    assert hurried.run("provision", shapes=[H100])["num_nodes"] > few
