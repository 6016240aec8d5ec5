from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.spool import write_json
from airflow_llmsched.engines.hosts.words import Failed, Part, survey_of
from airflow_llmsched.testing.engine_contract import RankScript
from tests.support.hosts_bundle import OneHost
from tests.support.local_engine import BEHAVE
from tests.support.waiting import wait_until

NAME = "ls-host-g1-a1"
TOKEN = "ab" * 32
LIMIT_S = 60.0


@pytest.fixture
def host(tmp_path: Path) -> Iterator[OneHost]:
    host = OneHost(tmp_path)
    yield host
    folder = f"{host.folder}/"

    def left() -> list[proc.Process]:
        environments = proc.Census().environments(wire.SPOOL)
        return [each for each, told in environments.items() if told[wire.SPOOL].startswith(folder)]

    proc.end_all(left, grace_s=0.0)


def body(host: OneHost, name: str = NAME, *, lasts_s: float | None = None, says: str = "") -> dict[str, Any]:
    """A gang of one node of two ranks."""
    scripts = json.dumps([vars_of(RankScript(lasts_s=lasts_s, says=says))] * 2)
    run, generation, attempt = name.rsplit("-", 2)
    return {
        "v": 1,
        "attempt_name": name,
        "run_key": run,
        "generation": int(generation[1:]),
        "attempt": int(attempt[1:]),
        "launcher": "plain",
        "command": [sys.executable, "-S", "-E", str(BEHAVE), scripts],
        "environment": {"SECRET_TOKEN": "hush-hush"},
        "layout": {"dp": 2},
        "world_size": 2,
        "nodes": [{"node": host.node, "ranks": [0, 1], "slots": [0, 1], "address": "127.0.0.1"}],
        "channel_root": str(host.folder.parent / "channel" / name),
        "channel_links": None,
        "start_limit_s": LIMIT_S,
        "grace_s": 1.0,
        "exit_grace_s": 5.0,
        "flush_interval_s": 0.1,
        "lease_s": None,
        "origin": None,
    }


def vars_of(script: RankScript) -> dict[str, Any]:
    return {name: getattr(script, name) for name in script.__slots__}


def start(host: OneHost, asked: dict[str, Any], *, grant: dict[str, Any] | None = None) -> Any:
    told = {"name": asked["attempt_name"], "body": asked, "token": TOKEN, "code": [], "grant": grant}
    return host.ok("start", **told, slots=asked["nodes"][0]["slots"])


def part(host: OneHost, name: str = NAME) -> Part:
    survey = survey_of(host.ok("survey", names=[name]), node=host.node)  # type: ignore[arg-type]
    assert not isinstance(survey, Failed)
    sight = survey.sights[name]
    assert isinstance(sight, Part), sight
    return sight


def test_supervisor_waits_for_the_others_and_outlives_the_command_that_started_it(host: OneHost) -> None:
    asked = body(host)
    asked["nodes"].append({"node": "h2", "ranks": [2], "slots": [0], "address": "127.0.0.2"})
    claim = start(host, asked)["claim"]
    assert claim["port"] != claim["peers_port"]
    assert start(host, asked)["claim"] == claim
    assert host.ok("go", name=NAME, where={"peers": {"host": "127.0.0.1", "port": 1}}) == {"went": True}
    seen = part(host)
    assert (seen.node.supervisor_alive, seen.node.started_at_s, seen.whose.nodes) == (True, None, ("h1", "h2"))
    survey = host.ok("survey", names=[], all=True, slots=True)
    assert (survey["used"], survey["all"]) == ([0, 1], {NAME: True})
    assert host.ok("stop", name=NAME, grace_s=0.5) == {}
    ended = part(host).node.exit
    assert ended is not None
    assert ended["outcome"] == "stopped"
    survey = host.ok("survey", names=[], all=True, slots=True)
    assert (survey["used"], survey["all"]) == ([], {NAME: False})
    assert host.ok("go", name=NAME, where={}) == {"went": False}


def test_stop_that_comes_first_leaves_nothing_to_start(host: OneHost) -> None:
    assert host.ok("stop", name=NAME, grace_s=0.0) == {}
    assert start(host, body(host)) == {"abandoned": True}
    assert host.ok("survey", names=[NAME])["attempts"][NAME]["kind"] == "abandoned"


def test_slot_that_another_gang_has_is_not_given_twice(host: OneHost) -> None:
    start(host, body(host))
    assert start(host, body(host, "ls-other-g1-a1")) == {"taken": [0, 1]}
    assert host.ok("survey", names=["ls-other-g1-a1"])["attempts"]["ls-other-g1-a1"] == {"kind": "absent"}


def test_grant_of_urls_is_this_hosts_alone_to_read(host: OneHost) -> None:
    asked = {**body(host), "channel_links": "/on/control/links", "channel_root": "s3://b/c"}
    grant = {"first_seq": 1, "up": ["http://127.0.0.1:9/u"], "issued_at_s": 0.0, "expires_at_s": 9e9}
    down = dict.fromkeys(("lease", "orders", "revoked", "renewal"), "http://127.0.0.1:9/d")
    start(host, asked, grant={**grant, "down": down})
    links = host.folder / "gangs" / NAME / "links"
    assert [path.name for path in links.iterdir()] == ["h1.json"]
    for path in (links, links / "h1.json", links.parent / "token.json"):
        assert path.stat().st_mode & 0o077 == 0
    assert json.loads((links.parent / "request.json").read_text())["body"]["channel_links"] == str(links)


def test_last_lines_come_without_the_secrets_of_the_ranks_environment(host: OneHost) -> None:
    start(host, body(host, lasts_s=0.0, says="one\ntwo hush-hush"))
    host.ok("go", name=NAME, where={})
    wait_until(lambda: part(host).node.exit is not None, LIMIT_S)
    assert host.ok("tail", name=NAME, ranks=[1], num_lines=1) == {"texts": {"1": "two ***"}}
    assert host.ok("tail", name="ls-none-g1-a1", ranks=[0], num_lines=1) == {"texts": {}}


def test_processes_of_an_attempt_whose_folder_was_deleted_are_seen_and_ended(host: OneHost) -> None:
    start(host, body(host))
    host.ok("go", name=NAME, where={})
    wait_until(lambda: part(host).node.started_at_s is not None, LIMIT_S)
    for process in proc.marked({wire.ATTEMPT_NAME: NAME}):
        if b"supervisor" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            proc.send(process, 19)  # nobody ends the ranks
    shutil.rmtree(host.folder / "gangs")
    assert part(host).node.stray
    assert host.ok("survey", names=[], all=True)["all"] == {NAME: True}
    assert start(host, body(host)) == {"stray": True}
    host.ok("stop", name=NAME, grace_s=0.0)
    assert proc.marked({wire.ATTEMPT_NAME: NAME}) == []


def test_record_that_cannot_be_read_is_said_of_its_attempt_alone(host: OneHost) -> None:
    start(host, body(host))
    (host.folder / "gangs" / NAME / "stop.json").write_text("{")
    attempts = host.ok("survey", names=[NAME, "ls-none-g1-a1"])["attempts"]
    assert [attempts[NAME]["kind"], attempts["ls-none-g1-a1"]["kind"]] == ["unreadable", "absent"]


def test_what_goes_wrong_is_an_answer(host: OneHost) -> None:
    assert isinstance(host.run("start", {}), Failed)
    host.folder.mkdir()
    (host.folder / "gangs").write_text("no folder")
    answer = host.run("survey", {"names": [], "all": True})
    assert isinstance(answer, Failed)
    assert "NotADirectoryError" in answer.reason


def test_gang_that_ended_before_this_host_was_told_to_go_had_been_let_go(host: OneHost) -> None:
    """Another host is told first, lacks the program, and its word is here before ours."""
    asked = body(host)
    asked["nodes"].append({"node": "h2", "ranks": [2], "slots": [0], "address": "127.0.0.2"})
    start(host, asked)
    gang = GangDir(host.folder / "gangs" / NAME)
    reason = {"v": 1, "node": "h2", "at_s": 1.0, "fault": "start_failed", "rank": 2, "reason": "no such program"}
    write_json(gang.abort, reason)
    assert host.ok("go", name=NAME, where={"peers": {"host": "127.0.0.1", "port": 1}}) == {"went": True}
    assert not gang.go.exists()
