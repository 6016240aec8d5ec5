from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched import registry
from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.engines.slurm.opening import open_slurm
from airflow_llmsched.errors import SpecError


def test_engine_is_opened_by_its_name_with_plain_options(tmp_path: Path) -> None:
    opened = registry.load(registry.AdapterGroup.ENGINES, "slurm")(
        root=str(tmp_path / "never-made"), slots_per_node=8, partition="low", slurm_conf="/etc/slurm/slurm.conf"
    )
    assert isinstance(opened, SlurmEngine)
    assert opened.name == "slurm"
    assert not (tmp_path / "never-made").exists(), "opening leaves no trace"


@pytest.mark.parametrize("options", [{"root": "relative"}, {"slots_per_node": 0}, {"partitions": "low"}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        open_slurm(**{"root": "/shared", "slots_per_node": 8, **options})


SSH = {"address": "login.example.org", "user": "me", "key": "/keys/me", "known_hosts": "/keys/known"}
REST = {"url": "https://slurm.example.org:6820", "user": "me", "token_file": "/run/token"}


def test_engine_is_opened_for_a_login_node_or_slurmrestd_or_both() -> None:
    for how in ({"ssh": SSH}, {"rest": REST}, {"ssh": {**SSH, "port": 2222}, "rest": REST, "topology_file": "/t.conf"}):
        assert open_slurm(root="/shared", slots_per_node=8, **how).name == "slurm"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ssh", {name: value for name, value in SSH.items() if name != "address"}),
        ("ssh", {name: value for name, value in SSH.items() if name != "key"}),
        ("ssh", {**SSH, "password": "secret"}),
        ("ssh", {**SSH, "key": "me"}),
        ("rest", {name: value for name, value in REST.items() if name != "token_file"}),
        ("rest", {**REST, "token": "secret"}),
        ("rest", {**REST, "url": "http://slurm.example.org:6820"}),
    ],
)
def test_a_way_to_ask_that_makes_no_sense_is_refused_and_no_secret_is_shown(option: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        open_slurm(root="/shared", slots_per_node=8, **{option: value})
    assert "secret" not in str(caught.value)
