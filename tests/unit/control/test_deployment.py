"""The deployment's identity is made once and never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.control.deployment import DEPLOYMENT_OBJECT, deployment_id, known_deployment_id
from airflow_llmsched.errors import DataError, StoreError
from airflow_llmsched.objects.local import LocalStore


def test_identity_is_made_once_and_found_by_every_later_process(tmp_path: Path) -> None:
    first = deployment_id(LocalStore(str(tmp_path)))
    assert deployment_id(LocalStore(str(tmp_path))) == first
    assert len(first) == 36


def test_two_state_roots_are_two_deployments(tmp_path: Path) -> None:
    assert deployment_id(LocalStore(str(tmp_path / "a"))) != deployment_id(LocalStore(str(tmp_path / "b")))


def test_process_that_loses_the_race_takes_the_winners_identity(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))

    def someone_else_first() -> str:
        deployment_id(store, propose=lambda: "winner")
        return "loser"

    assert deployment_id(store, propose=someone_else_first) == "winner"


def test_unreadable_root_is_an_error_and_not_a_fresh_identity(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        deployment_id(LocalStore(str(tmp_path / "file")))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"id": "x", "v": 2}'])
def test_damaged_or_newer_record_is_loud_and_left_alone(tmp_path: Path, data: bytes) -> None:
    store = LocalStore(str(tmp_path))
    store.put(DEPLOYMENT_OBJECT, data)
    with pytest.raises(DataError, match=r"deployment\.json"):
        deployment_id(store)
    assert store.get(DEPLOYMENT_OBJECT) == data


def test_identity_is_known_only_where_one_was_made(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "state"))
    with pytest.raises(DataError, match="is no state root"):
        known_deployment_id(store)
    assert not (tmp_path / "state").exists()
    assert deployment_id(store) == known_deployment_id(store)
