from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from airflow_llmsched.cli.main import app
from airflow_llmsched.cli.plan_calibration import kept_calibration
from airflow_llmsched.codec import from_json
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.errors import SpecError
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.calibration import packaged
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.rates import generation_of
from tests.support.specs import small


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(small()), encoding="utf-8")
    return path


def plan(spec: Path, *arguments: object, state_root: str | None = None):
    environment = {"AIRFLOW__LLMSCHED__STATE_ROOT": state_root}
    return CliRunner(env=environment).invoke(app, ["plan", str(spec), *map(str, arguments)])


def keep_slower_machines(state_root: Path) -> None:
    """Keep a calibration under which local machines have half of the matrix rate."""
    known = packaged()
    generation = generation_of(node_shape("local-cpu").accelerator)
    rates = known.rates_of_generation(generation)
    slower = replace(known.kinds["ampere"], rates=replace(rates, matmul_ratio=rates.matmul_ratio / 2))
    kept = replace(known, fitted_on="2026-11-30", kinds={**known.kinds, generation: slower})
    calibration_file.save(open_store(str(state_root)), kept)


def step_s(result) -> float:
    assert result.exit_code == 0, result.output
    return from_json(PlanSearch, result.output).plans[0].prediction.step_s


def test_plans_reckon_with_what_was_calibrated_as_the_runs_of_that_deployment_do(spec: Path, tmp_path: Path) -> None:
    keep_slower_machines(tmp_path)
    usual = step_s(plan(spec, "--json"))
    assert step_s(plan(spec, "--json", "--state-root", tmp_path)) > 1.2 * usual
    assert step_s(plan(spec, "--json", state_root=str(tmp_path))) > 1.2 * usual
    assert "Reckoned with the calibration of 2026-11-30" in plan(spec, "--state-root", tmp_path).output


def test_without_a_calibration_at_the_state_root_the_packaged_one_counts(spec: Path, tmp_path: Path) -> None:
    assert kept_calibration(None) is None
    assert kept_calibration(str(tmp_path)) is None
    assert step_s(plan(spec, "--json", "--state-root", tmp_path)) == step_s(plan(spec, "--json"))


def test_a_calibration_that_cannot_be_read_is_an_error_that_names_it(spec: Path, tmp_path: Path) -> None:
    (tmp_path / calibration_file.KEY).write_text("no calibration = ")
    with pytest.raises(SpecError, match=r"state-root.*calibration\.toml"):
        kept_calibration(str(tmp_path))
    assert plan(spec, "--state-root", tmp_path).exit_code == 1
