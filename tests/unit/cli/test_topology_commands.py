from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from airflow_llmsched.cli.engines import open_engine, open_links
from airflow_llmsched.cli.main import app
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.specs import topology_reference
from airflow_llmsched.topology.link_records import LinkRecord

TABLE = "node,block,rack\nn1,b1,r1\nn2,b1,\nn3,b1,r2\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(topology_reference.example())
    return path


def topology(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["topology", *map(str, arguments)], env={"COLUMNS": "200"})


def test_a_file_is_shown_with_domains_and_links(file: Path) -> None:
    told = topology("show", file)
    assert told.exit_code == 0, told.output
    for words in ("levels: hall > block > rack  162 nodes, 700 of 712", "2 not usable", "block: 50 GB/s", "SHARP"):
        assert words in told.output


def test_what_is_odd_is_told_apart_from_the_tree(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    told = topology("show", tmp_path / "t.csv", "--shape", "dgx-h100", "--json")
    assert told.exit_code == 0, told.output
    assert "warning: 1 x cell that is empty" in told.stderr
    assert [node["num_slots"] for node in json.loads(told.stdout)["nodes"]] == [8, 8, 8]


def test_a_page_is_written(file: Path, tmp_path: Path) -> None:
    assert topology("show", file, "--html", tmp_path / "page.html").exit_code == 0
    assert "hall-1 / b1 / r1" in (tmp_path / "page.html").read_text()


def test_one_nodes_matrix_is_shown_as_a_table(tmp_path: Path) -> None:
    matrix = tmp_path / "topo.txt"
    matrix.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t0-3\n")
    assert "1: 4" in topology("show", matrix).output
    assert json.loads(topology("show", matrix, "--json").stdout)["gpus"][1]["index"] == 1
    refused = topology("show", matrix, "--html", tmp_path / "x.html")
    assert (refused.exit_code, "draws fleets" in refused.stderr) == (1, True)


def test_of_an_engine_it_is_shown_what_checks_of_nodes_measured(tmp_path: Path) -> None:
    given = {"num_nodes": 3}
    options = ("--engine", "local", "--engine-options", json.dumps(given), "--state-root", tmp_path)
    assert "checks of nodes" not in topology("show", *options).output
    engine = open_engine("local", given, state_root=tmp_path, fleet=None)
    measured = LinkRecord(
        level=None,
        domain=(),
        shape="local-cpu",
        bytes_per_s=2e9,
        at_s=time.time(),
        nodes=(NodeId("n0"), NodeId("n1"), NodeId("n2")),
    )
    open_links(engine, "local", given, state_root=tmp_path, fleet=None).keep(measured)
    told = topology("show", *options, "--html", tmp_path / "page.html")
    words = "between all nodes: 2 GB/s of each accelerator, "
    assert f"which plans there go by:\n  local-cpu: {words}" in told.output
    assert "on 3 nodes, n0 to n2" in told.output
    assert f'<td class="long">local-cpu</td><td>{words}' in (tmp_path / "page.html").read_text()


def test_an_engine_is_a_source(tmp_path: Path) -> None:
    options = ("--engine", "local", "--engine-options", '{"num_nodes": 3}', "--state-root", tmp_path)
    told = topology("show", *options)
    assert told.exit_code == 0, told.output
    assert "levels: host  3 nodes" in told.output


def test_a_saved_topology_is_compared_with_what_an_engine_says_now(tmp_path: Path) -> None:
    engine = ("--engine", "local", "--state-root", tmp_path, "--engine-options")
    saved = tmp_path / "saved.json"
    saved.write_text(topology("show", *engine, '{"num_nodes": 3}', "--json").stdout)
    same = topology("diff", saved, *engine, '{"num_nodes": 3}')
    assert (same.exit_code, "tell the same" in same.output) == (0, True)
    differs = topology("diff", saved, *engine, '{"num_nodes": 4}')
    assert (differs.exit_code, "1 nodes added" in differs.output) == (3, True)


def test_two_files_are_compared(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    text = topology_reference.example().replace("400 Gbit/s", "200 Gbit/s").replace("dev[1-2]", "dev[2-3]")
    other.write_text(text.replace("[hall-2, b1,", "[hall-2, b9,"))
    told = topology("diff", file, other)
    assert told.exit_code == 3
    for words in ("links of block", "50 GB/s", "25 GB/s", "1 nodes added", "dev3", "1 nodes gone", "16 nodes moved"):
        assert words in told.output


def test_what_differs_is_a_page_with_a_figure_and_json_as_well(file: Path, tmp_path: Path) -> None:
    other, page = tmp_path / "other.yaml", tmp_path / "page.html"
    other.write_text(topology_reference.example().replace("dev[1-2]", "dev[2-3]"))
    told = topology("diff", file, other, "--html", page, "--json")
    assert told.exit_code == 3, told.output
    assert [each["id"] for each in json.loads(told.stdout)["added"]] == ["dev3"]
    assert 'data-figure="changes"' in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "why"),
    [
        (["show"], 2, "takes 1, and --engine counts as one"),
        (["diff", "a"], 2, "takes 2, and --engine counts as one"),
        (["show", "/nowhere/a.yaml"], 1, "cannot be read"),
        (["show", "--engine", "local"], 1, "state-root"),
        (["show", "--engine", "local", "--state-root", "/tmp/x", "--engine-options", "[]"], 1, "must be a JSON object"),
        (["show", "--engine", "local", "--state-root", "/tmp/x", "--engine-options", "{"], 1, "must be a JSON object"),
        (
            ["show", "--engine", "local", "--state-root", "/tmp/x", "--engine-options", "[" * 5_000],
            1,
            "nested too deep",
        ),
    ],
)
def test_what_cannot_be_asked_is_told(arguments: list[str], exit_code: int, why: str) -> None:
    told = topology(*arguments)
    assert (told.exit_code, why in told.output) == (exit_code, True), told.output


def test_every_mistake_of_a_file_is_told(file: Path) -> None:
    file.write_text(
        file.read_text().replace("free: 2", "free: 9").replace("scale_up_level: rack", "scale_up_level: rak")
    )
    told = topology("show", file)
    assert told.exit_code == 1
    assert f"error: {file}:3: scale_up_level" in told.output
