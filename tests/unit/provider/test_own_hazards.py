from __future__ import annotations

import json

import numpy as np
import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.forecast import mean_spell_s
from airflow_llmsched.provider.own_hazards import fitted_hazards

HOURLY = {"tick_s": 600, "up": [1] * 6 + [0] * 6}


def written(folder, told, name="traces.json"):
    file = folder / name
    file.write_text(told if isinstance(told, str) else json.dumps(told))
    return str(file)


def test_capacity_that_comes_and_goes_by_the_hour_is_fitted_to_last_about_one(tmp_path):
    often = fitted_hazards(written(tmp_path, [{**HOURLY, "up": HOURLY["up"] * 60}]))
    rarely = fitted_hazards(written(tmp_path, [{"tick_s": 600, "up": ([1] * 144 + [0] * 144) * 10}], "other.json"))
    lasts_s = [float(np.average(mean_spell_s(each.loss_per_s_KF), weights=each.prior_K)) for each in (often, rarely)]
    assert 1800 < lasts_s[0] < 7200
    assert lasts_s[1] > 4 * lasts_s[0]


def test_traces_say_for_how_many_nodes_a_pool_was_watched(tmp_path):
    of_four = fitted_hazards(written(tmp_path, [{**HOURLY, "up": HOURLY["up"] * 10, "num_nodes": 4}]))
    of_one = fitted_hazards(written(tmp_path, [{**HOURLY, "up": HOURLY["up"] * 10}], "other.json"))
    assert (of_four.num_nodes, of_one.num_nodes) == (4, 1)


def test_a_file_is_fitted_once_until_it_changes(tmp_path):
    file = written(tmp_path, [{**HOURLY, "up": HOURLY["up"] * 10}])
    first = fitted_hazards(file)
    assert fitted_hazards(file) is first
    written(tmp_path, [{**HOURLY, "up": HOURLY["up"] * 20}])
    assert fitted_hazards(file) is not first


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ("no json", "cannot be read"),
        ("[" * 5_000 + "]" * 5_000, "cannot be read"),
        ({}, "must be a list of traces"),
        ([], "availability that comes and goes"),
        ([{"tick_s": 600, "up": [1, 1, 1]}], "availability that comes and goes"),
        ([{"tick_s": 600}], "must have tick_s and up"),
        ([{**HOURLY, "zone": "a"}], "must have tick_s and up"),
        ([HOURLY, {**HOURLY, "up": [1, 2]}], r"\[1\]\.up"),
        ([{**HOURLY, "tick_s": 0}], "tick_s: must be seconds"),
        ([{**HOURLY, "start_s": -3}], "start_s: must be seconds"),
        ([{**HOURLY, "num_nodes": 0}], r"\[0\]\.num_nodes: must be a count"),
        ([{**HOURLY, "num_nodes": True}], r"\[0\]\.num_nodes: must be a count"),
        ([HOURLY, {**HOURLY, "num_nodes": 4}], "same num_nodes"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, told, complaint):
    with pytest.raises(SpecError, match=complaint):
        fitted_hazards(written(tmp_path, told))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(SpecError, match=r"capacity\.traces"):
        fitted_hazards(str(tmp_path / "none.json"))
