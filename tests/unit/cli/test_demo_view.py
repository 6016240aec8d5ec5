from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from airflow_llmsched.cli.demo_view import DemoView, _Seen
from tests.support.demo_run import node_report, view


@pytest.fixture
def plain() -> tuple[DemoView, io.StringIO]:
    out = io.StringIO()
    return DemoView(Console(file=out, width=100)), out


def _lines(out: io.StringIO) -> list[str]:
    """What was printed, without the time of day."""
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in out.getvalue().splitlines()]


def test_off_a_terminal_a_task_is_told_once_per_state(plain):
    demo_view, out = plain
    with demo_view:
        for states in ({"a": "running", "b": None}, {"a": "running", "b": None}, {"a": "success", "b": "queued"}):
            demo_view.tasks(states)
    assert _lines(out) == ["task a: running", "task a: success", "task b: queued"]


def test_off_a_terminal_training_is_told_without_repeating_itself(plain):
    demo_view, out = plain
    reports = [node_report("n0", 1, ranks=[0, 1], steps=[1, 2], saved=[2]), node_report("n1", 1, ranks=[2, 3])]
    demo_view.run(view(*reports))
    demo_view.run(view(*reports))
    assert _lines(out) == [
        "run watching",
        "attempt 1 trains with 4 ranks on n0, n1, first step 1",
        "checkpoint of step 2 is durable",
        "attempt 1, 4 ranks: step 2/100, loss 3.980",
    ]


def test_training_that_stands_still_is_told_once():
    seen = _Seen()
    run = view(node_report("n0", 1, ranks=[0], steps=[40]))
    told = [seen.news(run, now_s=now_s, with_steps=True) for now_s in (100.0, 200.0, 300.0)]
    assert told[0][-1] == "attempt 1, 1 ranks: step 40/100, loss 3.600"
    assert told[1:] == [[], []]


def test_the_next_attempt_is_told_with_its_ranks_and_where_it_resumed(plain):
    demo_view, out = plain
    demo_view.run(view(node_report("n0", 1, ranks=[0, 1], steps=[1])))
    demo_view.run(view(node_report("n0", 1, ranks=[0], steps=[31]), attempt=2, phase="recovering"))
    assert _lines(out)[-2:] == ["run recovering", "attempt 2 trains with 1 ranks on n0, first step 31"]


def test_text_of_others_is_not_taken_for_markup(plain):
    demo_view, out = plain
    demo_view.event("[red]$(rm -rf)[/red]")
    assert _lines(out) == ["[red]$(rm -rf)[/red]"]


def test_on_a_terminal_the_panel_shows_tasks_progress_and_events():
    out = io.StringIO()
    demo_view = DemoView(Console(file=out, force_terminal=True, width=100, height=30, _environ={}))
    with demo_view:
        demo_view.tasks({"run_gang": "deferred", "report": None})
        demo_view.run(view(node_report("n0", 1, ranks=[0], steps=[40])))
        demo_view.event("preempting node n0")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    for expected in ("run_gang", "waiting", "attempt 1, 1 ranks: step 40/100", "preempting node n0"):
        assert expected in text
