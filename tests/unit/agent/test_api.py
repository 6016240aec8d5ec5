from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched import agent
from airflow_llmsched.agent import api, wire
from airflow_llmsched.agent.seal import seal
from airflow_llmsched.agent.spool import LineReader, write_json


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(wire.SPOOL, str(tmp_path))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv(wire.RANK_STARTED_S, "1000.5")
    monkeypatch.setattr(api, "_state", None)
    return tmp_path


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (wire.SPOOL, "RANK", wire.RANK_STARTED_S, wire.LAYOUT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(api, "_state", None)
    monkeypatch.chdir(tmp_path)


def records(spool: Path) -> list[dict[str, Any]]:
    return LineReader(str(spool / "rank-2.jsonl")).read()


def orders(spool: Path, *, checkpoint_seq: int = 0, stop: str | None = None) -> None:
    write_json(spool / wire.ORDERS, {"v": 1, "checkpoint_seq": checkpoint_seq, "stop": stop})


def test_ordered_interval_is_told_and_none_until_then(spool: Path) -> None:
    assert agent.checkpoint_interval_s() is None
    orders(spool)
    assert agent.checkpoint_interval_s() is None
    write_json(spool / wire.ORDERS, {"v": 1, "checkpoint_seq": 0, "stop": None, "checkpoint_interval_s": 90.0})
    assert agent.checkpoint_interval_s() == 90.0


def test_importing_the_agent_is_cheap_and_brings_nothing_of_ours_or_others() -> None:
    program = (
        "import sys, time; import airflow_llmsched; before = set(sys.modules); t = time.perf_counter()\n"
        "import airflow_llmsched.agent\n"
        "print(time.perf_counter() - t, sorted(set(sys.modules) - before))"
    )
    runs = [subprocess.check_output([sys.executable, "-c", program], text=True).split(" ", 1) for _ in range(3)]
    assert min(float(seconds) for seconds, _ in runs) < 0.015
    assert {modules.strip() for _, modules in runs} == {"['airflow_llmsched.agent']"}


def test_using_the_agent_loads_the_standard_library_only() -> None:
    program = (
        "import sys; from airflow_llmsched import agent; agent.heartbeat(); agent.layout()\n"
        "tops = {name.split('.')[0] for name in sys.modules if not name.startswith('_')}\n"
        "print(sorted(tops - set(sys.stdlib_module_names) - {'airflow_llmsched'}))\n"
        "print(sorted(name for name in sys.modules if name.startswith('airflow_llmsched')))"
    )
    foreign, ours = subprocess.check_output([sys.executable, "-S", "-c", program], text=True, cwd=repo()).splitlines()
    assert foreign == "[]"
    assert all(name == "airflow_llmsched" or name.startswith("airflow_llmsched.agent") for name in eval(ours))


def repo() -> Path:
    return Path(__file__).resolve().parents[3]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'reprot'"):
        agent.reprot  # noqa: B018 - it raises


def test_everything_is_quiet_outside_a_gang(outside: None, tmp_path: Path) -> None:
    agent.ready()
    agent.report(step=1, loss=2.0, tokens=3)
    with agent.saving(step=1):
        agent.checkpoint_saved(step=1, path="x")
    with agent.evaluating():
        agent.heartbeat()
    assert not agent.stop_requested()
    assert not agent.checkpoint_requested()
    assert list(tmp_path.iterdir()) == []
    assert agent.layout() == agent.RankLayout(
        rank=0,
        local_rank=0,
        world_size=1,
        node="",
        degrees={},
        attempt=0,
        resume_from=None,
        checkpoint_root=None,
        init_from=None,
    )


def test_layout_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", wire.NODE: "n1", wire.ATTEMPT: "2"}
    told |= {wire.LAYOUT: '{"dp":4}', wire.RESUME_FROM: "/c/step-7", wire.CHECKPOINT_ROOT: "/c"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert agent.layout() == (3, 1, 4, "n1", {"dp": 4}, 2, "/c/step-7", "/c", None, "trainer", {})

    monkeypatch.delenv(wire.RESUME_FROM)
    monkeypatch.setenv(wire.INIT_FROM, "/base/step-9")
    assert (agent.layout().resume_from, agent.layout().init_from) == (None, "/base/step-9")


def test_helper_knows_its_role_and_every_process_where_helpers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.ROLE, "data_loader")
    monkeypatch.setenv(wire.ADDRESSES, '{"data_loader":["10.0.0.1:20001"]}')
    assert agent.layout().role == "data_loader"
    assert agent.layout().addresses == {"data_loader": ["10.0.0.1:20001"]}


def test_helper_speaks_under_its_own_number(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.MEMBER, "4")
    agent.heartbeat()
    assert [each["kind"] for each in LineReader(str(spool / "rank-4.jsonl")).read()] == ["beat"]
    assert records(spool) == []


def test_old_checkpoints_of_all_attempts_go_when_rank_0_asks(
    spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    paths = [root / "g0001-a0001" / f"step-{step}" for step in (1, 2)] + [root / "g0001-a0002" / "step-3"]
    for path in paths:
        path.mkdir(parents=True)
        seal(path, step=int(path.name[-1]), world_size=1)
    told = {wire.GENERATION: "1", wire.ATTEMPT: "2", wire.RESUME_FROM: str(paths[1])}
    for name, value in (told | {wire.CHECKPOINT_ROOT: str(paths[2].parent)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "1")
    agent.prune_checkpoints(keep_last=1, step=3)
    assert [path.exists() for path in paths] == [True, True, True]
    monkeypatch.setenv("RANK", "0")
    with monkeypatch.context() as as_helper:
        as_helper.setenv(wire.ROLE, "evaluator")  # the first of its role is no trainer
        agent.prune_checkpoints(keep_last=1, step=3)
    assert [path.exists() for path in paths] == [True, True, True]
    agent.prune_checkpoints(keep_last=1, step=3)
    assert [path.exists() for path in paths] == [False, True, True]
    (root / ".held").symlink_to(".held")
    agent.prune_checkpoints(keep_last=1, step=3)  # trouble with files never reaches the training
    assert "cannot delete old checkpoints" in capsys.readouterr().err


def test_init_span_runs_from_the_start_of_the_rank_and_is_told_once(spool: Path) -> None:
    agent.ready()
    agent.ready()
    (span,) = records(spool)
    assert (span["kind"], span["span"], span["start_s"]) == ("span", "init", 1000.5)
    assert abs(span["end_s"] - time.time()) < 10


def test_step_begins_where_the_step_or_span_before_it_ended(spool: Path) -> None:
    agent.ready()
    agent.report(step=1, loss=2.5, tokens=10)
    with agent.saving(step=1):
        pass
    agent.report(step=2, loss=2.0, tokens=10)
    with agent.evaluating():
        pass
    agent.report(step=3, loss=1.5, tokens=10)
    told = [record for record in records(spool) if record["kind"] in ("span", "step")]
    assert [record.get("span", record.get("step")) for record in told] == ["init", 1, "save", 2, "evaluate", 3]
    ends = [record["end_s"] for record in told]
    for index, record in enumerate(told[1:], start=1):
        if record["kind"] == "step":
            assert record["start_s"] == ends[index - 1]
        else:
            assert record["start_s"] >= ends[index - 1]


def test_failed_save_is_measured_all_the_same(spool: Path) -> None:
    with pytest.raises(ValueError, match="boom"), agent.saving(step=4):
        raise ValueError("boom")
    assert [record["kind"] for record in records(spool)] == ["beat", "span"]


def test_checkpoint_request_holds_until_the_next_save_and_repeats_are_harmless(spool: Path) -> None:
    assert not agent.checkpoint_requested()
    orders(spool, checkpoint_seq=1)
    assert agent.checkpoint_requested()
    orders(spool, checkpoint_seq=3)
    assert agent.checkpoint_requested()
    agent.checkpoint_saved(step=5, path="/c/step-5")
    assert not agent.checkpoint_requested()
    orders(spool, checkpoint_seq=4)
    assert agent.checkpoint_requested()


def test_request_that_came_unseen_during_a_save_is_not_lost(spool: Path) -> None:
    orders(spool, checkpoint_seq=1)
    assert agent.checkpoint_requested()
    orders(spool, checkpoint_seq=2)
    agent.checkpoint_saved(step=5, path="/c/step-5")
    assert agent.checkpoint_requested()


def test_stop_is_requested_by_an_order_with_a_reason(spool: Path) -> None:
    orders(spool)
    assert not agent.stop_requested()
    orders(spool, stop="the plan changed")
    assert agent.stop_requested()


def test_trouble_with_files_is_counted_and_said_once_and_never_raised(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spool / "rank-2.jsonl").symlink_to("/dev/full")
    (spool / wire.ORDERS).write_text("{")
    for step in range(3):
        agent.report(step=step, loss=1.0, tokens=1)
    assert not agent.stop_requested()
    assert api._rank().num_troubles == 4
    assert capsys.readouterr().err.count("llmsched:") == 1


def test_a_report_and_a_question_cost_microseconds(spool: Path) -> None:
    orders(spool)
    agent.ready()

    def per_call_s() -> float:
        start_s = time.perf_counter()
        for step in range(500):
            agent.report(step=step, loss=1.0, tokens=1)
            agent.stop_requested()
        return (time.perf_counter() - start_s) / 1000

    assert min(per_call_s() for _ in range(5)) < 50e-6


def test_records_are_json_lines(spool: Path) -> None:
    agent.checkpoint_saved(step=1, path='odd "path"\n')
    (line,) = (spool / "rank-2.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == 'odd "path"\n'
