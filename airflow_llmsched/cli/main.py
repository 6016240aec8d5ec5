"""The ``llmsched`` command: a list of sub-commands, each in a module of its own."""

from __future__ import annotations

import typer

from airflow_llmsched.cli import (
    budget_commands,
    calibrate_commands,
    fleet_commands,
    hardware_commands,
    market_commands,
    place_commands,
    plan_commands,
    reap_commands,
    report_commands,
    spec_commands,
    topology_commands,
)

app = typer.Typer(
    name="llmsched",
    help="Pretrain language models from Apache Airflow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

app.command("budget")(budget_commands.budget)
app.command("calibrate")(calibrate_commands.calibrate)
app.command("check")(spec_commands.check)
app.command("fleet")(fleet_commands.fleet)
app.command("hardware")(hardware_commands.show)
app.command("market")(market_commands.market)
app.command("place")(place_commands.place)
app.command("plan")(plan_commands.plan)
app.command("reap")(reap_commands.reap)
app.command("report")(report_commands.report_command)
app.command("schema")(spec_commands.schema)
app.command("topology")(topology_commands.topology)
