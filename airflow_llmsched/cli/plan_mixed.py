"""``llmsched plan`` on nodes of several shapes at once, as in ``--gpus 16xp5.48xlarge,32xp4de.24xlarge``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from airflow_llmsched.cli.plan_calibration import reckoned_with
from airflow_llmsched.cli.plan_fleet import read_fleet
from airflow_llmsched.codec import to_json
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.mixed import LikeNodes, explain_mixed, plan_mixed
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.specs import loader

BETWEEN_SHAPES = ","


def refuse_beside(*options: object | None) -> None:
    """Raise ``typer.BadParameter`` if any option is given that says nothing of a plan on several shapes."""
    if any(each is not None for each in options):
        raise typer.BadParameter("with several shapes goes with --json alone", param_hint="--gpus")


def read_kinds(gpus: str) -> list[LikeNodes]:
    """Return the nodes of each shape that ``N1xSHAPE1,N2xSHAPE2`` names.

    Raises:
        typer.BadParameter: a part that is no number of accelerators of a shape.
        SpecError: no such shape, a number that does not fill its nodes, or a shape that is named twice.
    """
    kinds = []
    for part in gpus.split(BETWEEN_SHAPES):
        fleet = read_fleet(part.strip(), nodes=None, slots=None, shape=None, usd_per_hour=None)
        if fleet.num_slots < fleet.shape.num_accelerators:
            hint = f"nodes of {fleet.shape.name} have {fleet.shape.num_accelerators} accelerators: fill whole ones"
            raise SpecError(path="--gpus", value=part, hint=hint)
        kinds.append(LikeNodes(shape=fleet.shape, num_nodes=fleet.num_nodes))
    names = [kind.shape.name for kind in kinds]
    if len(set(names)) < len(names):
        raise SpecError(path="--gpus", value=gpus, hint="names a shape twice: add its accelerators up")
    return kinds


def plan_on_kinds(spec: Path, gpus: str, *, calibration: Calibration | None, as_json: bool) -> bool:
    """Plan, print the plan in words or as JSON, and tell whether there is one.

    Raises:
        SpecError: the spec is unsound or has no model, a kind lacks its number format, or :func:`read_kinds` refuses.
    """
    workload = loader.load(spec)
    kinds = read_kinds(gpus)
    if workload.model is None:
        raise SpecError(path="model", hint="is needed to share a run out between kinds of machines")
    for kind in kinds:
        if workload.precision.compute not in kind.shape.accelerator.peak_flop_per_s:
            hint = f"{kind.shape.accelerator.name} has no such number format"
            raise SpecError(path="precision.compute", value=workload.precision.compute.value, hint=hint)
    found = plan_mixed(workload, [replace(kind, calibration=calibration) for kind in kinds])
    reckoned = "" if calibration is None else f"\n{reckoned_with(calibration)}"
    typer.echo(to_json(found) if as_json else explain_mixed(found) + reckoned)
    return bool(found.plans)
