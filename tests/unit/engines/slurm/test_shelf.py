"""The shelf through a command over there: that it is the same as the one at hand, and never mistakes silence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_llmsched.agent import shelf as at_hand
from airflow_llmsched.engines.slurm.runner import Completed, LocalRunner
from airflow_llmsched.engines.slurm.shelf import RemoteShelf
from airflow_llmsched.errors import CouldNotLookError
from tests.support.source import ROOT

NAME = "ls-run-g1-a1"
SUBMIT = {"channel_root": "/c", "origin": None, "wanted": {"n1": 2}}


class Says:
    """A runner that answers one thing."""

    def __init__(self, done: Completed) -> None:
        self._done = done

    def run(self, argv: object, *, stdin: str = "", limit_s: float) -> Completed:
        return self._done


def test_calls_over_there_do_what_calls_here_do(tmp_path: Path) -> None:
    runner = LocalRunner(environment={"PYTHONPATH": str(ROOT)})
    far = RemoteShelf(runner=runner, python=sys.executable, root=str(tmp_path))
    near = at_hand.Shelf(tmp_path)
    assert far.claim(name=NAME, submit=SUBMIT, environment={})
    assert not far.abandon(name=NAME)
    assert far.names() == near.names() == [NAME]
    far.stop(name=NAME, grace_s=2.0)
    assert far.give_up(name=NAME, reason="no more")
    assert far.look(names=[NAME, "ls-other-g1-a1"]) == near.look(names=[NAME, "ls-other-g1-a1"])
    assert far.end(name=NAME, status={"phase": "stopped"}) == near.end(name=NAME, status={})
    assert far.log_tails(name=NAME, ranks=[0, 1], num_lines=3) == ["", ""]


@pytest.mark.parametrize(
    ("done", "says"),
    [
        (Completed(exit_code=1, stdout="", stderr="Traceback\nPermission denied: /x"), "Permission denied: /x"),
        (Completed(exit_code=0, stdout="motd: welcome", stderr=""), "answered no JSON"),
        (Completed(exit_code=0, stdout='{"other": 1}', stderr=""), "answered no JSON"),
    ],
)
def test_answer_that_makes_no_sense_is_no_answer(done: Completed, says: str) -> None:
    with pytest.raises(CouldNotLookError, match=says):
        RemoteShelf(runner=Says(done), python="python3", root="/shared").names()
