from __future__ import annotations

import datetime
import math
from collections import OrderedDict
from pathlib import Path

import pytest

from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.engine import check_plain, deployment_fleet, engines_of, open_engine


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


@pytest.fixture
def fleet_file(tmp_path, state_root, monkeypatch):
    """The deployment's fleet file: two clusters of the local engine."""
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "version: 1\nclusters:\n"
        "  - {name: a, engine: local, options: {num_nodes: 1}}\n"
        "  - {name: b, engine: local, options: {num_nodes: 2}}\n"
    )
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", str(path))
    return path


def test_a_cluster_of_the_fleet_file_is_an_engine_and_so_are_all_of_them(fleet_file):
    assert [node.id for node in open_engine("b", {}).topology().nodes] == ["b/n0", "b/n1"]
    assert [node.id for node in open_engine("fleet", {}).topology().nodes] == ["a/n0", "b/n0", "b/n1"]
    assert len(open_engine("local", {"num_nodes": 3}).topology().nodes) == 3


def test_options_of_a_cluster_are_in_the_file_and_nowhere_else(fleet_file):
    with pytest.raises(SpecError, match="in the fleet file"):
        open_engine("a", {"num_nodes": 3})


def test_without_a_fleet_file_a_fleet_says_what_to_set(state_root):
    assert deployment_fleet() is None
    with pytest.raises(SpecError, match="fleet_file"):
        open_engine("fleet", {})


def test_mistakes_in_the_fleet_file_are_told_with_their_lines(fleet_file):
    fleet_file.write_text("version: 1\nclusters:\n  - {name: a, engine: locl}\n")
    with pytest.raises(SpecError, match=r"fleet\.yaml:3: clusters\[0\]\.engine"):
        open_engine("local", {})


def test_a_fleet_is_looked_at_cluster_by_cluster(fleet_file):
    assert engines_of("fleet") == ("a", "b")
    assert engines_of("b") == ("b",)
    assert engines_of("local") == ("local",)
