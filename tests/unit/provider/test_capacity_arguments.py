from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.capacity import DataAt, ShapeNeed
from airflow_llmsched.domain.workload import CapacityType, CapacityWish
from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.capacity_arguments import capacity_request, duration_s

SHAPES = {"p5.48xlarge": {"num_nodes": 4, "work": "36h"}}


def _request(**changes):
    told = {
        "clouds": {"aws": {"regions": ["us-east-1"]}},
        "shapes": SHAPES,
        "wishes": {},
        "data": (),
        "deadline_s": None,
        "rework": "20min",
        "max_usd_per_hour": None,
    }
    return capacity_request(**{**told, **changes})


def test_text_with_units_becomes_numbers():
    place = {"cloud": "aws", "region": "eu-west-1", "size": "2TB", "egress_usd_per_gb": 0.02, "gb_per_s": 5}
    request = _request(data=[place], max_usd_per_hour=50, deadline_s=1e9)
    assert request.need.by_shape == {"p5.48xlarge": ShapeNeed(num_nodes=4, work_s=36 * 3600.0)}
    (data,) = request.need.data
    assert (data.num_bytes, data.bytes_per_s) == (2 * 10**12, 5e9)
    assert data.egress_usd_per_byte == pytest.approx(0.02e-9)
    assert isinstance(data, DataAt)
    assert (request.need.rework_s, request.need.deadline_s, request.max_usd_per_hour) == (1200.0, 1e9, 50.0)
    assert request.max_usd is None


def test_what_templates_have_made_text_of_is_read_as_what_it_was():
    request = _request(shapes={"p5.48xlarge": {"num_nodes": "4", "work": "36h"}}, max_usd_per_hour=" 12.5 ")
    assert request.need.by_shape["p5.48xlarge"].num_nodes == 4
    assert request.max_usd_per_hour == 12.5


@pytest.mark.parametrize("empty", [None, "", " ", "None"])
def test_an_empty_price_is_none(empty):
    assert _request(max_usd_per_hour=empty).max_usd_per_hour is None


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"clouds": {}}, "clouds"),
        ({"clouds": {"aws": {"at": object()}}}, r"clouds\.aws\.at"),
        ({"shapes": {}}, r"shapes\.\S+\.work"),
        ({"wishes": {"capacity_types": ["spotty"]}}, "capacity_types"),
        ({"data": [{"cloud": "aws", "size": "1TB"}]}, r"data\[0\]"),
        ({"data": [{"cloud": "aws", "region": "x", "size": "1"}]}, r"data\[0\]\.size"),
        ({"data": [{"cloud": "aws", "region": "x", "size": "1TB", "gb_per_s": "1"}]}, r"data\[0\]\.gb_per_s"),
        ({"data": [{"cloud": "aws", "region": "x", "size": "1TB", "gb_per_s": 0}]}, r"data\[0\]\.gb_per_s"),
        ({"rework": "soon"}, "rework"),
        ({"max_usd_per_hour": "cheap"}, "max_usd_per_hour"),
        ({"max_usd_per_hour": "nan"}, "max_usd_per_hour"),
        ({"max_usd_per_hour": 0}, "max_usd_per_hour"),
    ],
)
def test_what_is_wrong_is_named(changes, path):
    with pytest.raises(SpecError, match=path):
        _request(**changes)


def test_a_duration_that_is_none_is_named():
    with pytest.raises(SpecError, match="hold = '1'"):
        duration_s("1", path="hold")


def test_the_clouds_of_the_task_are_part_of_the_wish(demo_spec):
    spec = replace(demo_spec, capacity=CapacityWish(clouds=("gcp", "aws")))
    assert _request(spec=spec).need.wish.clouds == ("aws",)
    assert _request().need.wish.clouds == ("aws",)


def test_the_specs_wish_narrows_the_tasks(demo_spec):
    spec = replace(demo_spec, capacity=CapacityWish(regions=("a", "b"), capacity_types=(CapacityType.SPOT,)))
    wish = _request(spec=spec, wishes={"regions": ["b", "c"]}).need.wish
    assert (wish.regions, wish.capacity_types) == (("b",), (CapacityType.SPOT,))


def test_a_wish_beyond_the_specs_is_refused(demo_spec):
    spec = replace(demo_spec, capacity=CapacityWish(regions=("a",)))
    with pytest.raises(SpecError, match=r"regions = \['c'\]: the spec's capacity.regions allows only a"):
        _request(spec=spec, wishes={"regions": ["c"]})


def test_the_specs_budget_is_the_runs(demo_spec):
    budget = replace(demo_spec.budget, num_steps=10, num_tokens=None, max_usd=99.0)
    request = _request(spec=replace(demo_spec, budget=budget))
    assert request.max_usd == 99.0
    assert request.num_tokens == 10 * demo_spec.batch[0].tokens_per_step
    budget = replace(budget, num_steps=None, num_tokens=12_345)
    assert _request(spec=replace(demo_spec, budget=budget)).num_tokens == 12_345


def test_node_counts_beside_the_fewest_compete_and_shapes_in_vain_are_remembered(demo_spec):
    spec = replace(demo_spec, capacity=CapacityWish())
    need = _request(spec=spec, shapes=["local-cpu", "z9.metal"]).need
    assert need.by_shape["local-cpu"].num_nodes < need.more_nodes["local-cpu"][0].num_nodes
    assert list(need.refused) == ["z9.metal"]
