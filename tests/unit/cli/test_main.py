"""The command lists its sub-commands."""

from __future__ import annotations

from typer.testing import CliRunner

from airflow_llmsched.cli.main import app


def test_help_names_the_spec_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "check" in result.output
    assert "schema" in result.output
