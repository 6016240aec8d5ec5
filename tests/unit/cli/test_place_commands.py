from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from airflow_llmsched.cli.main import app
from tests.support.specs import small

FLEET = {
    "version": 1,
    "levels": ["block", "rack"],
    "links": [{"bandwidth": "1 GB/s", "measured": True}],
    "nodes": [{"names": "n[1-4]", "path": ["b1", "r[1-2]"], "shape": "p5.48xlarge", "slots": 8}],
}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(FLEET))
    return path


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(small({"name": "run [red]$(x)[/red]", "parallelism": {"dp": 16, "tp": 1}})))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["place", *map(str, arguments)])


def test_gangs_are_placed_in_order_each_on_what_is_left(spec: Path, fleet: Path) -> None:
    result = run(spec, spec, "--topology", fleet)
    assert result.exit_code == 0, result.output
    assert "Gangs in the order of placing" in result.output
    for part in ("[red]", "#2", "16/2"):
        assert part in result.output


def test_one_that_finds_no_place_says_why_and_ends_with_three(spec: Path, fleet: Path) -> None:
    page = fleet.with_suffix(".html")
    result = run(spec, spec, spec, "--topology", fleet, "--html", page)
    assert result.exit_code == 3, result.output
    assert "#3 has no place: " in page.read_text()
    assert "run [red]$(x)[/red] #3 has no place: " in result.output
    assert "0 slots are usable" in " ".join(result.output.split())


def test_programs_get_plans_by_name(spec: Path, fleet: Path) -> None:
    result = run(spec, "--topology", fleet, "--json", "--solver", "balanced")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert [each.partition(" as fast")[0] for each in found["told"]] == ["staging or saving"]
    plan = found["gangs"]["run [red]$(x)[/red]"]["plan"]
    assert plan["layout"]["dp"] == 16
    assert {each["node"] for each in plan["placement"]["slots"]} <= {"n1", "n2", "n3", "n4"}


def test_files_are_written_where_they_are_asked_for(spec: Path, fleet: Path, tmp_path: Path) -> None:
    page, graphs, hosts = tmp_path / "p.html", tmp_path / "new" / "graphs", tmp_path / "hostfile"
    result = run(
        spec, "--topology", fleet, "--html", page, "--graphs", graphs, "--write-out", f"hostfile:{hosts}",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert page.read_text().startswith("<!doctype html>")
    assert {path.name for path in graphs.iterdir()} == {"cluster.graphml", "gang-1.graphml"}
    assert len(hosts.read_text().splitlines()) == 2


def test_settings_are_of_one_gang(spec: Path, fleet: Path) -> None:
    result = run(spec, spec, "--topology", fleet, "--write-out", "kueue")
    assert result.exit_code == 2
    assert "--write-out: is for one SPEC" in result.output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--solver", "oracle"), "--solver = 'oracle'"),
        (("--graphs", "/dev/null/graphs"), "--graphs"),
        (("--write-out", "nemo"), "--write-out = 'nemo': no such tool"),
    ],
)
def test_what_makes_no_sense_is_an_error_that_names_it(spec: Path, fleet: Path, arguments, error) -> None:
    result = run(spec, "--topology", fleet, *arguments)
    assert result.exit_code == 1, result.output
    assert error in result.output


def test_a_fleet_that_cannot_be_read_is_named(spec: Path, tmp_path: Path) -> None:
    result = run(spec, "--topology", tmp_path / "nowhere.yaml")
    assert result.exit_code == 1
    assert "nowhere.yaml" in result.output


def test_where_the_network_serves_collectives_first_no_limit_is_told_and_nothing_else_breaks(
    spec: Path, tmp_path: Path
) -> None:
    classes = tmp_path / "classes.yaml"
    classes.write_text(yaml.safe_dump({**FLEET, "traffic_class": 106, "rails": 8, "transport": "dpu"}))
    result = run(spec, "--topology", classes, "--write-out", "environment")
    assert result.exit_code == 0, result.output
    assert "NCCL_IB_TC=106" in result.output
    assert "staging or saving" not in result.output
