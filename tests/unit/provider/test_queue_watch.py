from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.arbiter_state import Claim, GroundState
from airflow_llmsched.control.open_arbiter import open_ground
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.provider import queue_watch
from airflow_llmsched.provider.queue_watch import Listener, QueueLooks, listening
from tests.support.waiting import wait_until

ONE, TWO = RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), RunKey("ls-bbbbbbbbbbbbbbbbbbbb")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    ground = Ground(LocalStore(str(tmp_path)), "local", clock=SystemClock())
    for run in (ONE, TWO):
        ground.claim(claim_of(run))
    ground.claim(claim_of(ONE, num_records=2, held={NodeId("n0"): (0,)}, yields_to=TWO))
    return ground


def claim_of(run: RunKey, *, num_records: int = 1, **others: object) -> Claim:
    gang = QueuedGang(key=run, team="red", priority_class="normal")
    return Claim(gang=gang, num_records=num_records, since_s=0.0, **others)  # type: ignore[arg-type]


def listener_to(tmp_path: Path, run: RunKey, *, has_gang: bool) -> Listener:
    return Listener(state_root=str(tmp_path), ground="local", run=run, has_gang=has_gang)


@pytest.mark.usefixtures("ground")
def test_one_look_tells_all_that_are_called_for(tmp_path: Path) -> None:
    trains, waits = listener_to(tmp_path, ONE, has_gang=True), listener_to(tmp_path, TWO, has_gang=False)
    called = QueueLooks().make([trains, waits, listener_to(tmp_path / "elsewhere", ONE, has_gang=True)])
    assert called == {trains: f"it is to make room for run {TWO}", waits: "the queue has changed"}


def test_claims_that_cannot_be_read_are_told_in_the_log_and_call_for_nobody(
    tmp_path: Path, ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "arbiter" / "local" / "records" / "notes.txt").write_text("?")
    with caplog.at_level(logging.WARNING):
        assert QueueLooks().make([listener_to(tmp_path, ONE, has_gang=True)]) == {}
    assert "notes.txt" in caplog.text
    assert ground.name in caplog.text


def test_a_trigger_hears_of_its_turn(tmp_path: Path, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_watch, "LOOK_EVERY_S", 0.02)

    async def listen() -> str:
        mine = listener_to(tmp_path, TWO, has_gang=False)
        with listening(None) as nobody, listening(mine) as call:
            assert nobody is None
            assert call is not None
            assert await call.wait() == "the queue has changed"
        ground.claim(claim_of(TWO, num_records=2, held={NodeId("n1"): (0,)}))
        with listening(mine) as call:
            assert call is not None
            return await asyncio.wait_for(call.wait(), 60.0)

    assert asyncio.run(listen()) == "it is its turn"


def test_an_urgent_run_waits_without_a_worker_and_another_makes_room_for_it_and_resumes(
    make_pipeline, capsys, monkeypatch
):
    """Real operators, triggers and gangs on one node of two slots."""
    monkeypatch.setattr(queue_watch, "LOOK_EVERY_S", 0.1)
    hold = make_pipeline().folder / "hold"
    traffic = {"group": "trainer", "group_size": 2, "collective": "all_reduce", "bytes_per_step": "100GiB"}
    normal = make_pipeline(
        dag_id="normal",
        queue={},
        arguments=("--hold-at=3", f"--hold={hold}"),
        communication={"version": 1, "traffic": [traffic]},  # it takes long by what the planner thinks
    ).prepare()
    urgent = make_pipeline(dag_id="urgent", queue={"priority": "urgent"}).prepare()
    first = normal.defer("run_gang")
    wait_until(lambda: saved_or_held(normal), 60.0)
    second = urgent.defer("run_gang")
    assert second.trigger.watch["handle"] is None
    assert f"waits until {normal.scope.run_key} has left" in capsys.readouterr().out
    summary = json.loads((urgent.scope.directory / "summary.json").read_text())
    assert (summary["phase"], "waits in the queue" in summary["reason"]) == ("waiting", True)

    first.again(first.resume, first.fire())
    assert first.trigger.watch["handle"] is None
    kinds = [event.kind for event in normal.journal()]
    assert kinds[kinds.index("yield_ordered") :] == ["yield_ordered", "checkpoint_seen", "stopped", "queued"]
    second.again(second.resume, second.fire())
    assert second.trigger.watch["handle"] is not None
    assert second.finish()["step"] == 6
    hold.touch()
    result = first.finish()
    assert (result["step"], result["num_attempts"]) == (6, 2)
    for each in (normal, urgent):
        each.run("release")
    ground = open_ground(normal.engine, "local", None, store=normal.scope.store(), clock=SystemClock())
    assert ground is not None
    claims = ground.state().claims
    assert claims == {}


def saved_or_held(pipeline) -> bool:
    """Whether the gang stands still at step 3."""
    return any(
        '"step":3' in path.read_text().replace(" ", "") for path in pipeline.scope.directory.glob("channel/*/up/*")
    )


def test_a_class_that_the_deployment_does_not_know_fails_the_task(make_pipeline):
    pipeline = make_pipeline(queue={"priority": "platinum"}).prepare()
    with pytest.raises(Exception, match=r"no class 'platinum'; the fleet file has low, normal, high, urgent"):
        pipeline.run("run_gang")


def test_one_queue_that_fails_in_an_unforeseen_way_ends_no_look_at_the_others(
    tmp_path: Path, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, bad = Ground.state, listener_to(tmp_path / "bad", ONE, has_gang=True)

    def break_first(each: Ground) -> GroundState:
        if each is looks._grounds.get((bad.state_root, bad.ground)):
            raise OSError("stale file handle")
        return state(each)

    monkeypatch.setattr(Ground, "state", break_first)
    looks = QueueLooks()
    assert list(looks.make([bad, listener_to(tmp_path, ONE, has_gang=True)]).values()) == [
        f"it is to make room for run {TWO}"
    ]
