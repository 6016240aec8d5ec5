from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.provider.engine import open_engine
from airflow_llmsched.provider.engine_access import with_access

SSH = {
    "conn_type": "ssh",
    "host": "login.example.org",
    "login": "me",
    "extra": {"key_file": "/keys/me", "known_hosts": "/keys/known"},
}
REST = {"conn_type": "http", "host": "slurm.example.org", "port": 6820, "login": "me", "password": "jwt.of.mine"}


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Defines the Airflow connection ``cluster``."""

    def define(connection: dict[str, Any]) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))

    return define


def test_options_without_a_connection_are_as_they_were() -> None:
    assert with_access("local", {"num_nodes": 3}) == {"num_nodes": 3}


def test_slurm_is_signed_in_to_over_ssh_by_paths(connect: Any) -> None:
    connect(SSH)
    assert with_access("slurm", {"conn_id": "cluster", "partition": "low"}) == {
        "partition": "low",
        "ssh": {
            "address": "login.example.org",
            "port": 22,
            "user": "me",
            "key": "/keys/me",
            "known_hosts": "/keys/known",
        },
    }


def test_hosts_are_signed_in_to_by_the_same_connection(connect: Any) -> None:
    connect(SSH)
    found = with_access("hosts", {"conn_id": "cluster", "user": "other"})
    assert found == {"user": "other", "key": "/keys/me", "known_hosts": "/keys/known"}


def test_a_token_is_in_no_option_and_read_when_it_is_needed(connect: Any) -> None:
    connect({**REST, "extra": {"version": "v0.0.40", "unknown": 1}})
    found = with_access("slurm", {"conn_id": "cluster", "rest": {"limit_s": 5.0}})
    assert found["rest"] == {
        "url": "https://slurm.example.org:6820",
        "user": "me",
        "version": "v0.0.40",
        "limit_s": 5.0,
    }
    assert "jwt.of.mine" not in repr({name: value for name, value in found.items() if name != "token"})
    assert found["token"].read() == "jwt.of.mine"
    connect({**REST, "password": "renewed"})
    assert found["token"].read() == "renewed"
    assert found["token"].where == "the Airflow connection cluster"


def test_engine_is_opened_with_its_connection(connect: Any, state_root: Any) -> None:
    connect(REST)
    options = {"conn_id": "cluster", "root": "/shared", "slots_per_node": 8}
    assert isinstance(open_engine("slurm", options), SlurmEngine)
    connect({**REST, "schema": "http"})
    with pytest.raises(SpecError, match="would send the token in the clear"):
        open_engine("slurm", options)


@pytest.mark.parametrize(
    ("engine", "connection", "why"),
    [
        ("local", SSH, "takes no Airflow connection"),
        ("slurm", {**SSH, "conn_type": "aws"}, "is of type 'aws'"),
        ("hosts", REST, "is of type 'http'"),
        ("slurm", {**SSH, "host": ""}, "names no host"),
        ("slurm", {**SSH, "login": ""}, "names no login"),
        ("slurm", {**SSH, "extra": {"key_file": "/keys/me"}}, "needs the extra known_hosts"),
        ("hosts", {**SSH, "extra": {"key_file": "me", "known_hosts": "/k"}}, "needs the extra key_file"),
        ("hosts", {**SSH, "extra": {**SSH["extra"], "no_host_key_check": "true"}}, "host keys are checked here"),
    ],
)
def test_a_connection_that_does_not_do_is_refused_by_name(
    connect: Any, engine: str, connection: dict[str, Any], why: str
) -> None:
    connect(connection)
    with pytest.raises(SpecError, match=why) as caught:
        with_access(engine, {"conn_id": "cluster"})
    assert "jwt.of.mine" not in str(caught.value)


def test_a_connection_that_is_not_there_may_be_one_that_could_not_be_read() -> None:
    with pytest.raises(CouldNotLookError, match="nobody"):
        with_access("slurm", {"conn_id": "nobody"})
