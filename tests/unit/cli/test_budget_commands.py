from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_llmsched.cli.main import app
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.allowances import Allowances
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.objects.local import LocalStore
from tests.support.sim_house import RUN


@pytest.fixture
def root(tmp_path: Path) -> Path:
    opened = ev.Opened(at_s=1.0, generation=1, asked_generation=0)
    Journal(LocalStore(str(tmp_path)), RUN).append((opened,), number=1)
    return tmp_path


def run(root: Path, *arguments: str):
    return CliRunner().invoke(app, ["budget", *arguments, "--state-root", str(root)])


def test_a_look_changes_nothing_and_says_how_the_run_stands(root: Path) -> None:
    shown = run(root, RUN)
    assert shown.exit_code == 0
    assert f"run {RUN} is closing and may spend what its spec says in all" in shown.output
    assert Allowances(LocalStore(str(root)), RUN).newest() is None


def test_an_answer_is_kept_with_who_gave_it(root: Path) -> None:
    shown = run(root, RUN, "--max-usd", "1250.5")
    assert "may spend $1,250.50 in all" in shown.output
    newest = Allowances(LocalStore(str(root)), RUN).newest()
    assert newest is not None
    assert (newest.max_usd, bool(newest.by)) == (1250.5, True)


def test_a_run_that_is_not_there_is_not_begun(root: Path) -> None:
    shown = run(root, "ls-" + "b" * 20, "--max-usd", "5")
    assert shown.exit_code == 1
    assert shown.stderr.startswith(f"error: no run ls-{'b' * 20} below {root}: ")
    assert not (root / "runs" / ("ls-" + "b" * 20) / "allowances").exists()


def test_what_is_no_sum_is_refused(root: Path) -> None:
    shown = run(root, RUN, "--max-usd", "0")
    assert shown.exit_code == 1
    assert Allowances(LocalStore(str(root)), RUN).newest() is None
