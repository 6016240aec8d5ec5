from __future__ import annotations

import os
import sys
from pathlib import Path

from airflow_llmsched.agent.children import Children
from airflow_llmsched.agent.launchers.site import Start
from tests.support.waiting import wait_until


def start(program: str, *, is_helper: bool = False) -> Start:
    return Start([sys.executable, "-S", "-E", "-c", program], dict(os.environ), is_helper=is_helper)


def test_ends_of_trainers_and_of_helpers_are_told_apart(tmp_path: Path) -> None:
    children = Children(log=tmp_path / "log")
    children.start([start("raise SystemExit(3)"), start("import os; os.kill(os.getpid(), 9)", is_helper=True)])

    def all_ended() -> bool:
        children.reap()
        return len(children.codes(with_helpers=True)) == 2

    wait_until(all_ended, 60)
    assert children.codes(with_helpers=False) == [3]
    assert sorted(children.codes(with_helpers=True)) == [-9, 3]


def test_helper_that_runs_on_is_no_trainer_left(tmp_path: Path) -> None:
    children = Children(log=tmp_path / "log")
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    children.start([start("pass"), start(f"import os; os.read({reader}, 1)", is_helper=True)])
    assert children.are_trainers_left

    def trainers_ended() -> bool:
        children.reap()
        return not children.are_trainers_left

    wait_until(trainers_ended, 60)
    assert children.codes(with_helpers=True) == [0]
    os.close(writer)
    os.close(reader)

    def helper_ended() -> bool:
        children.reap()
        return len(children.codes(with_helpers=True)) == 2

    wait_until(helper_ended, 60)


def test_nothing_is_left_where_nothing_was_started(tmp_path: Path) -> None:
    children = Children(log=tmp_path / "log")
    children.reap()
    assert children.codes(with_helpers=True) == []
    assert not children.are_trainers_left
