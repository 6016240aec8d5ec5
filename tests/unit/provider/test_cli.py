from __future__ import annotations

import argparse

import pytest
from airflow.cli.cli_parser import _add_command

from airflow_llmsched.cli.main import app
from airflow_llmsched.provider.cli import get_cli_commands


@pytest.fixture
def airflow_cli():
    """Runs ``airflow ARGUMENTS`` with our command group, as Airflow's parser would."""
    parser = argparse.ArgumentParser(prog="airflow")
    subparsers = parser.add_subparsers(required=True)
    for group in get_cli_commands():
        _add_command(subparsers, group)

    def run(*arguments):
        parsed = parser.parse_args(arguments)
        with pytest.raises(SystemExit) as ended:
            parsed.func(parsed)
        return ended.value.code or 0

    return run


def test_every_command_of_llmsched_is_one_of_airflows():
    (group,) = get_cli_commands()
    assert {command.name for command in group.subcommands} == {command.name for command in app.registered_commands}


def test_a_sound_spec_passes(airflow_cli, checkout, capsys):
    assert airflow_cli("llmsched", "check", str(checkout / "dags" / "specs" / "byte_gpt_demo.yaml")) == 0
    assert "byte-gpt" in capsys.readouterr().out


def test_an_unsound_spec_fails_with_its_mistakes(airflow_cli, tmp_path, capsys):
    spec = tmp_path / "a b.yaml"
    spec.write_text("version: 1\nname: x\nbatsh: {}\n")
    assert airflow_cli("llmsched", "check", str(spec)) != 0
    assert "batsh" in "".join(capsys.readouterr())


def test_options_follow_two_dashes(airflow_cli, capsys):
    assert airflow_cli("llmsched", "plan", "--", "--help") == 0
    assert "Usage" in capsys.readouterr().out


def test_the_schema_is_printed(airflow_cli, capsys):
    assert airflow_cli("llmsched", "schema") == 0
    assert '"properties"' in capsys.readouterr().out
