from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from airflow_llmsched.cli.plan_commands import EXIT_BAD_SPEC, EXIT_NO_PLAN, plan
from airflow_llmsched.cli.plan_mixed import read_kinds
from airflow_llmsched.codec import from_json
from airflow_llmsched.errors import SpecError
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.mixed import MixedSearch
from airflow_llmsched.planner.perf.calibration import packaged
from tests.support.specs import small

APP = typer.Typer()
APP.command("plan")(plan)
BIG = {
    "model": "llama-3.1-8b", "precision": {"compute": "bf16"}, "launcher": {"command": ["train"]},
    "batch": {"sequence_length": 4096, "global_batch": "256 sequences"}, "capacity": {},
}  # fmt: skip


def run(tmp_path: Path, gpus: str, *arguments: str, **changes: object) -> Result:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(small({**BIG, **changes})))
    return CliRunner().invoke(APP, [str(path), "--gpus", gpus, *arguments])


def test_two_shapes_are_planned_as_one_gang(tmp_path: Path) -> None:
    result = run(tmp_path, "8xp5.48xlarge,8xp4de.24xlarge")
    assert result.exit_code == 0, result.output
    assert "Chosen: uneven" in result.output
    assert "p4de.24xlarge: 8 ranks" in result.output


def test_the_same_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, "8xp5.48xlarge,8xp4de.24xlarge", "--json")
    assert result.exit_code == 0, result.output
    found = from_json(MixedSearch, result.output)
    assert {share.node_shape for share in found.plans[0].shares} == {"p5.48xlarge", "p4de.24xlarge"}


def test_what_a_kind_cannot_compute_is_an_error_that_names_it(tmp_path: Path) -> None:
    result = run(tmp_path, "8xp5.48xlarge,8xp4de.24xlarge", precision={"compute": "fp8"})
    assert result.exit_code == EXIT_BAD_SPEC
    assert "a100-80gb has no such number format" in result.stderr


def test_a_pinned_degree_is_kept_and_one_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    result = run(tmp_path, "8xp5.48xlarge,8xp4de.24xlarge", "--json", parallelism={"tp": 8})
    assert {plan.layout.tp for plan in from_json(MixedSearch, result.output).plans} == {8}
    result = run(tmp_path, "8xp5.48xlarge,8xp4de.24xlarge", parallelism={"cp": 2})
    assert result.exit_code == EXIT_BAD_SPEC
    assert "parallelism.cp = 2: is not tried for a gang of several kinds of machines" in result.stderr


def test_no_plan_has_its_exit_code(tmp_path: Path) -> None:
    result = run(tmp_path, "8xp5.48xlarge,8xp4de.24xlarge", model="llama-3.1-405b")
    assert result.exit_code == EXIT_NO_PLAN, result.output


def test_pages_and_settings_of_a_mixed_plan_are_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "8xp5.48xlarge,8xp4de.24xlarge", "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 2


@pytest.mark.parametrize("gpus", ["8xp5.48xlarge,8xp5.48xlarge", "8xp5.48xlarge,4xp4de.24xlarge", "8xp5.48xlarge,8xp9"])
def test_kinds_that_make_no_sense_are_refused(gpus: str) -> None:
    with pytest.raises(SpecError):
        read_kinds(gpus)


def test_a_kind_that_was_measured_to_be_slower_gets_less_to_do(tmp_path: Path) -> None:
    known = packaged()
    rates = known.kinds["ampere"].rates
    slower = replace(known.kinds["ampere"], rates=replace(rates, matmul_ratio=rates.matmul_ratio / 3))
    calibration_file.save(open_store(str(tmp_path)), replace(known, kinds={"ampere": slower}))

    def share(*arguments: str) -> int:
        result = run(tmp_path, "8xp5.48xlarge,8xp4de.24xlarge", "--json", *arguments)
        plan = from_json(MixedSearch, result.output).plans[0]
        return next(sum(each.amounts) for each in plan.shares if each.node_shape == "p4de.24xlarge")

    assert share("--state-root", str(tmp_path)) < share()
