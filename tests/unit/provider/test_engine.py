from __future__ import annotations

import datetime
import math
from collections import OrderedDict
from pathlib import Path

import pytest

from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.engine import check_plain, open_engine


def test_local_engine_lives_below_the_state_root_by_default(state_root):
    engine = open_engine("local", {"num_nodes": 3, "slots_per_node": 1})
    assert isinstance(engine, LocalEngine)
    assert len(engine.topology().nodes) == 3


def test_an_option_the_engine_does_not_take_is_named(state_root):
    with pytest.raises(SpecError, match="num_nodse"):
        open_engine("local", {"num_nodse": 3})


def test_an_unknown_engine_names_the_known_ones(state_root):
    with pytest.raises(SpecError, match="local"):
        open_engine("lokal", {})


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        datetime.timedelta(seconds=90),
        Path("/x"),
        {1, 2},
        (1, 2),
        math.nan,
        {"nested": {"deep": [1, {"at": Path("/x")}]}},
        {1: "one"},
    ],
)
def test_what_json_would_change_is_refused_by_name(value):
    """Field case B1: refused before anything is submitted."""
    with pytest.raises(SpecError, match="engine_options"):
        check_plain({"option": value}, path="engine_options")


def test_plain_values_pass():
    check_plain(OrderedDict(a=None, b=[1, 2.5, "x", True], c={"d": {}}), path="engine_options")
