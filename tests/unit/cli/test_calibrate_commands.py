from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from airflow_llmsched.cli.main import app
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE, node_shape
from airflow_llmsched.reports import files
from airflow_llmsched.reports.build import build_report
from tests.support.history import preempted_run
from tests.support.specs import small


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "workload.yaml"
    path.write_text(yaml.safe_dump(small()), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    built = build_report(**preempted_run())
    attempts = tuple(replace(each, node_shape=LOCAL_SHAPE) for each in built.attempts)
    files.write(replace(built, attempts=attempts), tmp_path / "run")
    return tmp_path / "run"


def calibrate(*arguments: object):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def test_what_runs_measured_is_kept_where_the_planner_looks(spec, run, tmp_path):
    shown = calibrate(spec, run, "--state-root", tmp_path / "state")
    assert shown.exit_code == 0, shown.output
    assert "80 % of steps within" in shown.output
    kept = calibration_file.load(open_store(str(tmp_path / "state")))
    assert kept is not None
    kind = kept.kinds["cpu"]
    assert sum(kind.num_rows_by_source.values()) == 2
    assert kept.rates_of(node_shape(LOCAL_SHAPE).accelerator) == kind.rates


def test_a_spec_that_these_runs_cannot_have_trained_is_said_to_be_another(spec, run):
    found = files.read(run)
    files.write(
        replace(found, attempts=tuple(replace(each, node_shape="p3dn.24xlarge") for each in found.attempts)), run
    )
    spec.write_text(yaml.safe_dump(small({"precision.compute": "bf16"})), encoding="utf-8")
    shown = calibrate(spec, run)
    assert shown.exit_code == 1
    assert "precision.compute = 'bf16': attempt 1 of" in shown.stderr
    assert "v100-32gb, which has none" in shown.stderr


def test_without_a_state_root_nothing_is_kept(spec, run, tmp_path):
    before = set(tmp_path.rglob("*"))
    assert calibrate(spec, run).exit_code == 0
    assert set(tmp_path.rglob("*")) == before


def test_runs_that_tell_nothing_are_said_to(spec, run):
    files.write(replace(files.read(run), attempts=()), run)
    shown = calibrate(spec, run)
    assert shown.exit_code == 1
    assert "no attempt of these runs has 10 steps" in shown.output


def test_a_folder_without_a_report_is_named(spec, tmp_path):
    shown = calibrate(spec, tmp_path / "nowhere")
    assert shown.exit_code == 1
    assert "nowhere" in shown.output


def test_a_missing_library_is_asked_for_by_its_extra(spec, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    shown = calibrate(spec, run)
    assert shown.exit_code == 1
    assert "airflow-provider-llmsched[learn]" in shown.output
