from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.capacity import ShapeNeed
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.errors import RelaxError, SpecError
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.provider import shape_arguments
from airflow_llmsched.provider.shape_arguments import UNKNOWN, is_told, needs_of


@pytest.fixture
def spec(demo_spec):
    """The demo's workload, as large as it likes."""
    return replace(demo_spec, capacity=CapacityWish())


def test_without_shapes_every_shape_competes_that_the_planner_knows(spec):
    needs = needs_of(None, spec)
    assert set(needs.by_shape) | set(needs.refused) == set(node_shapes())
    assert "p5.48xlarge" in needs.by_shape


@pytest.mark.parametrize("nothing", [None, {}, (), []])
def test_no_shape_is_as_good_as_none_said(spec, nothing, monkeypatch):
    few = {name: node_shapes()[name] for name in ("p5.48xlarge", "p4d.24xlarge")}
    monkeypatch.setattr(shape_arguments, "node_shapes", lambda: few)
    assert list(needs_of(nothing, spec).by_shape) == ["p5.48xlarge", "p4d.24xlarge"]


def test_a_shape_that_is_only_named_is_planned(spec):
    needs = needs_of(["p5.48xlarge"], spec)
    assert list(needs.by_shape) == ["p5.48xlarge"]
    assert needs.by_shape == needs_of({"p5.48xlarge": {}}, spec).by_shape
    assert needs.by_shape["p5.48xlarge"][0].work_s > 0


def test_what_is_said_is_taken_as_it_is(spec):
    needs = needs_of({"p5.48xlarge": {"num_nodes": "4", "work": "36h"}, "own": {"num_nodes": 1, "work": "1h"}}, spec)
    assert needs.by_shape["p5.48xlarge"] == (ShapeNeed(num_nodes=4, work_s=36 * 3600.0),)
    assert needs.by_shape["own"] == (ShapeNeed(num_nodes=1, work_s=3600.0),)


def test_several_sizes_of_a_shape_may_be_said(spec):
    sizes = [{"num_nodes": 4, "work": "20h"}, {"num_nodes": 2, "work": "36h"}]
    needs = needs_of({"x": sizes}, None).by_shape["x"]
    assert needs == (ShapeNeed(num_nodes=2, work_s=36 * 3600.0), ShapeNeed(num_nodes=4, work_s=20 * 3600.0))
    assert is_told({"x": sizes})
    assert not is_told({"x": [*sizes, {"num_nodes": 8}]})


@pytest.mark.parametrize(
    ("sizes", "path"),
    [
        ([], r"shapes\.x = \[\]"),
        ([{"num_nodes": 2}], r"shapes\.x\[0\]\.work"),
        ([{"num_nodes": 2, "work": "1h"}, {"work": "1h"}], r"shapes\.x\[1\]\.num_nodes"),
    ],
)
def test_what_is_wrong_with_a_size_is_named(spec, sizes, path):
    with pytest.raises(SpecError, match=path):
        needs_of({"x": sizes}, spec)


def test_a_count_that_is_said_is_planned_for_and_no_other_is(spec):
    (need,) = needs_of({"local-cpu": {"num_nodes": 2}}, spec).by_shape["local-cpu"]
    assert need.num_nodes == 2


def test_slots_say_how_many_accelerators_a_node_has(spec):
    (need,) = needs_of({"local-cpu": {"num_nodes": 1, "slots": 2}}, spec).by_shape["local-cpu"]
    assert need.work_s == pytest.approx(needs_of({"local-cpu": {"num_nodes": 2}}, spec).by_shape["local-cpu"][0].work_s)


def test_a_shape_that_nobody_knows_is_refused_beside_those_that_are_known(spec):
    needs = needs_of(["p5.48xlarge", "z9.metal"], spec)
    assert list(needs.by_shape) == ["p5.48xlarge"]
    assert needs.refused == {"z9.metal": UNKNOWN}


def test_a_run_that_fits_no_shape_is_told_at_once_and_of_each(spec):
    with pytest.raises(RelaxError, match=r"z9\.metal, whose hardware .*z8\.metal, whose hardware"):
        needs_of(["z9.metal", "z8.metal"], spec)


@pytest.mark.parametrize("model", [False, None])
def test_without_a_model_shapes_must_be_told(spec, model):
    with pytest.raises(SpecError, match=r"shapes\.x\.work: must say num_nodes and work"):
        needs_of(["x"], None if model is None else replace(spec, model=None))


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ({"work": "36h"}, r"shapes\.x\.num_nodes"),
        ({"num_nodes": 4, "work": 36}, r"shapes\.x\.work"),
        ({"num_nodes": 0, "work": "1h"}, r"shapes\.x\.num_nodes"),
        ({"num_nodes": True, "work": "1h"}, r"shapes\.x\.num_nodes"),
        ({"num_nodes": "four", "work": "1h"}, r"shapes\.x\.num_nodes"),
        ({"num_nodes": 4, "work": "1h", "hours": 1}, r"shapes\.x\.hours"),
    ],
)
def test_what_is_wrong_is_named(spec, told, path):
    with pytest.raises(SpecError, match=path):
        needs_of({"x": told}, spec)


def test_slots_that_are_no_count_are_named(spec):
    with pytest.raises(SpecError, match=r"shapes\.local-cpu\.slots"):
        needs_of({"local-cpu": {"slots": 0}}, spec)
