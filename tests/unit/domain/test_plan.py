from __future__ import annotations

from dataclasses import replace

from airflow_llmsched import codec
from airflow_llmsched.domain.plan import Plan, PlanSearch
from tests.support.history import plan


def test_the_summary_says_layout_nodes_step_time_and_memory_with_units():
    assert plan("a", "b").summary() == ("dp=4 zero=0 micro=1x2 on 2 nodes of cpu-node: 0.500 s/step, 0.25 GiB/rank")


def test_a_step_may_take_as_many_times_less_as_more():
    prediction = replace(plan("a", "b").prediction, step_s=6.0, error_ratio=2.0)
    assert prediction.step_band_s == (2.0, 18.0)


def test_a_plan_survives_json_with_its_placement():
    assert codec.from_json(Plan, codec.to_json(plan("a", "b"))) == plan("a", "b")


def test_a_search_without_a_plan_still_counts_its_rejections():
    search = PlanSearch(plans=(), rejections={"memory": 3}, num_candidates=3, relaxation="allow full recompute")
    assert not search.plans
    assert sum(search.rejections.values()) == search.num_candidates
    assert replace(search, relaxation=None).relaxation is None
