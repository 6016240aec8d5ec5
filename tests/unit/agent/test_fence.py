from __future__ import annotations

from pathlib import Path

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.fence import Lease, Orders
from airflow_llmsched.agent.spool import read_json

NOTHING = {"v": 1, "checkpoint_seq": 0, "stop": None, "checkpoint_interval_s": None}


BOOTED_S = 40.0
"""When a clock that nobody sets began, by one that somebody does."""


def lease_of(lease_s: float | None = 30.0) -> Lease:
    """A lease of a gang that was submitted at 100 s, and whose agent has just begun."""
    return Lease(lease_s=lease_s, start_s=100.0, now_s=101.0, elapsed_s=101.0 - BOOTED_S)


def expired(lease: Lease, renewed_until_s: float | None, *, now_s: float, set_ahead_s: float = 0.0) -> bool:
    """Whether it is over at ``now_s``, which a clock that was set since calls ``set_ahead_s`` more."""
    return lease.expired(renewed_until_s, now_s=now_s + set_ahead_s, elapsed_s=now_s - BOOTED_S)


def test_lease_without_a_limit_never_runs_out() -> None:
    assert not expired(lease_of(None), 1.0, now_s=1e12)


def test_lease_that_was_never_renewed_runs_out_after_its_length() -> None:
    lease = lease_of()
    assert not expired(lease, None, now_s=129.9)
    assert expired(lease, None, now_s=130.0)


def test_renewal_extends_and_an_older_one_takes_nothing_back() -> None:
    lease = lease_of()
    assert not expired(lease, 200.0, now_s=199.0)
    assert not expired(lease, 50.0, now_s=199.0)
    assert expired(lease, 50.0, now_s=200.0)


def test_a_clock_that_is_set_back_lengthens_no_lease() -> None:
    """Whoever is cut off from control ends in time: by then control may have started another gang."""
    lease = lease_of()
    assert not expired(lease, 200.0, now_s=170.0)
    assert not expired(lease, None, now_s=199.0, set_ahead_s=-3600.0)
    assert expired(lease, None, now_s=200.0, set_ahead_s=-3600.0)


def test_who_is_renewed_by_a_clock_that_was_set_back_goes_on() -> None:
    lease = lease_of()
    assert not expired(lease, 200.0, now_s=170.0)
    for now_s in (190.0, 210.0, 230.0, 250.0):
        assert not expired(lease, now_s - 3600.0 + 30.0, now_s=now_s, set_ahead_s=-3600.0)
    assert expired(lease, 250.0 - 3600.0 + 30.0, now_s=280.0, set_ahead_s=-3600.0)


def test_a_clock_that_jumps_ahead_may_have_slept_through_the_lease() -> None:
    lease = lease_of()
    assert expired(lease, 200.0, now_s=170.0, set_ahead_s=3600.0)


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
