from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NodeCosts, NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.workload import LauncherSpec, ObjectiveWeights
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.export.filter import expressible_by
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.calibration import Calibration, FittedKind
from airflow_llmsched.planner.perf.rates import prior_of_generation
from airflow_llmsched.planner.placement.front import Front
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.run_files import read_spec
from tests.support.specs import load_small

OPTIONS = {"num_nodes": 2, "slots_per_node": 2}


@pytest.fixture
def hook(state_root):
    return PlacementHook(engine_options=OPTIONS)


def test_the_connection_is_the_engine_below_the_state_root(hook, state_root):
    engine = hook.get_conn()
    assert isinstance(engine, LocalEngine)
    engine.preempt("n0", grace_s=0.0, return_after_s=600.0)
    assert (state_root / "engines" / "local").is_dir()
    (down,) = [node for node in hook.topology().nodes if node.unusable_reason]
    assert down.id == "n0"


def test_a_gang_that_fits_is_placed_and_one_that_does_not_says_why(hook):
    placed = hook.place(PlacementProblem(layout=ParallelLayout(dp=4), tree=hook.topology()))
    assert isinstance(placed, Placed)
    assert {slot.node for slot in placed.placement.slots} == {"n0", "n1"}
    refused = hook.place(PlacementProblem(layout=ParallelLayout(dp=5), tree=hook.topology()))
    assert isinstance(refused, NotPlaced)
    assert refused.summary


def test_what_a_gang_may_trade_is_answered_for_the_nodes_of_the_engine(hook):
    tree = hook.topology()
    costs = {NodeId("n0"): NodeCosts(usd_per_hour=9.0), NodeId("n1"): NodeCosts(usd_per_hour=1.0)}
    front = hook.trade_offs(PlacementProblem(layout=ParallelLayout(dp=2), tree=tree, node_costs=costs))
    assert isinstance(front, Front)
    assert front.best(ObjectiveWeights(cost=1)).placement.nodes == ("n1",)
    assert isinstance(hook.trade_offs(PlacementProblem(layout=ParallelLayout(dp=5), tree=tree)), NotPlaced)


def test_a_plan_uses_what_is_free_now_and_avoids_excluded_nodes(hook, make_pipeline):
    pipeline = make_pipeline(capacity={"min_ranks": 1, "max_ranks": 4})
    pipeline.run("open_run")
    spec = read_spec(pipeline.scope)
    everywhere = {slot.node for plan in hook.plan(spec).plans for slot in plan.placement.slots}
    assert everywhere == {"n0", "n1"}
    elsewhere = hook.plan(spec, excluded=frozenset({NodeId("n0")})).plans
    assert elsewhere
    assert {slot.node for plan in elsewhere for slot in plan.placement.slots} == {"n1"}


def test_plans_reckon_with_what_was_calibrated_at_the_state_root(hook, state_root):
    spec, tree = load_small(), hook.topology()
    fitted = FittedKind(
        rates=prior_of_generation("cpu"), error_ratio=0.03, left_out_error_ratio=0.01, num_rows_by_source={"run": 9}
    )
    assert hook.plan_on(spec, tree, frozenset()).plans[0].prediction.error_ratio > 0.03
    store = open_store(str(state_root))
    calibration_file.save(store, Calibration(fitted_on="2026-11-30", kinds={"cpu": fitted}))
    assert hook.plan_on(spec, tree, frozenset()).plans[0].prediction.error_ratio == 0.03


def test_a_planner_for_tools_finds_what_they_can_express_and_nothing_else(hook):
    spec, tree = replace(load_small(), launcher=LauncherSpec(command=("train",))), hook.topology()
    free, bound = (hook.planner_for(spec, tools)(spec, tree, frozenset()) for tools in ((), ("accelerate",)))
    expresses = expressible_by(["accelerate"], spec)
    by_search = [expresses(LayoutTable.of([plan.layout for plan in found.plans])) for found in (free, bound)]
    assert not by_search[0].all()
    assert by_search[1].all()
    with pytest.raises(SpecError, match="torchtitan's models"):
        hook.planner_for(spec, ("torchtitan",))


def test_the_same_question_has_the_same_answer(hook, pipeline):
    pipeline.run("open_run")
    spec, tree = read_spec(pipeline.scope), hook.topology()
    assert hook.plan_on(spec, tree, frozenset()) == hook.plan_on(spec, tree, frozenset())


def test_unknown_engines_and_solvers_name_the_known_ones(state_root):
    with pytest.raises(SpecError, match="local"):
        PlacementHook(engine="lokal").topology()
    hook = PlacementHook(engine_options=OPTIONS, solver="besfit")
    with pytest.raises(SpecError, match="bestfit"):
        hook.place(PlacementProblem(layout=ParallelLayout(dp=1), tree=hook.topology()))


def test_an_engine_that_cannot_be_asked_is_not_an_empty_one(tmp_path, state_root):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CouldNotLookError):
        PlacementHook(engine_options={**OPTIONS, "root": str(tmp_path / "file")}).topology()


def test_a_plan_on_a_fleet_heeds_the_terms_of_its_clusters(state_root, tmp_path, monkeypatch, make_pipeline):
    (tmp_path / "fleet.yaml").write_text(
        "version: 1\nclusters:\n"
        "  - {name: a, engine: local, usd_per_hour: {local-cpu: $9}}\n"
        "  - {name: b, engine: local, preference: 1, usd_per_hour: {local-cpu: $2}}\n"
    )
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", str(tmp_path / "fleet.yaml"))
    pipeline = make_pipeline(capacity={"min_ranks": 2, "max_ranks": 4})
    pipeline.run("open_run")
    spec = read_spec(pipeline.scope)
    preferred = PlacementHook(engine="fleet").plan(spec).plans
    assert {slot.node for plan in preferred for slot in plan.placement.slots} == {"b/n0", "b/n1"}
    (dear, *_) = PlacementHook(engine="a").plan(spec).plans
    assert dear.prediction.usd_per_hour == pytest.approx(4.5 * preferred[0].prediction.usd_per_hour)
