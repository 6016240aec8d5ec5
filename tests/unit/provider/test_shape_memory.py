from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.calibration import packaged
from airflow_llmsched.provider import shape_memory
from airflow_llmsched.provider.shape_memory import FILE, needs_in
from tests.support.provider_cloud import opened_by_the_provider
from tests.support.sim_cloud import SimCloudHarness, sim_pool

SIM = {"sim": {}}
WISH = CapacityWish()


@pytest.fixture
def spec(demo_spec):
    return replace(demo_spec, capacity=CapacityWish())


@pytest.fixture
def planned(monkeypatch):
    """What the planner was asked for."""
    asked = []
    plan = shape_memory.needs_of

    def noted(shapes, spec, **more):
        asked.append(shapes)
        return plan(shapes, spec, **more)

    monkeypatch.setattr(shape_memory, "needs_of", noted)
    return asked


def test_only_shapes_on_offer_are_planned_and_only_once(scope, spec, planned, state_root):
    pools = [sim_pool("a", shape="p5.48xlarge"), sim_pool("b", shape="z9.metal")]
    with opened_by_the_provider(SimCloudHarness(*pools, clock=SystemClock())):
        first = needs_in(scope, (), spec, clouds=SIM, wish=WISH)
        again = needs_in(scope, (), spec, clouds=SIM, wish=WISH)
    assert planned == [["p5.48xlarge"]]
    assert first == again
    assert list(first.by_shape) == ["p5.48xlarge"]


def test_another_question_is_planned_anew(scope, spec, planned):
    needs_in(scope, ["local-cpu"], spec, clouds=SIM, wish=WISH)
    needs_in(scope, {"local-cpu": {"slots": 2}}, spec, clouds=SIM, wish=WISH)
    longer = replace(spec, budget=replace(spec.budget, num_steps=999, num_tokens=None))
    needs_in(scope, ["local-cpu"], longer, clouds=SIM, wish=WISH)
    assert len(planned) == 3


def test_a_new_calibration_is_another_question(scope, spec, planned, state_root):
    needs_in(scope, ["local-cpu"], spec, clouds=SIM, wish=WISH)
    calibration_file.save(open_store(str(state_root)), replace(packaged(), notes="measured here"))
    needs_in(scope, ["local-cpu"], spec, clouds=SIM, wish=WISH)
    needs_in(scope, ["local-cpu"], spec, clouds=SIM, wish=WISH)
    assert len(planned) == 2


def test_what_is_told_is_neither_planned_nor_kept(scope, spec, planned):
    told = {"x": {"num_nodes": 2, "work": "1h"}}
    assert needs_in(scope, told, spec, clouds=SIM, wish=WISH).by_shape["x"][0].num_nodes == 2
    assert not list(scope.directory.rglob(FILE))


def test_a_damaged_memory_is_worked_out_again(scope, spec, planned):
    needs_in(scope, ["local-cpu"], spec, clouds=SIM, wish=WISH)
    (path,) = scope.directory.rglob(FILE)
    path.write_text("{}")
    assert needs_in(scope, ["local-cpu"], spec, clouds=SIM, wish=WISH).by_shape
    assert len(planned) == 2
