from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from airflow_llmsched.cli.main import app
from airflow_llmsched.cli.plan_topology import read_topology
from airflow_llmsched.errors import SpecError

NOTHING = (None, None, None)
TABLE = "node,zone,block\n" + "".join(f"n{number},z1,b{number // 2}\n" for number in range(8))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.csv"
    path.write_text(TABLE)
    return path


def test_nodes_that_are_only_named_are_of_the_shape_that_is_given(table: Path) -> None:
    tree = read_topology(table, "dgx-h100", 4, sharp=True, beside=NOTHING)
    assert {(node.shape, node.num_slots) for node in tree.nodes} == {("dgx-h100", 4)}
    assert tree.switches_reduce
    assert not read_topology(table, "dgx-h100", None, sharp=False, beside=NOTHING).switches_reduce


def test_what_describes_a_fleet_in_another_way_is_refused_beside_it(table: Path) -> None:
    with pytest.raises(typer.BadParameter, match="give one of them"):
        read_topology(table, None, None, sharp=False, beside=("64", None, None))
    with pytest.raises(SpecError, match="dgx-h1000"):
        read_topology(table, "dgx-h1000", None, sharp=False, beside=NOTHING)


def test_a_file_that_contradicts_itself_is_refused(table: Path) -> None:
    table.write_text(TABLE + "n1,z1,b9\n")
    with pytest.raises(SpecError, match=r"--topology: .*line 10: node 'n1' is elsewhere"):
        read_topology(table, None, None, sharp=False, beside=NOTHING)


def test_plans_are_made_on_the_nodes_of_the_file(table: Path, checkout: Path) -> None:
    table.write_text(TABLE + "n1,z1,b0\n")
    spec = checkout / "dags" / "specs" / "llama_8b.yaml"
    arguments = ["plan", str(spec), "--topology", str(table), "--shape", "dgx-h100", "--json"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    assert "warning: 1 x node that is listed again" in told.stderr
    best = json.loads(told.stdout)["plans"][0]
    assert {slot["node"] for slot in best["placement"]["slots"]} <= {f"n{number}" for number in range(8)}


NCCL = """\
# Collective test starting: all_reduce_perf
# Rank 0 Group 0 Pid 7 on n0 device 0 [0000] H100
# Rank 1 Group 0 Pid 8 on n7 device 0 [0000] H100
1073741824 268435456 float sum -1 1 1 7.5 0 1 1 8.0 0
"""


def test_links_that_were_measured_are_planned_with(table: Path, tmp_path: Path) -> None:
    (tmp_path / "nccl.txt").write_text(NCCL)
    tree = read_topology(table, "dgx-h100", None, sharp=False, beside=NOTHING, measured=[tmp_path / "nccl.txt"])
    assert [(link.level, link.bandwidth_bytes_per_s, link.is_measured) for link in tree.network] == [
        ("zone", 8e9, True)
    ]


def test_measurements_without_a_topology_are_refused(tmp_path: Path, checkout: Path) -> None:
    spec = checkout / "dags" / "specs" / "llama_8b.yaml"
    told = CliRunner().invoke(app, ["plan", str(spec), "--measured", str(tmp_path)], env={"COLUMNS": "200"})
    assert (told.exit_code, "which is not given" in told.output) == (2, True)
