"""``airflow llmsched``: the ``llmsched`` command under Airflow's own."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

_REST = Arg(("arguments",), nargs="*", help="arguments of the llmsched command, after --")


def get_cli_commands() -> list[GroupCommand]:
    """Return the command group for Airflow's parser. Nothing of ours is imported until a command runs."""
    commands = [
        ActionCommand(name="check", help="Check a workload spec", func=_forward("check"), args=(_REST,)),
        ActionCommand(name="schema", help="Print the JSON Schema of a spec", func=_forward("schema"), args=(_REST,)),
        ActionCommand(name="place", help="Place gangs side by side", func=_forward("place"), args=(_REST,)),
        ActionCommand(name="plan", help="Plan a workload without starting it", func=_forward("plan"), args=(_REST,)),
        ActionCommand(name="fleet", help="Check or show a fleet file", func=_forward("fleet"), args=(_REST,)),
        ActionCommand(name="hardware", help="Show known machines", func=_forward("hardware"), args=(_REST,)),
        ActionCommand(name="market", help="Show prices and their forecast", func=_forward("market"), args=(_REST,)),
        ActionCommand(name="calibrate", help="Fit plans to finished runs", func=_forward("calibrate"), args=(_REST,)),
        ActionCommand(name="budget", help="Answer a run that asks for money", func=_forward("budget"), args=(_REST,)),
        ActionCommand(name="reap", help="Stop gangs that outlived their runs", func=_forward("reap"), args=(_REST,)),
        ActionCommand(name="topology", help="Show or compare topologies", func=_forward("topology"), args=(_REST,)),
        ActionCommand(name="report", help="Summarise a finished run", func=_forward("report"), args=(_REST,)),
    ]
    return [GroupCommand(name="llmsched", help="Plan, check and report pretraining runs", subcommands=commands)]


def _forward(command: str) -> Any:
    def run(args: Any) -> None:
        from airflow_llmsched.cli.main import app

        app([command, *args.arguments])

    return run
