from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.fence import Lease, Orders
from airflow_llmsched.agent.spool import read_json, write_json


def test_lease_without_a_limit_never_runs_out(tmp_path: Path) -> None:
    write_json(tmp_path / "lease.json", {"until_s": 1.0})
    assert not Lease(tmp_path / "lease.json", lease_s=None, start_s=0.0).expired(now_s=1e12)


def test_lease_that_was_never_renewed_runs_out_after_its_length(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease.json", lease_s=30.0, start_s=100.0)
    assert not lease.expired(now_s=129.9)
    assert lease.expired(now_s=130.0)


def test_renewal_extends_and_an_older_one_takes_nothing_back(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    lease = Lease(path, lease_s=30.0, start_s=100.0)
    write_json(path, {"until_s": 200.0})
    assert not lease.expired(now_s=199.0)
    write_json(path, {"until_s": 50.0})
    assert not lease.expired(now_s=199.0)
    assert lease.expired(now_s=200.0)


HUGE = '{"until_s":1' + "0" * 400 + "}"
DEEP = "[" * 99_999


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"until_s":"soon"}', '{"until_s":null}', "{}", '{"until_s":1e999}', '{"until_s":NaN}', HUGE, DEEP],
)
def test_unreadable_lease_renews_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "lease.json").write_text(content)
    lease = Lease(tmp_path / "lease.json", lease_s=30.0, start_s=100.0)
    assert not lease.expired(now_s=129.0)
    assert lease.expired(now_s=131.0)


def test_orders_reach_the_spool_and_a_notice_counts_as_one(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "control.json", tmp_path)
    target = tmp_path / wire.ORDERS
    orders.forward({})
    assert read_json(target) == {"v": 1, "checkpoint_seq": 0, "stop": None}
    write_json(tmp_path / "control.json", {"v": 1, "checkpoint_seq": 2, "stop": None})
    orders.forward({"n1": 50.0})
    assert read_json(target) == {"v": 1, "checkpoint_seq": 3, "stop": None}
    write_json(tmp_path / "control.json", {"v": 1, "checkpoint_seq": 2, "stop": "replanned"})
    orders.forward({"n1": 50.0})
    assert read_json(target) == {"v": 1, "checkpoint_seq": 3, "stop": "replanned"}


def test_unchanged_orders_are_not_written_again(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "control.json", tmp_path)
    orders.forward({})
    before = (tmp_path / wire.ORDERS).stat().st_ino
    orders.forward({})
    assert (tmp_path / wire.ORDERS).stat().st_ino == before


def test_unreadable_orders_leave_the_last_ones_standing(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "control.json", tmp_path)
    write_json(tmp_path / "control.json", {"v": 1, "checkpoint_seq": 2, "stop": None})
    orders.forward({})
    (tmp_path / "control.json").write_text('{"checkpoint_seq":')
    orders.forward({"n0": 1.0})
    assert read_json(tmp_path / wire.ORDERS) == {"v": 1, "checkpoint_seq": 3, "stop": None}


@pytest.mark.parametrize("content", ['{"checkpoint_seq":1e999,"stop":"x"}', '{"a":' * 99_999, '{"checkpoint_seq":{}}'])
def test_hostile_orders_leave_the_last_ones_standing(tmp_path: Path, content: str) -> None:
    orders = Orders(tmp_path / "control.json", tmp_path)
    (tmp_path / "control.json").write_text(content)
    orders.forward({})
    assert read_json(tmp_path / wire.ORDERS) == {"v": 1, "checkpoint_seq": 0, "stop": None}
