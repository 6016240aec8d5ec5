"""The ``llmsched`` command: a list of sub-commands, each in a module of its own."""

from __future__ import annotations

import typer

from airflow_llmsched.cli import spec_commands

app = typer.Typer(
    name="llmsched",
    help="Pretrain language models from Apache Airflow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

app.command("check")(spec_commands.check)
app.command("schema")(spec_commands.schema)
