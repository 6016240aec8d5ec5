"""Roles in one gang, with real processes on two nodes of the local engine: all start or none, and trainers decide."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched import codec
from airflow_llmsched.agent.spool import LineReader
from airflow_llmsched.agent.watch import WORD_LIMIT_S
from airflow_llmsched.control.launch import build_gang
from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangRole, GangSpec, GangStatus
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.placement import HelperSlot
from airflow_llmsched.domain.progress import NodeReport
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.workload import LauncherSpec
from airflow_llmsched.errors import CapacityError
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from airflow_llmsched.testing.engine_contract import HANGS, attempt_key, free_slots, gang_of, submit
from tests.support.fleets import local_workload
from tests.support.local_engine import LocalHarness
from tests.support.sim_house import SimHouse
from tests.support.talking import TalkingGang
from tests.support.waiting import wait_until

LOADER, SERVER, EVALUATOR = RoleKind.DATA_LOADER, RoleKind.PARAMETER_SERVER, RoleKind.EVALUATOR
HELPERS = (
    HelperSlot(role=LOADER, index=0, node=NodeId("n0")),
    HelperSlot(role=LOADER, index=1, node=NodeId("n1")),
    HelperSlot(role=SERVER, index=0, node=NodeId("n0")),
    HelperSlot(role=EVALUATOR, index=0, node=NodeId("n1"), slots=(1,)),
)
FIRST_NUMBER = 3
"""Three trainers on slots 0 and 1 of n0 and 0 of n1, so the helpers are members 3 to 6."""

SAYS_WHO_IT_IS = """
import json, os
names = ('LLMSCHED_ROLE', 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LLMSCHED_ADDRESSES')
print(json.dumps({name: os.environ.get(name) for name in names}), flush=True)
"""
RUNS_ON = SAYS_WHO_IT_IS + "\nimport time; time.sleep(1e6)"
IGNORES_THE_END = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + RUNS_ON
WAITS = "import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.02)\n"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-E", "-c", program)


def gang_with(
    harness: LocalHarness, *, trainer: str, loader: str = RUNS_ON, server: str = RUNS_ON, evaluator: str = RUNS_ON
) -> GangSpec:
    gang = gang_of(harness, [HANGS] * 3, grace_s=1.0)
    return replace(
        gang,
        command=python(trainer),
        placement=replace(gang.placement, helpers=HELPERS),
        roles=(
            GangRole(kind=LOADER, command=python(loader)),
            GangRole(kind=SERVER, command=python(server)),
            GangRole(kind=EVALUATOR, command=python(evaluator)),
        ),
    )


def look(harness: LocalHarness, handle: GangHandle) -> GangStatus:
    return harness.engine.poll([handle])[handle]


def wait_for(harness: LocalHarness, handle: GangHandle, *, phase: GangPhase) -> GangStatus:
    harness.advance_until(lambda: look(harness, handle).phase is phase or look(harness, handle).phase.ended, 60)
    status = look(harness, handle)
    assert status.phase is phase, status
    return status


def ends_with_nothing_left(harness: LocalHarness, handle: GangHandle, *, phase: GangPhase) -> GangStatus:
    harness.advance_until(lambda: look(harness, handle).phase.ended, 60)
    status = look(harness, handle)
    assert status.phase is phase, status
    harness.advance_until(lambda: harness.processes(handle) == [], 10)
    return status


def said(harness: LocalHarness, handle: GangHandle, number: int) -> dict[str, Any]:
    """Return what a member printed of itself."""

    def words() -> str:
        return harness.engine.log_tail(handle, rank=number, num_lines=1)

    harness.advance_until(lambda: bool(words()), 60)
    told: dict[str, Any] = json.loads(words())
    return told


def test_every_member_knows_its_role_and_the_gang_is_done_when_its_trainers_are(harness: LocalHarness) -> None:
    done = harness.root / "done"
    trainer = SAYS_WHO_IT_IS + WAITS.format(path=str(done))
    handle = submit(harness, gang_with(harness, trainer=trainer, server=IGNORES_THE_END))
    wait_for(harness, handle, phase=GangPhase.RUNNING)
    assert free_slots(harness) == {"n0": 0, "n1": 0}
    members = [said(harness, handle, number) for number in range(7)]
    roles = [(each["LLMSCHED_ROLE"], each["RANK"], each["WORLD_SIZE"], each["LOCAL_RANK"]) for each in members]
    assert roles == [
        ("trainer", "0", "3", "0"),
        ("trainer", "1", "3", "1"),
        ("trainer", "2", "3", "0"),
        ("data_loader", "0", "2", "0"),
        ("data_loader", "1", "2", "0"),
        ("parameter_server", "0", "1", "0"),
        ("evaluator", "0", "1", "0"),
    ]
    (addresses,) = {each["LLMSCHED_ADDRESSES"] for each in members}
    assert {role: len(where) for role, where in json.loads(addresses).items()} == {
        "data_loader": 2,
        "parameter_server": 1,
        "evaluator": 1,
    }
    done.touch()
    ends_with_nothing_left(harness, handle, phase=GangPhase.SUCCEEDED)
    assert free_slots(harness) == {"n0": 2, "n1": 2}
    reports = [
        codec.from_plain(NodeReport, plain)
        for path in Path(harness.channel_root(handle.key), "up").iterdir()
        for plain in LineReader(str(path)).read()
    ]
    assert {progress.rank for report in reports for progress in report.ranks} == {0, 1, 2}


def test_loader_that_dies_fails_the_gang_and_is_named_as_the_cause(harness: LocalHarness) -> None:
    dies = (
        SAYS_WHO_IT_IS
        + "import sys\nsys.exit('no more shards' if os.environ['RANK'] == '1' else __import__('time').sleep(1e6))"
    )
    handle = submit(harness, gang_with(harness, trainer=RUNS_ON, loader=dies))
    status = ends_with_nothing_left(harness, handle, phase=GangPhase.FAILED)
    assert status.fault is FaultKind.RANK_FAILED
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.node) == (FIRST_NUMBER + 1, "n1")
    assert "data_loader 1 on node n1 exited with code 1" in status.reason
    assert "no more shards" in status.reason


def test_server_that_fails_because_its_trainers_leave_costs_nothing(harness: LocalHarness) -> None:
    done = harness.root / "done"
    last = harness.root / "last"
    trainer = WAITS.format(path=str(done)) + f"if os.environ['RANK'] == '2':\n{_indented(WAITS.format(path=str(last)))}"
    server = WAITS.format(path=str(done)) + "raise SystemExit('connection reset by peer')"
    handle = submit(harness, gang_with(harness, trainer=trainer, server=server))
    wait_for(harness, handle, phase=GangPhase.RUNNING)
    done.touch()
    harness.advance_until(lambda: "connection reset" in harness.engine.log_tail(handle, rank=5, num_lines=1), 60)
    assert not look(harness, handle).phase.ended
    last.touch()
    ends_with_nothing_left(harness, handle, phase=GangPhase.SUCCEEDED)


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def test_none_starts_when_one_role_cannot(harness: LocalHarness) -> None:
    started = harness.root / "started"
    gang = gang_with(harness, trainer=f"open({str(started)!r}, 'a').close()\n{RUNS_ON}")
    broken = (*gang.roles[:2], GangRole(kind=EVALUATOR, command=("/nowhere/evaluate",)))
    handle = submit(harness, replace(gang, roles=broken))
    status = ends_with_nothing_left(harness, handle, phase=GangPhase.FAILED)
    assert status.fault is FaultKind.START_FAILED
    assert "evaluator 0 on node n1" in status.reason
    assert not started.exists()


def test_helpers_accelerators_are_the_gangs(harness: LocalHarness) -> None:
    handle = submit(harness, gang_with(harness, trainer=RUNS_ON))
    other = gang_of(harness, [HANGS], key=attempt_key("other"), skip=3)  # slot 1 of n1, which the evaluator has
    with pytest.raises(CapacityError, match="slots \\[1\\] of node n1"):
        submit(harness, other)
    harness.engine.stop(handle, grace_s=0.5)
    ends_with_nothing_left(harness, handle, phase=GangPhase.STOPPED)


def test_helper_on_another_machine_that_fails_as_trainers_leave_costs_nothing(tmp_path: Path) -> None:
    """Nodes that share nothing: whose trainers are done is known over the network alone."""
    done = tmp_path / "done"
    last = tmp_path / "last"
    trainer = WAITS.format(path=str(done)) + f"if os.environ['RANK'] == '1':\n{_indented(WAITS.format(path=str(last)))}"
    server = WAITS.format(path=str(done)) + "raise SystemExit('connection reset by peer')"
    helper = {"role": "parameter_server", "index": 0, "member": 2, "slots": []}
    nodes = [
        {"node": "m0", "ranks": [0], "slots": [0], "address": "127.0.1.1"},
        {"node": "m1", "ranks": [1], "slots": [0], "address": "127.0.1.2"},
        {"node": "m2", "ranks": [], "slots": [], "address": "127.0.1.3", "helpers": [helper]},
    ]
    roles = {"parameter_server": {"command": [*python(server)], "num_ranks": 1}}
    gang = TalkingGang(tmp_path, python(trainer), num_nodes=3, nodes=nodes, world_size=2, roles=roles)
    try:
        gang.start()
        gang.wait_started()
        done.touch()
        wait_until(lambda: gang.records("m2", "end"), 60)
        judged_s = gang.records("m2", "end")[0]["at_s"] + WORD_LIMIT_S + 1.0
        wait_until(lambda: time.time() > judged_s, 60)
        assert not any(gang.files(node).exit.exists() for node in gang.nodes)
        last.touch()
        ends = gang.ends()
    finally:
        gang.close()
    assert {end["outcome"] for end in ends.values()} == {"done"}, ends


def test_plan_of_a_workload_with_roles_runs_where_it_says(harness: LocalHarness) -> None:
    done = harness.root / "done"
    helpers = (
        RoleSpec(kind=LOADER, num_ranks=2, command=python(RUNS_ON), accelerators_per_rank=0),
        RoleSpec(kind=EVALUATOR, num_ranks=1, command=python(RUNS_ON)),
    )
    run = local_workload(roles=(RoleSpec(kind=RoleKind.TRAINER), *helpers), launcher=LauncherSpec(kind=Launcher.PLAIN))
    tree = harness.engine.topology()
    plan = max(
        search(run, tree, node_shapes(), solver=BestFitSolver()).plans, key=lambda each: each.placement.world_size
    )
    assert (plan.placement.world_size, len(plan.placement.helpers)) == (2, 3)
    context = replace(
        SimHouse().context,
        workload=run,
        command=python(WAITS.format(path=str(done))),
        checkpoint_root=str(harness.root / "checkpoints"),
        environment={},
        lease_s=None,
    )
    key, root = attempt_key(), context.checkpoint_root
    place = CheckpointPlace(root=root, node_root=root)
    channel_root = harness.channel_root(key)
    gang = build_gang(
        context, key=key, plan=plan, place=place, channel_root=channel_root, checkpoint=None, own_folder=True
    )
    handle = submit(harness, gang)
    wait_for(harness, handle, phase=GangPhase.RUNNING)
    assert sum(free_slots(harness).values()) == 1
    assert [said(harness, handle, number)["LLMSCHED_ROLE"] for number in (2, 3, 4)] == [LOADER, LOADER, EVALUATOR]
    done.touch()
    ends_with_nothing_left(harness, handle, phase=GangPhase.SUCCEEDED)
