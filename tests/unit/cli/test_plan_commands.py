"""What a person sees who plans a spec on a described fleet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from airflow_llmsched.cli.plan_commands import EXIT_BAD_SPEC, EXIT_NO_PLAN, flat_tree, plan
from airflow_llmsched.codec import from_json
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.workload import PlacementWish, RankGroup
from tests.support.fleets import local_workload
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
    for part in ("dp=4", "Chosen: dp=4", "Turned down, of"):
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


def test_a_flat_fleet_has_every_level_that_the_wishes_name() -> None:
    wishes = tuple(
        PlacementWish(group=RankGroup.TP, level=level, required=True) for level in ("rack", "node", "block", "rack")
    )
    tree = flat_tree(local_workload(placement=wishes), num_nodes=3, num_slots=2, shape="local-cpu")
    assert tree.levels == ("rack", "block")
    assert tree.num_usable_slots == 6
    assert len({node.path for node in tree.nodes}) == 1
    assert flat_tree(local_workload(), num_nodes=1, num_slots=1, shape="local-cpu").levels == ("fleet",)
