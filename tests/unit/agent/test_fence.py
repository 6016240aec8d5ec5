from __future__ import annotations

from pathlib import Path

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.fence import Lease, Orders
from airflow_llmsched.agent.spool import read_json

NOTHING = {"v": 1, "checkpoint_seq": 0, "stop": None, "checkpoint_interval_s": None}


def test_lease_without_a_limit_never_runs_out() -> None:
    assert not Lease(lease_s=None, start_s=0.0).expired(1.0, now_s=1e12)


def test_lease_that_was_never_renewed_runs_out_after_its_length() -> None:
    lease = Lease(lease_s=30.0, start_s=100.0)
    assert not lease.expired(None, now_s=129.9)
    assert lease.expired(None, now_s=130.0)


def test_renewal_extends_and_an_older_one_takes_nothing_back() -> None:
    lease = Lease(lease_s=30.0, start_s=100.0)
    assert not lease.expired(200.0, now_s=199.0)
    assert not lease.expired(50.0, now_s=199.0)
    assert lease.expired(50.0, now_s=200.0)


def test_orders_reach_the_spool_and_a_notice_counts_as_one(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    target = tmp_path / wire.ORDERS
    orders.forward(None, {})
    assert read_json(target) == NOTHING
    orders.forward({"checkpoint_seq": 2, "stop": None, "checkpoint_interval_s": 60.0}, {"n1": 50.0})
    assert read_json(target) == {**NOTHING, "checkpoint_seq": 3, "checkpoint_interval_s": 60.0}
    orders.forward({"checkpoint_seq": 2, "stop": "replanned", "checkpoint_interval_s": None}, {"n1": 50.0})
    assert read_json(target) == {**NOTHING, "checkpoint_seq": 3, "stop": "replanned"}


def test_unchanged_orders_are_not_written_again(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.forward(None, {})
    before = (tmp_path / wire.ORDERS).stat().st_ino
    orders.forward(None, {})
    assert (tmp_path / wire.ORDERS).stat().st_ino == before


def test_orders_that_cannot_be_read_leave_the_last_ones_standing(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.forward({"checkpoint_seq": 2, "stop": None, "checkpoint_interval_s": None}, {})
    orders.forward(None, {"n0": 1.0})
    assert read_json(tmp_path / wire.ORDERS) == {**NOTHING, "checkpoint_seq": 3}
