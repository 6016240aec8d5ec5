from __future__ import annotations

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.rented_tree import tree_of
from tests.support.provider_cloud import opened_by_the_provider
from tests.support.sim_cloud import SimCloudHarness, sim_pool

OPTIONS = {"num_nodes": 3, "slots_per_node": 2}


@pytest.fixture
def hook(state_root):
    return PlacementHook(engine_options={**OPTIONS, "root": str(state_root / "engines" / "local")})


def _lends(pipeline):
    """Arguments of a task that rents two of the engine's own nodes."""
    engine_options = {**OPTIONS, "root": str(pipeline.state_root / "engines" / "local")}
    own = {"engine": "local", "engine_options": engine_options, "usd_per_hour": {"local-cpu": 1.0}}
    return {"clouds": {"onprem": own}, "shapes": {"local-cpu": {"num_nodes": 2, "work": "1h"}}}


def test_a_run_that_rented_of_its_engine_is_planned_on_that_and_nothing_else(pipeline, hook):
    assert len(tree_of(pipeline.scope, hook).nodes) == 3
    pipeline.run("provision", **_lends(pipeline))
    rented = tree_of(pipeline.scope, hook)
    assert rented.levels == hook.topology().levels
    assert [node.terms.usd_per_hour for node in rented.nodes] == [1.0, 1.0]
    pipeline.run("release")
    assert len(tree_of(pipeline.scope, hook).nodes) == 3


def test_what_has_yet_to_join_the_engine_is_planned_on_as_its_cloud_knows_it(pipeline, hook):
    pool = sim_pool("a", shape="p5.48xlarge", start_up_s=0.0)
    harness = SimCloudHarness(pool, clock=SystemClock(), consistency_s=0.0)
    with opened_by_the_provider(harness):
        pipeline.run("provision", shapes={"p5.48xlarge": {"num_nodes": 2, "work": "1h"}})
        tree = tree_of(pipeline.scope, hook)
        assert {node.id for node in tree.nodes} == harness.billed()
        assert {node.shape for node in tree.nodes} == {"p5.48xlarge"}


def test_a_rented_shape_that_the_planner_does_not_know_leaves_the_engines_nodes(pipeline, hook, sim_cloud):
    pipeline.run("provision")
    assert tree_of(pipeline.scope, hook) == hook.topology()


def test_a_cloud_that_cannot_be_asked_is_no_run_without_leases(pipeline, hook, sim_cloud):
    pipeline.run("provision")
    sim_cloud.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError):
        tree_of(pipeline.scope, hook)
