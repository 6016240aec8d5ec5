from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.cli.engines import open_engine, read_fleet_file
from airflow_llmsched.domain.fleet import Cluster, Fleet
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import SpecError

FLEET = Fleet(clusters=(Cluster(name="a", engine="local", options={"num_nodes": 1}),))


def test_an_adapter_is_opened_with_its_options_below_the_state_root(tmp_path: Path) -> None:
    engine = open_engine("local", {"num_nodes": 3}, state_root=tmp_path, fleet=None)
    assert isinstance(engine, LocalEngine)
    assert len(engine.topology().nodes) == 3


def test_a_cluster_is_opened_from_the_file_and_takes_no_options_beside_it(tmp_path: Path) -> None:
    assert [node.id for node in open_engine("a", {}, state_root=tmp_path, fleet=FLEET).topology().nodes] == ["a/n0"]
    with pytest.raises(SpecError, match="in the fleet file"):
        open_engine("fleet", {"num_nodes": 3}, state_root=tmp_path, fleet=FLEET)
    with pytest.raises(SpecError, match="needs a fleet file"):
        open_engine("fleet", {}, state_root=tmp_path, fleet=None)


def test_airflows_connections_are_out_of_reach(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is for Airflow"):
        open_engine("local", {"conn_id": "x"}, state_root=tmp_path, fleet=None)


def test_an_option_the_engine_does_not_take_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="num_nodse"):
        open_engine("local", {"num_nodse": 3}, state_root=tmp_path, fleet=None)


def test_without_a_file_there_is_no_fleet(tmp_path: Path) -> None:
    assert read_fleet_file(None) is None
    (tmp_path / "fleet.yaml").write_text("version: 1\nclusters:\n  - {name: a, engine: local}\n")
    fleet = read_fleet_file(tmp_path / "fleet.yaml")
    assert fleet is not None
    assert fleet.cluster("a") is not None
