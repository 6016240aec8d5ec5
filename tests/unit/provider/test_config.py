from __future__ import annotations

import os
from pathlib import Path

from airflow_llmsched.provider.config import handoff_limit_s, measured_links_limit_s, min_deferral_s, state_root
from airflow_llmsched.provider.get_provider_info import get_provider_info
from airflow_llmsched.topology.link_records import COUNTS_FOR_S


def test_state_root_is_the_configured_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path / "a"))
    assert state_root() == str(tmp_path / "a")


def test_state_root_defaults_to_a_folder_of_airflows_home(monkeypatch):
    monkeypatch.delenv("AIRFLOW__LLMSCHED__STATE_ROOT", raising=False)
    assert state_root() == str(Path(os.environ["AIRFLOW_HOME"]).resolve() / "llmsched")


def test_handoff_limit_is_configured_in_seconds(monkeypatch):
    monkeypatch.setenv("AIRFLOW__LLMSCHED__HANDOFF_LIMIT", "90")
    assert handoff_limit_s() == 90.0


def test_the_least_deferral_outlasts_a_lingering_worker_unless_configured(monkeypatch):
    monkeypatch.delenv("AIRFLOW__LLMSCHED__MIN_DEFERRAL", raising=False)
    assert min_deferral_s() > 5.0
    monkeypatch.setenv("AIRFLOW__LLMSCHED__MIN_DEFERRAL", "0.5")
    assert min_deferral_s() == 0.5


def test_measured_links_count_as_long_in_tasks_as_in_commands_unless_configured(monkeypatch):
    monkeypatch.delenv("AIRFLOW__LLMSCHED__MEASURED_LINKS_LIMIT", raising=False)
    told = get_provider_info()["config"]["llmsched"]["options"]["measured_links_limit"]["default"]
    assert measured_links_limit_s() == COUNTS_FOR_S == float(told)
    monkeypatch.setenv("AIRFLOW__LLMSCHED__MEASURED_LINKS_LIMIT", "3600")
    assert measured_links_limit_s() == 3600.0
