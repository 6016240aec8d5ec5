from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.agent.spool import read_json
from airflow_llmsched.domain.gang import GangPhase, LaunchRequest
from airflow_llmsched.engines import attempts
from airflow_llmsched.engines.attempts import Attempts, spawn_supervisors
from airflow_llmsched.errors import CouldNotLookError, InternalError
from airflow_llmsched.testing.engine_contract import HANGS, RankScript, ended, gang_of, running, submit
from tests.support.local_engine import LocalHarness
from tests.support.waiting import wait_until


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def request(harness: LocalHarness, num_ranks: int = 2) -> LaunchRequest:
    return harness.engine.render(gang_of(harness, [HANGS] * num_ranks))


def test_attempt_appears_at_once_and_only_once(harness: LocalHarness) -> None:
    asked = request(harness)
    name = asked.key.name
    with harness.client.exclusive():
        assert not harness.client.exists(name)
        assert harness.client.create(asked)
        assert harness.client.exists(name)
        assert not harness.client.create(asked)
    assert harness.client.names() == [name]
    assert [path.name for path in (harness.root / "engine" / "gangs").iterdir()] == [name]
    assert harness.client.request(name)["body"] == asked.body


def test_abandoning_does_not_wait_for_a_submitter_that_stands_still(harness: LocalHarness) -> None:
    asked = request(harness)
    with harness.client.exclusive():  # it has looked, and is about to make the directory
        assert harness.client.abandon(asked.key.name)
        assert not harness.client.create(asked)
    assert harness.client.names() == [asked.key.name]
    assert [path.name for path in (harness.root / "engine" / "gangs").iterdir()] == [asked.key.name]
    assert not harness.client.exists(asked.key.name)
    assert harness.client.used_slots() == {}
    assert not harness.client.is_using(asked.key.name, "n0")


def test_what_one_left_behind_who_died_while_making_an_attempt_goes_with_the_next(harness: LocalHarness) -> None:
    gangs = harness.root / "engine" / "gangs"
    tell = "from airflow_llmsched.agent import proc; print(proc.myself().text())"
    dead = subprocess.check_output([sys.executable, "-c", tell], text=True).strip()
    far = proc.myself()._replace(where="boot@another").text()
    for name in (f".new-{dead}+1", f".new-{proc.myself().text()}+2", ".new-somebody", f".new-{far}+3"):
        (gangs / name / "nodes").mkdir(parents=True)
    asked = request(harness)
    with harness.client.exclusive():
        assert harness.client.create(asked)
    left = {path.name for path in gangs.iterdir()}
    assert left == {asked.key.name, f".new-{proc.myself().text()}+2", ".new-somebody", f".new-{far}+3"}


def test_names_that_are_no_attempt_do_not_exist(harness: LocalHarness) -> None:
    for name in ("", "..", "../nodes", "a/b", ".new-1"):
        assert not harness.client.exists(name)
        assert harness.client.abandoned(name) is None


def test_exclusive_keeps_others_out_even_in_one_process(harness: LocalHarness) -> None:
    inside: list[str] = []

    def enter() -> None:
        with harness.client.exclusive():
            inside.append("second")

    with harness.client.exclusive():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(0.3)
        inside.append("first")
    thread.join()
    assert inside == ["first", "second"]


def test_a_submit_that_stands_still_is_not_waited_for_for_ever(
    harness: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_LOCK_LIMIT_S", 0.1)
    held = pytest.raises(CouldNotLookError, match=r"submit\.lock")
    with harness.client.exclusive(), held, harness.client.exclusive():
        raise AssertionError("two were inside")


def test_missing_request_is_not_an_absent_gang(harness: LocalHarness) -> None:
    asked = request(harness)
    with harness.client.exclusive():
        harness.client.create(asked)
    harness.client.gang(asked.key.name).request.unlink()
    with pytest.raises(CouldNotLookError, match="look again"):
        harness.client.request(asked.key.name)


def test_supervisors_started_twice_are_one_per_node(harness: LocalHarness) -> None:
    asked = request(harness, 4)
    name = asked.key.name
    with harness.client.exclusive():
        harness.client.create(asked)
    gang = harness.client.gang(name)
    for _ in range(2):
        spawn_supervisors(gang, name, ["n0", "n1"])
    marked = [process for node in ("n0", "n1") for process in proc.marked(gang.marks(name, node))]
    wait_until(lambda: all(gang.node(node).alive.exists() for node in ("n0", "n1")), 30)
    assert marked == [gang.node("n0").supervisor(), gang.node("n1").supervisor()]
    assert harness.client.used_slots() == {"n0": frozenset({0, 1}), "n1": frozenset({0, 1})}
    harness.client.stop(name, grace_s=0.5)
    assert harness.client.used_slots() == {}
    record = read_json(gang.node("n1").exit)
    assert record is not None
    assert record["outcome"] == "stopped"


def test_launch_after_a_stop_starts_nothing(harness: LocalHarness) -> None:
    asked = request(harness)
    with harness.client.exclusive():
        harness.client.create(asked)
    harness.client.stop(asked.key.name, grace_s=0.0)
    harness.client.launch(asked.key.name)
    assert proc.marked(harness.client.gang(asked.key.name).marks(asked.key.name, "n0")) == []


def test_an_attempt_with_a_damaged_record_is_stopped_all_the_same(harness: LocalHarness) -> None:
    """Field case A4."""
    handle = submit(harness, gang_of(harness, [HANGS] * 2))
    running(harness, handle)
    processes = harness.processes(handle)
    node = harness.client.gang(handle.native_id).node("n0")
    node.exit.write_text('{"outcome": "no such word", "at_s": 0.0, "ends": [], "reason": ""}')
    with pytest.raises(InternalError, match="no such word"):
        harness.engine.poll([handle])
    harness.engine.stop(handle, grace_s=0.5)
    assert not any(map(proc.alive, processes))
    assert harness.engine.poll([handle])[handle].phase is GangPhase.STOPPED


def test_last_lines_of_a_rank_do_not_show_the_secrets_it_was_given(harness: LocalHarness) -> None:
    """Field case B3: not in the log's tail, nor in what explains the gang's end."""
    fails = RankScript(exit_code=3, says="using hf_TESTsecret123 of it's-plain")
    gang = gang_of(harness, [HANGS, fails])
    environment = {**gang.environment, "HF_TOKEN": "hf_TESTsecret123", "SHARD": "it's-plain"}
    handle = submit(harness, replace(gang, environment=environment))
    status = ended(harness, handle)
    assert status.first_end is not None
    for text in (status.first_end.log_tail, status.reason, harness.engine.log_tail(handle, rank=1, num_lines=5)):
        assert "using *** of it's-plain" in text


def test_machine_that_is_one_node_starts_sees_and_ends_its_own_part_alone(
    harness: LocalHarness, tmp_path: Path
) -> None:
    asked = request(harness, num_ranks=4)
    name = asked.key.name
    machine = Attempts(tmp_path / "machine", node="n1")
    with machine.exclusive():
        assert machine.create(asked)
    machine.start(name)
    (node,) = machine.facts(name).nodes
    assert (node.node, node.claimed, node.supervisor_alive) == ("n1", True, True)
    assert [path.name for path in (machine.gang(name).path / "nodes").iterdir()] == ["n1"]
    assert machine.used_slots() == {"n1": frozenset({0, 1})}
    assert not machine.facts(name).go
    machine.stop(name, grace_s=0.5)
    assert machine.used_slots() == {}
    assert not machine.go(name, {})
    assert not machine.facts(name).go


def test_supervisors_are_told_where_to_meet_when_they_are_let_go(harness: LocalHarness) -> None:
    asked = request(harness)
    with harness.client.exclusive():
        harness.client.create(asked)
    assert harness.client.go(asked.key.name, {"meeting": {"host": "10.0.0.1", "port": 7}})
    told = read_json(harness.client.gang(asked.key.name).go)
    assert told is not None
    assert told["meeting"] == {"host": "10.0.0.1", "port": 7}
