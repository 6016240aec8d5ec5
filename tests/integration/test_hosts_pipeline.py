"""The whole pipeline on real hosts: one line of the DAG is another, and a run outlives one of its hosts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.reports import files
from tests.support.dag_runs import run_dags
from tests.support.hosts_engine import HostsHarness
from tests.support.ssh_hosts import SshHosts
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(500)]


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostsHarness]:
    harness = HostsHarness(tmp_path / "engine", machines, num_hosts=3, slots=1, silence_limit_s=2.0)
    options = {**harness.options, "hosts": [{**host, "shape": "local-cpu"} for host in harness.options["hosts"]]}
    monkeypatch.setenv("TEST_HOSTS", json.dumps(options))
    yield harness
    machines.join_again("h1")
    harness.close()


def test_run_loses_a_host_and_goes_on_with_the_others(
    harness: HostsHarness, machines: SshHosts, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    arguments = ["--step-s=0.02", "--hold-at=8", f"--hold={hold}"]
    conf: dict[str, Any] = {"arguments": ", ".join(map(json.dumps, arguments)), "max_ranks": 2}
    outcomes: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: outcomes.extend(run_dags(tmp_path, [("plain_on_hosts", conf)], limit_s=400))
    )
    thread.start()
    try:
        wait_until(lambda: saved(tmp_path) or not thread.is_alive(), 300, poll_s=0.2)
        machines.cut_off("h1")
        gangs = harness.root / "engine" / "gangs"
        wait_until(lambda: len(list(gangs.iterdir())) > 1 or not thread.is_alive(), 300, poll_s=0.2)
    finally:
        hold.touch()
        thread.join()
    (outcome,) = outcomes
    assert outcome["state"] == "success", outcome["failures"]
    (report_file,) = tmp_path.glob("state/runs/*/report.json")
    report = files.read(report_file)
    assert report.outcome == "succeeded"
    first, second = report.attempts
    assert first.fault is not None
    assert second.resumed_from_step == 5
    machines.join_again("h1")
    assert [gang.handle for gang in harness.engine.find_all()] == []


def saved(folder: Path) -> bool:
    return any(folder.glob("state/**/step-00000005/llmsched-seal.json"))
