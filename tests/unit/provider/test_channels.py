from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.provider import channels
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.telemetry.channel import DirectoryChannel
from airflow_llmsched.telemetry.http_channel import ObjectChannel

SCOPE = RunScope(
    state_root="/state", run_key=RunKey("ls-x"), dag_id="d", run_id="r", task_group_id="", started_at_s=0.0
)


def test_channels_are_in_the_runs_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__LLMSCHED__CHANNEL_URI", raising=False)
    assert channels.channel_dir(SCOPE) == "/state/runs/ls-x"
    assert channels.flush_interval_s(0.25) == 0.25
    assert isinstance(channels.open_channel("/state/runs/ls-x/channel/a"), DirectoryChannel)


def test_channels_are_below_the_bucket_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__LLMSCHED__CHANNEL_URI", "s3://bucket/prefix/")
    assert channels.channel_dir(SCOPE) == "s3://bucket/prefix/runs/ls-x"
    assert channels.flush_interval_s(0.25) == 10.0


def test_bucket_channel_hands_links_over_in_a_folder_of_the_attempt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    opened = channels.open_channel("s3://bucket/prefix/runs/ls-x/channel/ls-x-g1-a1")
    assert isinstance(opened, ObjectChannel)
    assert opened._links == tmp_path / "links" / "ls-x-g1-a1"
