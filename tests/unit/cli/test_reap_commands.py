"""The command on a real engine: a report first, then the end of what it named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from airflow_llmsched.cli.main import app
from airflow_llmsched.control import reaping
from airflow_llmsched.control.deployment import deployment_id
from airflow_llmsched.control.reaper import ReaperLimits
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import RunOrigin
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.testing.engine_contract import HANGS, gang_of, running, submit
from tests.support.lease_house import LeaseHouse
from tests.support.local_engine import LocalHarness
from tests.support.orphans import hung_agents
from tests.support.provider_cloud import opened_by_the_provider, real_time_cloud
from tests.support.waiting import wait_until


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHarness]:
    quick = ReaperLimits(skew_s=0.0, silence_s=1.5, unleased_s=0.0)
    monkeypatch.setattr(reaping, "ReaperLimits", lambda: quick)
    harness = LocalHarness(tmp_path)
    deployment_id(LocalStore(str(tmp_path / "state")))
    yield harness
    harness.close()


@pytest.fixture
def gang(harness: LocalHarness) -> GangHandle:
    """A gang of this deployment, in a DAG run of an awkward name."""
    gang = gang_of(harness, [HANGS])
    owner = deployment_id(LocalStore(str(harness.root / "state")))
    origin = RunOrigin(deployment_id=owner, run=gang.key.run, dag_id="[red]dag[/red]", run_id="run")
    handle = submit(harness, replace(gang, origin=origin))
    running(harness, handle)
    return handle


def reap(harness: LocalHarness, *options: str) -> Result:
    engine_options = json.dumps({"root": str(harness.root / "engine")})
    arguments = ["reap", "--state-root", str(harness.root / "state"), "--engine-options", engine_options, *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})


def test_orphan_is_shown_first_and_stopped_on_yes(harness: LocalHarness, gang: GangHandle) -> None:
    with hung_agents(harness.client, gang):
        shown = wait_until(lambda: (found := reap(harness, "--without-airflow")).exit_code == 3 and found, limit_s=60)
        assert gang.key.name in shown.output
        assert "[red]dag[/red]" in shown.output
        assert "repeat with --yes" in shown.output
        assert harness.num_live_ranks(gang) == 1
        stopped = reap(harness, "--without-airflow", "--yes")
    assert stopped.exit_code == 0, stopped.output
    assert f"stopped {gang.key.name}" in stopped.output
    assert harness.num_live_ranks(gang) == 0
    again = reap(harness, "--without-airflow", "--yes")
    assert (again.exit_code, again.output.strip()) == (0, "nothing lives on local")


def test_without_airflows_word_everything_is_spared(harness: LocalHarness, gang: GangHandle) -> None:
    with hung_agents(harness.client, gang):
        wait_until(lambda: reap(harness, "--without-airflow").exit_code == 3, limit_s=60)
        for options in (("--yes",), ("--yes", "--airflow-api", "http://127.0.0.1:1")):
            spared = reap(harness, *options)
            assert spared.exit_code == 0
            assert "could not be asked" in spared.output
    assert harness.num_live_ranks(gang) == 1


def test_what_does_not_end_is_an_error(
    harness: LocalHarness, gang: GangHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = reaping.Reaped(run_key=gang.key.run, trouble="still alive: [x]")
    monkeypatch.setattr(reaping.Reaper, "reap", lambda _self, _finding: trouble)
    with hung_agents(harness.client, gang):
        wait_until(lambda: reap(harness, "--without-airflow").exit_code == 3, limit_s=60)
        failed = reap(harness, "--without-airflow", "--yes")
    assert failed.exit_code == 1
    assert "still alive: [x]" in failed.output


def test_folder_that_is_no_state_root_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reap", "--state-root", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert "is no state root" in result.output
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--engine", "lokal"], "did you mean 'local'"),
        (["--engine-options", "{"], "must be a JSON object"),
        (["--clouds", "[" * 5_000], "nested too deep"),
        (["--engine-options", "[]"], "must be a JSON object"),
        (["--engine-options", '{"colour": 1}'], "colour"),
        (["--clouds", "[]"], "must be a JSON object"),
        (["--clouds", '{"aws": 1}'], "must be a JSON object"),
        (["--clouds", '{"aws": {"conn_id": "x"}}'], "is for Airflow"),
        (["--clouds", '{"nimbus": {}}'], "nimbus"),
        (["--airflow-api", "localhost"], "must be an address"),
        (["--airflow-api", "http://x", "--without-airflow"], "contradicts --airflow-api"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: list[str], words: str) -> None:
    deployment_id(LocalStore(str(tmp_path)))
    result = CliRunner().invoke(app, ["reap", "--state-root", str(tmp_path), *options])
    assert result.exit_code == 1
    assert words in result.output


SIM: Mapping[str, object] = {"sim": {}}
UNREADABLE = {"inventory": "/nowhere/inventory.yaml"}


def reap_clouds(root: Path, *options: str, clouds: Mapping[str, object] = SIM) -> Result:
    arguments = ["reap", "--state-root", str(root), "--clouds", json.dumps(clouds), *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})


def test_machines_that_nobody_renews_are_shown_first_and_given_back_on_yes(tmp_path: Path) -> None:
    owner = deployment_id(LocalStore(str(tmp_path)))
    with opened_by_the_provider(real_time_cloud()) as cloud:
        house = LeaseHouse(cloud, store=LocalStore(str(tmp_path)))
        wanted = replace(
            house.wanted(), origin=replace(house.wanted().origin, deployment_id=owner, dag_id="[b]dag[/b]")
        )
        lease = house.renter().rent(wanted)
        spared = reap_clouds(tmp_path, "--yes")
        assert spared.exit_code == 0
        assert "not expired" in spared.output
        cloud.shorten(lease.id, until_s=cloud.now_s() - 3600.0)
        shown = reap_clouds(tmp_path)
        assert shown.exit_code == 3
        assert f"{lease.id}  2      [b]dag[/b]" in shown.output
        assert "would stop what lives of 0 runs and give back 1 leases: repeat with --yes" in shown.output
        assert len(cloud.billed()) == 2
        hidden = reap_clouds(tmp_path, clouds={"onprem": UNREADABLE, "sim": {}})
        assert hidden.exit_code == 1
        assert "error: onprem: " in hidden.output
        assert lease.id in hidden.output
        cloud.refuse_removal(num_calls=4)
        refused = reap_clouds(tmp_path, "--yes")
        assert refused.exit_code == 1
        assert "sim-000000, sim-000001" in refused.output
        ended = reap_clouds(tmp_path, "--yes")
        assert ended.exit_code == 0
        assert f"gave back {lease.id}" in ended.output
        assert not cloud.billed()
        assert "nothing is rented in sim" in reap_clouds(tmp_path).output
        cloud.cloud.faults.dark_regions = {cloud.offer().pool.region}
        partly = reap_clouds(tmp_path)
        assert partly.exit_code == 1
        assert "error: sim: could not look everywhere: sim-east" in partly.output
        assert "nothing is rented" not in partly.output
        cloud.go_dark(is_dark=True)
        assert reap_clouds(tmp_path).exit_code == 1
