from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from airflow_llmsched.cli import demo
from airflow_llmsched.cli.demo_view import DemoView
from airflow_llmsched.testing.airflow_stack import running_stack
from airflow_llmsched.testing.keeper import marked
from tests.support.demo_run import node_report, view
from tests.support.waiting import wait_until


class Engine:
    """Records the preemption it is asked for."""

    asked: list[tuple[str, float, float]]

    def __init__(self, root: str, num_nodes: int, slots_per_node: int) -> None:
        self.root = root

    def preempt(self, node: str, *, grace_s: float, return_after_s: float) -> None:
        Engine.asked.append((node, grace_s, return_after_s))
        if node == "broken":
            raise RuntimeError("no such node")


@pytest.fixture
def preemption(monkeypatch, tmp_path) -> demo.Preemption:
    Engine.asked = []
    monkeypatch.setattr(demo, "load", lambda *_: Engine)
    return demo.Preemption(tmp_path, DemoView(Console(file=io.StringIO())))


def _run(step: int, saved: list[int], node: str = "n1"):
    first = node_report("n0", 1, ranks=[0, 1], steps=[step], saved=saved)
    return view(first, node_report(node, 1, ranks=[2, 3]))


@pytest.mark.parametrize(
    ("step", "saved", "ready"), [(39, [30], False), (40, [], False), (40, [30], True), (90, [30, 60], True)]
)
def test_a_node_is_taken_at_40_percent_and_not_before_there_is_a_checkpoint(step, saved, ready):
    assert demo.ready_to_preempt(_run(step, saved)) is ready


def test_no_node_is_taken_from_a_gang_on_a_single_one():
    assert not demo.ready_to_preempt(view(node_report("n0", 1, ranks=[0, 1], steps=[90], saved=[30])))


def test_the_node_of_the_highest_ranks_is_taken_once_for_longer_than_the_run(preemption):
    for step in (50, 51, 52):
        preemption.consider(_run(step, [30]))
    wait_until(lambda: Engine.asked, limit_s=5)
    preemption._thread.join()
    assert Engine.asked == [("n1", demo.GRACE_S, demo.AWAY_S)]
    assert demo.AWAY_S > demo.RUN_LIMIT_S


def test_a_preemption_that_fails_is_kept_for_the_verdict(preemption):
    preemption.consider(_run(50, [30], node="broken"))
    preemption._thread.join()
    assert str(preemption.error) == "no such node"


def test_the_report_is_kept_outside_of_what_the_next_demo_empties(tmp_path):
    directory = tmp_path / "state" / "runs" / "ls-x"
    directory.mkdir(parents=True)
    (directory / "report.html").write_text("<html>")
    (directory / "report.json").write_text("{}")
    kept = demo._keep_report(directory, tmp_path)
    assert kept.read_text() == "<html>"
    assert kept.is_relative_to(tmp_path / "reports")
    assert kept.with_name("report.json").exists()


def test_the_points_of_contact_match_the_shipped_dag(checkout):
    source = (checkout / "dags" / f"{demo.DAG_ID}.py").read_text()
    assert f'dag_id="{demo.DAG_ID}"' in source
    assert f'engine="{demo.ENGINE}"' in source
    options = ", ".join(f'"{name}": {value}' for name, value in demo.ENGINE_OPTIONS.items())
    assert options in source


def test_without_a_checkout_it_says_where_to_run_it(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_CHECKOUT", tmp_path)
    with pytest.raises(demo.LlmschedError, match="run the demo from a checkout"):
        demo._demo(Console(file=io.StringIO()), tmp_path, keep=False)


@pytest.mark.stack
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals):
    mark = f"LLMSCHED_TEST_MARK=demo-{number}-{os.getpid()}"
    begun_in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]  # as a script's `make demo &` does
    process = subprocess.Popen(
        [*begun_in_background, sys.executable, "-m", "airflow_llmsched.cli.demo", "--folder", str(tmp_path)],
        env=os.environ | dict([mark.split("=")]),
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: (running_stack(tmp_path / "airflow") or {}).get("components"), limit_s=60)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in out
    assert running_stack(tmp_path / "airflow") is None
    assert marked(mark) == []
