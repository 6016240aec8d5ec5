from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from airflow_llmsched.cli.main import app

SOUND = """\
version: 1
storages:
  - {name: disk, mounted_at: /mnt/disk}
clusters:
  - {name: campus, engine: local, options: {num_nodes: 3}, limits: {max_nodes: 2, max_runs: 4}, shared_storage: disk}
  - {name: partner, engine: local, options: {root: /proc/nowhere/x}, region: "eu[1]"}
clouds:
  - {cloud: aws}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(SOUND)
    return path


def fleet(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["fleet", *arguments], env={"COLUMNS": "200"})


def test_a_sound_file_is_told_in_short(file: Path) -> None:
    told = fleet("check", "--fleet", str(file))
    assert told.exit_code == 0, told.output
    for word in ("campus", "4 runs, 2 nodes", "disk, at /mnt/disk", "partner", "eu[1]", "aws"):
        assert word in told.output


def test_classes_and_teams_are_told_where_the_file_has_them(file: Path) -> None:
    queue = """\
queue:
  classes: [{name: normal, priority: 0, protected: 10min}, {name: "rush[1]", priority: 9, may_preempt: false}]
  teams: [{name: speech, accelerators: 64, cohort: lab, may_borrow: 16, reclaim: any}, {name: alone}]
"""
    assert "Classes" not in fleet("check", "--fleet", str(file)).output
    file.write_text(f"version: 1\n{queue}")
    told = fleet("check", "--fleet", str(file))
    assert told.exit_code == 0, told.output
    assert "Clusters" not in told.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.output.splitlines() if "│" in line]
    assert rows == [
        ["rush[1]", "9", "", "no"],
        ["normal", "0", "10min", "yes"],
        ["speech", "64", "lab", "16", "any", "any", "1"],
        ["alone", "any", "", "", "", "", "1"],
    ]


def test_every_mistake_is_told(file: Path) -> None:
    file.write_text(SOUND.replace("engine: local", "engine: locl").replace("cloud: aws", "cloud: asw"))
    told = fleet("check", "--fleet", str(file))
    assert told.exit_code == 1
    assert told.output.count("error: ") == 3
    assert f"{file}:5: clusters[0].engine" in told.output


def test_clusters_are_shown_with_what_is_free(file: Path, tmp_path: Path) -> None:
    shown = fleet("show", "--fleet", str(file), "--state-root", str(tmp_path / "state"))
    assert shown.exit_code == 0, shown.output
    assert "4 of 6" in shown.output
    assert "beyond max_nodes=2" in shown.output
    assert "levels: cluster, host" in shown.output


def test_a_file_without_clusters_has_nothing_to_show(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nqueue: {order: first_come}\n")
    shown = fleet("show", "--fleet", str(rules), "--state-root", str(tmp_path / "state"))
    assert shown.exit_code == 1
    assert f"error: {rules}: clusters: lists none" in shown.output


def test_a_fleet_is_not_shown_without_a_state_root(file: Path) -> None:
    shown = fleet("show", "--fleet", str(file))
    assert shown.exit_code == 1
    assert "state-root" in shown.output


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    told = fleet("check", "--fleet", str(tmp_path / "nowhere.yaml"))
    assert told.exit_code == 1
    assert "cannot be read" in told.output
