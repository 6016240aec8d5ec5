"""``llmsched calibrate``: what the runs of a deployment tell about its machines, for the plans of the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from airflow_llmsched.cli import calibrate_rows
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import DataError, SpecError, StoreError
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.learning.calibration import calibrate as fit
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.calibration import Calibration, StepKind, packaged
from airflow_llmsched.planner.perf.history import MIN_STEPS, measured_attempts
from airflow_llmsched.planner.perf.measured import MeasuredStep
from airflow_llmsched.reports import files
from airflow_llmsched.specs import loader

EXIT_NOTHING = 1

_RUNS = "Run folders, the report.json in them, or tables of measured steps (.csv)."


def calibrate(
    spec: Annotated[Path, typer.Argument(help="The workload spec that the runs trained.", show_default=False)],
    runs: Annotated[list[Path], typer.Argument(help=_RUNS, show_default=False)],
    state_root: Annotated[
        Path | None, typer.Option(help="State root whose planner is to use the fit; without it, nothing is kept.")
    ] = None,
) -> None:
    """Fit what machines really reach to the step times of finished RUNS of SPEC."""
    try:
        steps = _measured(loader.load(spec), runs)
        if not steps:
            typer.echo(f"error: no attempt of these runs has {MIN_STEPS} steps of one known model and batch", err=True)
            raise typer.Exit(EXIT_NOTHING)
        found = fit(steps, prior=packaged().rates_of_generation, fitted_on=datetime.now(UTC).date().isoformat())
        if state_root is not None:
            calibration_file.save(open_store(str(state_root)), found)
    except SpecError as error:
        for each in error.errors:
            typer.echo(f"error: {each}", err=True)
        raise typer.Exit(EXIT_NOTHING) from None
    except (DataError, StoreError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_NOTHING) from None
    except ModuleNotFoundError as error:
        typer.echo(f"error: {error.name} is missing: pip install 'airflow-provider-llmsched[learn]'", err=True)
        raise typer.Exit(EXIT_NOTHING) from None
    Console().print(_table(found))


def _measured(workload: WorkloadSpec, runs: Sequence[Path]) -> Sequence[MeasuredStep]:
    return [step for run in runs for step in _measured_in(run, workload)]


def _measured_in(run: Path, workload: WorkloadSpec) -> Sequence[MeasuredStep]:
    if run.suffix.lower() == calibrate_rows.SUFFIX:
        return calibrate_rows.read_rows(run, workload)
    steps = measured_attempts(files.read(run), workload)
    for step in steps:
        accelerator, compute = step.shape.accelerator, step.job.precision.compute
        if compute not in accelerator.peak_flop_per_s:
            hint = (
                f"attempt {step.row} of {step.source} ran on {accelerator.name}, which has none: name the spec it ran"
            )
            raise SpecError(path="precision.compute", value=compute.value, hint=hint)
    return steps


_STEPS = {
    StepKind.PLAIN: "most steps",
    StepKind.MIXTURE: "mixtures of experts",
    StepKind.HOST_BOUND: "those that wait for the host",
}


def _table(found: Calibration) -> Table:
    table = Table(title="what was fitted", title_justify="left")
    for heading in ("accelerators", "steps", "sources", "error of what was left out", "80 % of steps within"):
        table.add_column(heading)
    for generation, kind in found.kinds.items():
        bands = (found.error_ratio_of_generation(generation, of) for of in StepKind)
        table.add_row(
            generation,
            str(sum(kind.num_rows_by_source.values())),
            str(len(kind.num_rows_by_source)),
            f"{kind.left_out_error_ratio:.1%}",
            ", ".join(f"{band:.1%} ({_STEPS[of]})" for of, band in zip(StepKind, bands, strict=True)),
        )
    return table
