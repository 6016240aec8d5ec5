from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control.arbiter_saved import SavedWork
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.progress import CheckpointMark, NodeReport
from airflow_llmsched.errors import StoreError
from airflow_llmsched.ports import RunChannel
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.shared_house import SharedHouse


def saved_of(house: SharedHouse) -> SavedWork:
    return SavedWork(store=house.store, open_channel=house.hub.open)


def test_work_is_saved_when_its_gang_last_said_so() -> None:
    house = SharedHouse()
    tenant = house.start("a", 4, save_every=10)
    assert saved_of(house).at_s(tenant.key) is None
    house.until(lambda: saved_of(house).at_s(tenant.key) is not None)
    first = saved_of(house).at_s(tenant.key)
    assert first is not None
    assert house.clock.now_s() - first < 2.0
    house.until(lambda: saved_of(house).at_s(tenant.key) != first)


def test_nobody_can_tell_for_a_run_that_never_began_or_a_channel_that_cannot_be_read() -> None:
    house = SharedHouse()
    assert saved_of(house).at_s(RunKey("ls-zzzzzzzzzzzzzzzzzzzz")) is None
    tenant = house.start("a", 4)

    def refuse(_root: str) -> RunChannel:
        raise StoreError("away")

    assert SavedWork(store=house.store, open_channel=refuse).at_s(tenant.key) is None


def test_of_a_channel_that_can_only_the_newest_reports_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = SharedHouse()
    tenant = house.start("a", 4)
    mark = CheckpointMark(step=7, path="/ckpt/7", at_s=70.0)
    report = NodeReport(node=NodeId("n0"), seq=1, at_s=71.0, marks=(mark,))
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "n0.jsonl").write_bytes(codec.to_json(report) + b"\n")
    channel = DirectoryChannel(str(tmp_path))
    monkeypatch.setattr(channel, "read", None)
    assert SavedWork(store=house.store, open_channel=lambda _root: channel).at_s(tenant.key) == 70.0
