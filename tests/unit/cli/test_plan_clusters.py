from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from airflow_llmsched.cli.engines import open_engine, open_links, read_fleet_file
from airflow_llmsched.cli.main import app
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.network_load import LinkLoad, NetworkLoad
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.topology.link_records import LinkRecord

FLEET = """\
version: 1
clusters:
  - {name: small, engine: local, options: {num_nodes: 1}}
  - {name: large, engine: local, options: {num_nodes: 2}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


@pytest.fixture
def spec(checkout: Path) -> Path:
    return checkout / "dags" / "specs" / "byte_gpt_demo.yaml"


def plan(spec: Path, file: Path, *options: str) -> Result:
    root = str(file.parent / "state")
    arguments = ["plan", str(spec), "--fleet", str(file), "--state-root", root, *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_plans_are_made_on_what_clusters_have_free(spec: Path, file: Path) -> None:
    shown = plan(spec, file)
    assert shown.exit_code == 0, shown.output
    assert "cluster" in shown.output
    assert "large" in shown.output
    found = json.loads(plan(spec, file, "--json").output)
    nodes = {slot["node"] for slot in found["plans"][0]["placement"]["slots"]}
    assert nodes == {"large/n0", "large/n1"}


def test_plans_go_by_links_as_checks_in_the_deployment_measured_them(spec: Path, file: Path) -> None:
    def found() -> float:
        step_s: float = json.loads(plan(spec, file, "--json").output)["plans"][0]["prediction"]["step_s"]
        return step_s

    claimed_s, state_root, fleet = found(), file.parent / "state", read_fleet_file(file)
    nodes = (NodeId("large/n0"), NodeId("large/n1"))
    measured = LinkRecord(
        level="cluster", domain=("large",), shape="local-cpu", bytes_per_s=1e6, at_s=time.time(), nodes=nodes
    )
    engine = open_engine("fleet", {}, state_root=state_root, fleet=fleet)
    open_links(engine, "fleet", {}, state_root=state_root, fleet=fleet).keep(measured)
    assert found() > 1.5 * claimed_s
    words = " ".join(plan(spec, file).output.split())
    assert "within one cluster: 0.001 GB/s of each accelerator" in words
    assert "on large/n0 and large/n1" in words


def test_plans_are_made_beside_what_gangs_that_run_put_on_links_and_say_so(spec: Path, file: Path) -> None:
    """As ``plan_training`` makes them: a preview that went by an idle network would tell another plan."""
    state_root, fleet, store = file.parent / "state", read_fleet_file(file), open_store(str(file.parent / "state"))
    engine = open_engine("fleet", {}, state_root=state_root, fleet=fleet)
    ground = open_ground(engine, "fleet", fleet, store=store, clock=SystemClock())
    assert ground is not None
    host = LinkLoad(domains=(("large", "n0"),), bytes_per_step=1e12, alone_bytes_per_s=1e9)
    ground.claim(
        Claim(
            gang=QueuedGang(key=RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), team="default", priority_class="normal"),
            num_records=1,
            since_s=0.0,
            held={NodeId("small/n0"): (0,)},
            load=NetworkLoad(shape="local-cpu", step_s=1000.0, links=(host,)),
        )
    )
    (told,) = [each for each in json.loads(plan(spec, file, "--json").output)["notes"] if "Beside others" in each]
    assert "run ls-aaaaaaaaaaaaaaaaaaaa on the link of host large/n0 slows this run by " in told
    queued = file.parent / "queued.yaml"
    queued.write_text(f"{spec.read_text()}\nqueue: {{priority: normal}}\n")
    assert "Beside others" not in plan(queued, file).output, "others will run by then"


def test_a_fleet_is_described_in_one_way(spec: Path, file: Path) -> None:
    shown = plan(spec, file, "--nodes", "3")
    assert shown.exit_code == 2
    assert "give one of them" in shown.output


def test_a_fleet_of_which_nothing_answers_is_told(spec: Path, file: Path, tmp_path: Path) -> None:
    (tmp_path / "engine").touch()
    file.write_text(f"version: 1\nclusters:\n  - {{name: a, engine: local, options: {{root: {tmp_path}/engine/x}}}}\n")
    shown = plan(spec, file)
    assert shown.exit_code == 1
    assert "cannot be planned on now: cluster a" in shown.output


def test_what_gangs_have_is_noted_below_the_state_root(spec: Path, file: Path) -> None:
    shown = CliRunner().invoke(app, ["plan", str(spec), "--fleet", str(file)])
    assert shown.exit_code == 1
    assert "state-root" in shown.output
