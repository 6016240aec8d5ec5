from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from airflow_llmsched.cli.state_root import VARIABLE, state_root_option


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def say(state_root: Annotated[str, state_root_option()]) -> None:
        typer.echo(state_root)

    return app


def test_it_is_given_by_name_or_else_as_airflow_has_it(app: typer.Typer) -> None:
    runner = CliRunner()
    assert runner.invoke(app, [], env={VARIABLE: "/mnt/runs"}).stdout == "/mnt/runs\n"
    assert runner.invoke(app, ["--state-root", "/here"], env={VARIABLE: "/mnt/runs"}).stdout == "/here\n"


def test_a_command_that_needs_it_asks_for_it_by_name(app: typer.Typer) -> None:
    answer = CliRunner().invoke(app, [], env={VARIABLE: ""})
    assert answer.exit_code == 2
    assert "--state-root" in answer.output
