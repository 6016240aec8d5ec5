"""What a person sees who plans a spec on a described fleet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from airflow_llmsched.cli.plan_commands import EXIT_BAD_SPEC, EXIT_NO_PLAN, plan
from airflow_llmsched.codec import from_json
from airflow_llmsched.domain.layout import Offload
from airflow_llmsched.domain.plan import PlanSearch
from tests.support.specs import small

APP = typer.Typer()
APP.command("plan")(plan)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(small({"name": "run [red]$(x)[/red]"})))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


def test_plan_prints_plans_reasons_and_an_explanation(spec: Path) -> None:
    result = run(spec, "--nodes", 2, "--slots", 2)
    assert result.exit_code == 0, result.output
    assert "run [red]$(x)[/red]: plans, best first" in result.output
    for part in ("dp=4", "Chosen: dp=4", "Turned down, of", "deepspeed, accelerate, and for who starts its ranks:"):
        assert part in result.output


def test_plan_prints_a_search_as_json(spec: Path) -> None:
    result = run(spec, "--nodes", 2, "--slots", 2, "--json")
    assert result.exit_code == 0
    found = from_json(PlanSearch, json.dumps(json.loads(result.output)))
    assert found.plans[0].layout.dp == 4
    assert found.plans[0].node_shape == "local-cpu"


def test_slots_default_to_the_shapes_own_and_the_price_can_be_set(spec: Path) -> None:
    result = run(spec, "--shape", "p5.48xlarge", "--usd-per-hour", 12, "--json")
    assert result.exit_code == 0, result.output
    found = from_json(PlanSearch, result.output)
    assert {plan.prediction.usd_per_hour for plan in found.plans} == {12.0}
    assert max(plan.layout.world_size for plan in found.plans) == 8


def test_no_plan_is_an_exit_code_and_advice(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(small({"capacity": {"min_ranks": 8}})))
    result = run(path, "--nodes", 2, "--slots", 2)
    assert result.exit_code == EXIT_NO_PLAN == 3
    assert "What would help: wait for capacity" in result.output


def test_a_bad_spec_or_shape_is_an_error_with_a_hint(spec: Path, tmp_path: Path) -> None:
    unknown = run(spec, "--shape", "p9")
    assert unknown.exit_code == EXIT_BAD_SPEC
    assert "known: " in unknown.stderr
    missing = run(tmp_path / "none.yaml")
    assert missing.exit_code == EXIT_BAD_SPEC
    assert "cannot be read" in missing.stderr


def test_the_exit_code_tells_a_wrong_command_line_from_a_bad_spec_and_from_no_plan(spec: Path) -> None:
    codes = {run(spec, "--nodse", 2).exit_code, run(spec, "--nodes", 0).exit_code, run().exit_code}
    assert codes == {2}
    assert len({2, EXIT_BAD_SPEC, EXIT_NO_PLAN, 0}) == 4


def test_nothing_is_offloaded_unless_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(small({"model": "llama-3.1-8b", "launcher": {"command": ["train"]}})))
    fleet = ("--shape", "p5.48xlarge", "--slots", 1)
    refused = run(path, *fleet)
    assert refused.exit_code == EXIT_NO_PLAN
    assert "or an offload" in refused.output
    found = from_json(PlanSearch, run(path, *fleet, "--may-offload", "--json").output)
    assert found.plans
    assert all(plan.layout.offload is not Offload.NONE for plan in found.plans)


def test_gpus_fill_nodes_of_a_shape(spec: Path) -> None:
    result = run(spec, "--gpus", "16xp5.48xlarge", "--json")
    assert result.exit_code == 0, result.output
    found = from_json(PlanSearch, result.output)
    assert max(len(plan.placement.nodes) for plan in found.plans) == 2


def test_a_network_that_cannot_add_up_is_told(spec: Path) -> None:
    refused = run(spec, "--gpus", "16xp5.48xlarge", "--sharp")
    assert refused.exit_code == EXIT_BAD_SPEC
    assert "--sharp: nodes of p5.48xlarge are joined by efa2, whose switches cannot add up" in refused.output
    assert run(spec, "--gpus", "2xlocal-cpu,8xp5.48xlarge", "--sharp").exit_code == 2


def test_the_choice_is_compared_with_what_is_one_change_away(spec: Path) -> None:
    result = run(spec, "--nodes", 2, "--slots", 2)
    assert "One thing changed at a time, on the same ranks and nodes:" in result.output
    assert "The micro-batch stays at" in result.output


def test_a_page_with_figures_is_written(spec: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert run(spec, "--nodes", 2, "--slots", 2, "--html", page).exit_code == 0
    text = page.read_text()
    assert "run [red]$(x)[/red]" in text
    assert "Plotly.react" in text


def test_a_plan_is_written_out_to_files_and_below_the_table(spec: Path, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    result = run(spec, "--nodes", 2, "--slots", 2, "--write-out", f"deepspeed:{path}", "--write-out", "torchrun")
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["train_batch_size"] > 0
    assert "torchrun.args:\n--nnodes=2\n--nproc-per-node=2\n" in result.stdout
    assert "note on torchrun: torchrun starts ranks" in result.stderr


def test_settings_need_a_file_where_json_takes_the_screen(spec: Path, tmp_path: Path) -> None:
    assert run(spec, "--json", "--write-out", "torchrun").exit_code == 2
    path = tmp_path / "torchrun.args"
    result = run(spec, "--json", "--write-out", f"torchrun:{path}")
    assert result.exit_code == 0
    assert json.loads(result.stdout)
    assert path.read_text().startswith("--nnodes=1\n")


def test_an_unknown_tool_is_told_before_anything_is_planned(spec: Path) -> None:
    result = run(spec, "--write-out", "nemo")
    assert result.exit_code == EXIT_BAD_SPEC
    assert result.stdout == ""
    assert "known: megatron-lm" in result.stderr


def test_what_is_written_out_is_planned_for_its_tool(tmp_path: Path) -> None:
    path, settings = tmp_path / "spec.yaml", tmp_path / "train.args"
    own = {"model": "llama-3.2-1b", "launcher": {"command": ["python", "train.py"]}}
    path.write_text(yaml.safe_dump(small(own)))
    result = run(path, "--gpus", "8xp5.48xlarge", "--write-out", f"deepspeed:{settings}")
    assert result.exit_code == 0, result.output
    assert "fits, but the trainer cannot express it" in result.output
    assert json.loads(settings.read_text())["train_batch_size"] > 0
    assert "fits, but the trainer" in run(path, "--gpus", "8xp5.48xlarge", "--for", "deepspeed").output
    assert "fits, but the trainer" not in run(path, "--gpus", "8xp5.48xlarge").output


def test_a_workload_beyond_a_tool_is_an_error(spec: Path) -> None:
    result = run(spec, "--nodes", 2, "--slots", 2, "--for", "nemo")
    assert (result.exit_code, result.stdout) == (EXIT_BAD_SPEC, "")
    assert "no such tool" in result.stderr
