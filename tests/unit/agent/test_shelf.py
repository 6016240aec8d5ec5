from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.proc import myself
from airflow_llmsched.agent.shelf import Shelf
from airflow_llmsched.agent.spool import write_json

NAME = "ls-run-g1-a1"
SUBMIT = {"channel_root": "/c", "origin": None, "wanted": {"n1": 2, "n2": 1}}


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def _run(tmp_path: Path, *, restart: int = 0) -> GangDir:
    gang = GangDir(tmp_path / "gangs" / NAME)
    nodes = [{"node": "n1", "ranks": [0], "slots": [0]}, {"node": "n2", "ranks": [1], "slots": [0]}]
    body = {"nodes": nodes, "start_limit_s": 20.0, "grace_s": 2.0, "environment": {"MY_TOKEN": "S3CR3T-VALUE"}}
    for node in ("n1", "n2"):
        gang.node(node).make()
    write_json(gang.request, {"v": wire.VERSION, "submitted_at_s": 100.0, "restart": restart, "body": body})
    return gang


def test_folder_of_an_attempt_appears_once(shelf: Shelf) -> None:
    assert shelf.names() == []
    assert shelf.claim(name=NAME, submit=SUBMIT, environment={})
    assert not shelf.claim(name=NAME, submit={**SUBMIT, "channel_root": "/other"}, environment={})
    assert shelf.names() == [NAME]
    said = shelf.look(names=[NAME])[NAME]
    assert said is not None
    assert said["submit"].items() >= SUBMIT.items()


def test_environment_of_ranks_lies_in_the_folder_for_its_owner_alone(shelf: Shelf, tmp_path: Path) -> None:
    shelf.claim(name=NAME, submit=SUBMIT, environment={"WANDB_API_KEY": "S3CR3T"})
    path = tmp_path / "gangs" / NAME / "environment.json"
    assert json.loads(path.read_text())["environment"] == {"WANDB_API_KEY": "S3CR3T"}
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    assert "S3CR3T" not in json.dumps(shelf.look(names=[NAME]))


def test_attempt_is_either_submitted_or_abandoned(shelf: Shelf) -> None:
    assert shelf.abandon(name=NAME)
    assert shelf.abandon(name=NAME)
    assert not shelf.claim(name=NAME, submit=SUBMIT, environment={})
    said = shelf.look(names=[NAME])[NAME]
    assert said is not None
    assert list(said) == ["abandoned"]
    other = f"{NAME}1"
    assert shelf.claim(name=other, submit=SUBMIT, environment={})
    assert not shelf.abandon(name=other)


def test_attempt_without_a_folder_is_nothing_and_one_that_cannot_be_read_hides_no_other(
    shelf: Shelf, tmp_path: Path
) -> None:
    assert shelf.look(names=[NAME]) == {NAME: None}
    (tmp_path / "gangs" / NAME).mkdir(parents=True)
    shelf.claim(name=f"{NAME}1", submit=SUBMIT, environment={})
    said = shelf.look(names=[NAME, f"{NAME}1"])
    assert "no attempt's directory" in (said[NAME] or {})["unreadable"]
    assert "submit" in (said[f"{NAME}1"] or {})


def test_place_of_the_job_is_taken_once(shelf: Shelf, tmp_path: Path) -> None:
    shelf.claim(name=NAME, submit=SUBMIT, environment={})
    write_json(tmp_path / "gangs" / NAME / "job.json", {"v": 1, "job_id": "17", "restart": 0, "at_s": 1.0})
    assert not shelf.give_up(name=NAME, reason="too late")
    shelf.claim(name=f"{NAME}1", submit=SUBMIT, environment={})
    assert shelf.give_up(name=f"{NAME}1", reason="refused")
    assert shelf.give_up(name=f"{NAME}1", reason="again")
    said = shelf.look(names=[f"{NAME}1"])[f"{NAME}1"]
    assert said is not None
    assert (said["job"]["job_id"], said["job"]["reason"]) == (None, "refused")


def test_records_of_every_node_are_told(shelf: Shelf, tmp_path: Path) -> None:
    shelf.claim(name=NAME, submit=SUBMIT, environment={})
    gang = _run(tmp_path)
    gang.node("n1").claim(myself(), at_s=101.0, port=None)
    write_json(gang.node("n1").started, {"v": 1, "at_s": 102.0})
    write_json(gang.node("n1").alive, {"v": 1, "at_s": 103.0})
    write_json(gang.node("n2").notice, {"v": 1, "at_s": 104.0, "deadline_s": 114.0})
    write_json(gang.go, {"v": 1, "at_s": 101.5})
    shelf.stop(name=NAME, grace_s=3.0)
    shelf.stop(name=NAME, grace_s=9.0)
    said = shelf.look(names=[NAME])[NAME]
    assert said is not None
    assert (said["go"], said["abort"], said["stop"]["grace_s"]) == (True, None, 3.0)
    assert {key: said["life"][key] for key in ("submitted_at_s", "start_limit_s", "grace_s", "restart")} == {
        "submitted_at_s": 100.0,
        "start_limit_s": 20.0,
        "grace_s": 2.0,
        "restart": 0,
    }
    first, second = said["life"]["nodes"]
    assert (first["node"], first["claimed"], first["started_at_s"], first["alive_at_s"]) == ("n1", True, 102.0, 103.0)
    assert (second["claimed"], second["notice_deadline_s"], second["exit"]) == (False, 114.0, None)


def test_second_life_of_the_job_is_seen_though_the_first_was_read(shelf: Shelf, tmp_path: Path) -> None:
    shelf.claim(name=NAME, submit=SUBMIT, environment={})
    gang = _run(tmp_path)
    first = shelf.look(names=[NAME])[NAME]
    request = json.loads(gang.request.read_text())
    write_json(gang.request, {**request, "restart": 1, "submitted_at_s": 200.0})
    os.utime(gang.request, ns=(1, 1))
    second = shelf.look(names=[NAME])[NAME]
    assert first is not None
    assert second is not None
    assert [said["life"]["restart"] for said in (first, second)] == [0, 1]


def test_first_word_on_the_end_stands(shelf: Shelf) -> None:
    shelf.claim(name=NAME, submit=SUBMIT, environment={})
    assert shelf.end(name=NAME, status={"phase": "lost"})["status"] == {"phase": "lost"}
    assert shelf.end(name=NAME, status={"phase": "failed"})["status"] == {"phase": "lost"}
    said = shelf.look(names=[NAME])[NAME]
    assert said is not None
    assert said["end"]["status"] == {"phase": "lost"}


def test_last_lines_of_a_rank_come_without_its_secrets(shelf: Shelf, tmp_path: Path) -> None:
    shelf.claim(name=NAME, submit=SUBMIT, environment={})
    gang = _run(tmp_path)
    (gang.node("n2").logs / wire.rank_log_name(1)).write_text("one\ntoken S3CR3T-VALUE\nthree\n")
    assert shelf.log_tails(name=NAME, ranks=[1, 0, 7], num_lines=2) == ["token ***\nthree", "", ""]
    assert shelf.log_tails(name=f"{NAME}1", ranks=[0, 1], num_lines=2) == ["", ""]


@pytest.mark.parametrize("name", ["../elsewhere", ".new-1", "a/b"])
def test_name_that_leads_elsewhere_is_refused(shelf: Shelf, name: str) -> None:
    with pytest.raises(ValueError, match="no attempt's name"):
        shelf.claim(name=name, submit=SUBMIT, environment={})


def test_what_a_dead_submitter_left_half_made_goes_after_a_day(shelf: Shelf, tmp_path: Path) -> None:
    for name, age_s in ((".new-old", 2 * 86_400.0), (".new-fresh", 0.0)):
        path = tmp_path / "gangs" / name
        path.mkdir(parents=True)
        os.utime(path, (time.time() - age_s,) * 2)
    shelf.claim(name=NAME, submit=SUBMIT, environment={})
    assert sorted(path.name for path in (tmp_path / "gangs").iterdir()) == [".new-fresh", NAME]


def _command(**asked: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "airflow_llmsched.agent.shelf"]
    return subprocess.run(argv, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=120)


def test_command_does_what_the_calls_do(tmp_path: Path) -> None:
    done = _command(root=str(tmp_path), call="claim", arguments={"name": NAME, "submit": SUBMIT, "environment": {}})
    assert json.loads(done.stdout) == {"result": True}
    assert Shelf(tmp_path).names() == [NAME]
    done = _command(root=str(tmp_path), call="look", arguments={"names": [NAME]})
    assert json.loads(done.stdout)["result"] == Shelf(tmp_path).look(names=[NAME])


def test_command_says_what_it_could_not_do(tmp_path: Path) -> None:
    (tmp_path / "gangs").touch()
    done = _command(root=str(tmp_path), call="names", arguments={})
    assert (done.returncode, done.stdout) == (1, "")
    assert "Not a directory" in done.stderr
    assert _command(root=str(tmp_path), call="_gang", arguments={}).returncode == 2


def test_a_file_system_that_is_not_mounted_is_neither_empty_nor_written_to(tmp_path: Path) -> None:
    root = tmp_path / "shared" / "llmsched"
    away = Shelf(root)
    for call in (
        away.names,
        lambda: away.abandon(name=NAME),
        lambda: away.claim(name=NAME, submit=SUBMIT, environment={}),
        lambda: away.stop(name=NAME, grace_s=1.0),
    ):
        with pytest.raises(FileNotFoundError, match="is not there: is the cluster's file system mounted"):
            call()
    said = away.look(names=[NAME])[NAME]
    assert said is not None
    assert "is not there" in said["unreadable"]
    assert not root.parent.exists()
