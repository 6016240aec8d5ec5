from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.open_fleet import clusters_of, names_cluster, open_fleet
from airflow_llmsched.domain.fleet import Cluster, Fleet
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.engines.fleet.engine import FleetEngine
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.ports import Engine
from airflow_llmsched.telemetry.channel import open_witness

FLEET = Fleet(
    clusters=(
        Cluster(name="a", engine="local", options={"num_nodes": 1}),
        Cluster(name="b", engine="local", options={"num_nodes": 3}),
    )
)


def opened(engine: str, root: Path, fleet: Fleet = FLEET) -> FleetEngine:
    def open_engine(name: str, options: Mapping[str, Any]) -> Engine:
        assert name == "local"
        return LocalEngine(**options)

    return open_fleet(
        engine,
        fleet,
        store=LocalStore(str(root / "state")),
        clock=SystemClock(),
        open_engine=open_engine,
        open_witness=open_witness,
        root=str(root / "engines"),
    )


def test_a_fleet_or_a_cluster_is_told_from_an_adapter_by_its_name() -> None:
    assert names_cluster("fleet", FLEET)
    assert names_cluster("fleet", None)
    assert names_cluster("a", FLEET)
    assert not names_cluster("a", None)
    assert not names_cluster("local", FLEET)


def test_a_fleet_is_all_clusters_and_a_name_is_one() -> None:
    assert clusters_of("fleet", FLEET) == FLEET.clusters
    assert clusters_of("b", FLEET) == FLEET.clusters[1:]


def test_what_stands_for_no_cluster_is_refused_with_what_to_do() -> None:
    with pytest.raises(SpecError, match="fleet_file"):
        clusters_of("fleet", None)
    with pytest.raises(SpecError, match="may list none"):
        clusters_of("fleet", Fleet(clusters=()))


def test_each_cluster_has_a_folder_of_its_own_for_what_it_keeps(tmp_path: Path) -> None:
    tree = opened("fleet", tmp_path).topology()
    assert [node.id for node in tree.nodes] == ["a/n0", "b/n0", "b/n1", "b/n2"]
    assert [node.id for node in opened("a", tmp_path).topology().nodes] == ["a/n0"]


def test_an_option_that_makes_no_sense_is_told_with_its_cluster(tmp_path: Path) -> None:
    fleet = Fleet(clusters=(Cluster(name="a", engine="local", options={"root": "relative"}),))
    with pytest.raises(SpecError, match="cluster a: root"):
        opened("fleet", tmp_path, fleet)


def test_a_cluster_that_cannot_be_opened_now_is_silent_and_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    def open_engine(_name: str, options: Mapping[str, Any]) -> Engine:
        if options["num_nodes"] == 1:
            raise CouldNotLookError("its connection cannot be read")
        return LocalEngine(**options)

    store = LocalStore(str(tmp_path / "state"))
    terms = {"store": store, "clock": SystemClock(), "open_witness": open_witness, "root": str(tmp_path)}
    fleet = open_fleet("fleet", FLEET, open_engine=open_engine, **terms)  # type: ignore[arg-type]  # of many types
    a, *b = fleet.topology().nodes
    assert a.unusable_reason == "cluster a: its connection cannot be read"
    assert [node.usable_slots for node in b] == [2, 2, 2]
    assert fleet.find(RunKey("ls-x")) == []
    with pytest.raises(CouldNotLookError, match="cluster a does not answer"):
        fleet.find_all()
    lonely = open_fleet("a", FLEET, open_engine=open_engine, **terms)  # type: ignore[arg-type]  # of many types
    with pytest.raises(CouldNotLookError, match="its connection cannot be read"):
        lonely.topology()
