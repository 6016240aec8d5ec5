"""``llmsched plan --write-out``: a plan as the settings of a tool, to a file or to the screen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.export.planned import planned_run
from airflow_llmsched.planner.export.tools import Settings, find_tool, write_out
from airflow_llmsched.reports.files import replace_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to write out, and where to: None is the screen."""

    tool: str
    path: Path | None


def read_target(text: str, *, needs_file: bool) -> Target:
    """Return what ``TOOL[:FILE]`` says.

    Raises:
        SpecError: there is no such tool.
        typer.BadParameter: a file is needed, as the screen is taken.
    """
    tool, _, path = text.partition(":")
    find_tool(tool)
    if needs_file and not path:
        raise typer.BadParameter(f"{tool} needs a file beside --json, as in {tool}:FILE", param_hint="--write-out")
    return Target(tool=tool, path=Path(path) if path else None)


def settings_of(tool: str, workload: WorkloadSpec, found: PlanSearch, *, number: int) -> Settings:
    """Return one plan as settings of ``tool``. Raises ``SpecError``: no such plan, or one that it cannot express."""
    if number > len(found.plans):
        raise SpecError(path="--plan", value=number, hint=f"there are {len(found.plans)} plans")
    return write_out(tool, planned_run(workload, found.plans[number - 1]))


def write_settings(settings: Settings, target: Target) -> None:
    """Write settings to the target's file, or print them; say what is left to do either way.

    Raises:
        SpecError: the file cannot be written.
    """
    if target.path is None:
        typer.echo(f"\n{settings.file_name}:\n{settings.text}", nl=False)
    else:
        try:
            replace_file(target.path, settings.text.encode())
        except OSError as error:
            raise SpecError(path=str(target.path), hint=f"cannot be written: {error.strerror}") from None
    for note in settings.notes:
        typer.echo(f"note: {note}", err=True)
