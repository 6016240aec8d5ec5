from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.control.open_engines import open_engine
from airflow_llmsched.domain.fleet import Cluster, Fleet
from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.ports import Engine
from airflow_llmsched.telemetry.channel import open_witness

FLEET = Fleet(clusters=(Cluster(name="a", engine="local", options={"num_nodes": 1}),))


def opened(name: str, options: Mapping[str, Any], root: Path, *, fleet: Fleet | None = FLEET) -> Engine:
    def sign_in(engine: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        assert engine == "local"
        return {"slots_per_node": 3, **given}

    return open_engine(
        name,
        options,
        fleet,
        root=str(root / "engines"),
        open_store=lambda: LocalStore(str(root / "state")),
        open_witness=open_witness,
        sign_in=sign_in,
        path="engine_options",
    )


@pytest.mark.parametrize(("name", "node"), [("local", "n0"), ("a", "a/n0"), ("fleet", "a/n0")])
def test_whatever_it_is_called_an_adapter_is_signed_in_to(name: str, node: str, tmp_path: Path) -> None:
    first = opened(name, {}, tmp_path).topology().nodes[0]
    assert (first.id, first.num_slots) == (node, 3)


def test_a_folder_that_is_told_holds_against_the_default(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="absolute"):
        opened("local", {"root": "relative"}, tmp_path)


def test_options_that_make_no_sense_are_told_with_whose_they_are(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"engine_options of 'local'.*num_nodse"):
        opened("local", {"num_nodse": 1}, tmp_path)
    for odd in ({"root": 5}, {"num_nodes": "two"}, {"num_nodes": 2.5}):
        with pytest.raises(SpecError, match=r"engine_options of 'local'"):
            opened("local", odd, tmp_path)
    with pytest.raises(SpecError, match="are in the fleet file for engine 'a'"):
        opened("a", {"num_nodes": 2}, tmp_path)
    with pytest.raises(SpecError, match="needs a fleet file"):
        opened("fleet", {}, tmp_path, fleet=None)
