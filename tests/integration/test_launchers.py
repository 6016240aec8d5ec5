"""Every launcher starts a real gang of two nodes on the local engine, each node under a supervisor of its own."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangRole, GangSpec, GangStatus
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import HelperSlot, Placement, RankSlot
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.testing.engine_contract import HANGS, gang_of, nodes_of, submit
from tests.support.local_engine import LocalHarness
from tests.support.talking import LIMIT_S, TalkingGang

pytestmark = pytest.mark.server

PROGRAMS = Path(__file__).parents[1] / "support" / "launched"
START_LIMIT_S = 120.0


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def launched(
    harness: LocalHarness, launcher: Launcher, program: str, *, ranks: int = 4, skip: int = 0, **told: Any
) -> GangSpec:
    """Return a gang whose ranks run one of the programs beside this file."""
    out = harness.root / "out"
    out.mkdir(exist_ok=True)
    gang = gang_of(harness, [HANGS] * ranks, skip=skip)
    command = (sys.executable, str(PROGRAMS / program), json.dumps({"out": str(out), **told}))
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "JAX_PLATFORMS": "cpu", "DS_ACCELERATOR": "cpu"}
    return replace(
        gang, launcher=launcher, command=command, environment=environment, start_limit_s=START_LIMIT_S, grace_s=3.0
    )


def said(harness: LocalHarness) -> list[dict[str, Any]]:
    """Return what the ranks wrote, by rank."""
    return sorted((json.loads(path.read_text()) for path in (harness.root / "out").iterdir()), key=lambda x: x["rank"])


def end_of(harness: LocalHarness, handle: GangHandle) -> GangStatus:
    """Wait until the gang has ended, and nothing of it is left."""

    def look() -> GangStatus:
        return harness.engine.poll([handle])[handle]

    harness.advance_until(lambda: look().phase.ended, 150)
    harness.advance_until(lambda: harness.processes(handle) == [], 10)
    return look()


def launcher_log(harness: LocalHarness, handle: GangHandle) -> str:
    return "\n".join(
        path.read_text() for path in harness.client.gang(handle.native_id).path.glob("nodes/*/launcher.log")
    )


def test_mpirun_has_its_ranks_where_they_were_placed_and_its_daemons_below_their_nodes_supervisors(
    harness: LocalHarness,
) -> None:
    gang = launched(harness, Launcher.MPIRUN, "mpi_sum.py", hangs=True)
    handle = submit(harness, gang)
    harness.advance_until(lambda: len(list((harness.root / "out").iterdir())) == 4, 120)
    parents = Counter(
        node for node in ("n0", "n1") for process in harness.processes(handle, node) if _is(process, "orted")
    )
    assert parents == {"n0": 1, "n1": 1}
    assert sum(_is(process, "mpirun") for process in harness.processes(handle, "n0")) == 1
    assert [(one["rank"], one["size"], one["sum"], one["LLMSCHED_NODE"]) for one in said(harness)] == [
        (0, 4, 10, "n0"),
        (1, 4, 10, "n0"),
        (2, 4, 10, "n1"),
        (3, 4, 10, "n1"),
    ]
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"], one["GROUP_RANK"]) for one in said(harness)] == [
        ("0", "0", "4", "0"),
        ("1", "1", "4", "0"),
        ("2", "0", "4", "1"),
        ("3", "1", "4", "1"),
    ]
    harness.engine.stop(handle, grace_s=1.0)
    assert end_of(harness, handle).phase is GangPhase.STOPPED


def _is(process: Any, name: str) -> bool:
    try:
        return Path(f"/proc/{process.pid}/comm").read_text().strip() == name
    except OSError:
        return False


def test_mpirun_gang_that_is_done_has_succeeded(harness: LocalHarness) -> None:
    handle = submit(harness, launched(harness, Launcher.MPIRUN, "mpi_sum.py"))
    status = end_of(harness, handle)
    assert status.phase is GangPhase.SUCCEEDED, (status.reason, launcher_log(harness, handle))


def test_mpi_rank_that_fails_is_the_reason_for_the_gangs_end(harness: LocalHarness) -> None:
    handle = submit(harness, launched(harness, Launcher.MPIRUN, "mpi_sum.py", fails=3))
    status = end_of(harness, handle)
    assert status.phase is GangPhase.FAILED
    assert status.first_end is not None
    assert (status.first_end.rank, status.first_end.exit_code, status.first_end.node) == (3, 7, "n1")


def test_lost_mpi_node_ends_the_gang_and_all_its_processes(harness: LocalHarness) -> None:
    gang = launched(harness, Launcher.MPIRUN, "mpi_sum.py", hangs=True)
    handle = submit(harness, gang)
    harness.advance_until(lambda: len(list((harness.root / "out").iterdir())) == 4, 120)
    harness.lose(handle, nodes_of(harness)[1].id)
    status = end_of(harness, handle)
    assert status.phase is not GangPhase.SUCCEEDED


def scratch_of(folder: Path) -> list[Path]:
    """Return the folders below ``folder`` that hold, or held, a session of Open MPI."""
    return [path for path in folder.iterdir() if path.name.startswith("llmsched-")]


def hanging_mpi_gang(harness: LocalHarness, tmp_path: Path) -> GangHandle:
    """Return a gang that hangs, with its temporary files in a folder of the test's, once each node has a session."""
    temporary = tmp_path / "temporary"
    temporary.mkdir(exist_ok=True)
    for old in (harness.root / "out").glob("*"):
        old.unlink()
    gang = launched(harness, Launcher.MPIRUN, "mpi_sum.py", hangs=True)
    handle = submit(harness, replace(gang, environment={**gang.environment, "TMPDIR": str(temporary)}))
    harness.advance_until(lambda: len(list((harness.root / "out").iterdir())) == 4, 120)
    made = scratch_of(temporary)
    assert len(made) == 2, "one for each node, and none of an earlier gang"
    assert all(any(path.glob("ompi.*/*/hwloc.sm")) for path in made), "each daemon has its session in its own node's"
    assert [path for path in temporary.iterdir() if path not in made] == []
    return handle


@pytest.mark.parametrize("grace_s", [0.0, 1.0])
def test_mpi_gang_that_is_stopped_leaves_no_session_behind(
    harness: LocalHarness, tmp_path: Path, grace_s: float
) -> None:
    handle = hanging_mpi_gang(harness, tmp_path)
    harness.engine.stop(handle, grace_s=grace_s)
    assert end_of(harness, handle).phase is GangPhase.STOPPED
    assert list((tmp_path / "temporary").iterdir()) == []


def test_sessions_of_an_mpi_gang_that_was_killed_with_its_supervisors_go_with_the_next(
    harness: LocalHarness, tmp_path: Path
) -> None:
    handle = hanging_mpi_gang(harness, tmp_path)
    for node in nodes_of(harness):
        harness.lose(handle, node.id)
    assert end_of(harness, handle).phase.ended
    assert len(scratch_of(tmp_path / "temporary")) == 2, "nobody was there to remove them"
    again = hanging_mpi_gang(harness, tmp_path)
    # Stopped by us, when its supervisors are gone and its ranks are not.
    proc.end_all(lambda: [harness.supervisor(again, node.id) for node in nodes_of(harness)], grace_s=0.0)
    harness.engine.stop(again, grace_s=1.0)
    harness.advance_until(lambda: harness.processes(again) == [], 10)
    assert scratch_of(tmp_path / "temporary") == []


def test_deepspeed_reduces_over_two_nodes_of_different_size(harness: LocalHarness) -> None:
    gang = launched(harness, Launcher.DEEPSPEED, "torch_sum.py", ranks=4)
    slots = gang.placement.slots
    uneven = (slots[1], slots[2], slots[3])  # one rank on the first node, two on the second
    placement = Placement(
        slots=tuple(
            RankSlot(rank=rank, node=slot.node, slot=slot.slot, local_rank=max(0, rank - 1))
            for rank, slot in enumerate(uneven)
        )
    )
    handle = submit(harness, replace(gang, placement=placement, layout=ParallelLayout(dp=3)))
    status = end_of(harness, handle)
    assert status.phase is GangPhase.SUCCEEDED, (status.reason, launcher_log(harness, handle))
    assert [
        (one["rank"], one["size"], one["sum"], one["LLMSCHED_NODE"], one["LOCAL_RANK"]) for one in said(harness)
    ] == [
        (0, 3, 6.0, "n0", "0"),
        (1, 3, 6.0, "n1", "0"),
        (2, 3, 6.0, "n1", "1"),
    ]


def test_jax_finds_its_processes_without_arguments(harness: LocalHarness) -> None:
    gang = launched(harness, Launcher.JAX, "jax_sum.py", ranks=2, skip=1)  # one on each node
    handle = submit(harness, gang)
    status = end_of(harness, handle)
    assert status.phase is GangPhase.SUCCEEDED, (status.reason, launcher_log(harness, handle))
    assert [(one["rank"], one["size"], one["sum"], one["RANK"], one["LLMSCHED_NODE"]) for one in said(harness)] == [
        (0, 2, 3.0, "0", "n0"),
        (1, 2, 3.0, "1", "n1"),
    ]
    assert [one["JAX_LOCAL_DEVICE_IDS"] for one in said(harness)] == ["0", "0"]


def test_tasks_of_a_tf_config_cluster_reach_each_other_where_it_says(harness: LocalHarness) -> None:
    gang = launched(harness, Launcher.TF_CONFIG, "tf_ring.py", ranks=3, num_tasks=6)
    servers = tuple(
        HelperSlot(role=RoleKind.PARAMETER_SERVER, index=index, node=node.id)
        for index, node in enumerate(nodes_of(harness))
    )
    evaluator = HelperSlot(role=RoleKind.EVALUATOR, index=0, node=nodes_of(harness)[1].id)
    roles = tuple(GangRole(kind=kind, command=gang.command) for kind in (servers[0].role, evaluator.role))
    placement = replace(gang.placement, helpers=(*servers, evaluator))
    handle = submit(harness, replace(gang, placement=placement, roles=roles))
    status = end_of(harness, handle)
    assert status.phase is GangPhase.SUCCEEDED, (status.reason, launcher_log(harness, handle))
    told = {each["task"]: each["answers"] for each in map(_read, (harness.root / "out").iterdir())}
    assert set(told) == {"chief0", "worker0", "worker1", "ps0", "ps1", "evaluator0"}
    cluster = {name: name for name in ("chief0", "worker0", "worker1", "ps0", "ps1")}
    assert all(answers == cluster for answers in told.values())


def _read(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(path.read_text())
    return told


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_mpirun_reaches_machines_that_share_nothing_through_their_supervisors(tmp_path: Path, out: Path) -> None:
    gang = TalkingGang(
        tmp_path,
        [sys.executable, str(PROGRAMS / "mpi_sum.py"), json.dumps({"out": str(out)})],
        num_nodes=3,
        ranks_per_node=2,
        addresses=["127.0.1.100", "127.0.1.101", "127.0.1.102"],
        launcher="mpirun",
        start_limit_s=START_LIMIT_S,
        # The machines are one, in truth: its shared memory has one name for each of them.
        environment={
            "OMPI_MCA_btl": "tcp,self",
            "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_MCA_oob_tcp_if_include": "lo",
        },
    )
    try:
        gang.start()
        ends = gang.ends(limit_s=START_LIMIT_S + LIMIT_S)
    finally:
        gang.close()
    assert {end["outcome"] for end in ends.values()} == {"done"}, (ends, gang.files("m0").launcher_log.read_text())
    found = sorted(map(_read, out.iterdir()), key=lambda each: each["rank"])
    assert [(each["size"], each["sum"], each["LLMSCHED_NODE"], each["LOCAL_RANK"]) for each in found] == [
        (6, 21, f"m{rank // 2}", str(rank % 2)) for rank in range(6)
    ]


def test_machine_without_open_mpi_ends_the_gang_and_says_so(tmp_path: Path, out: Path) -> None:
    gang = TalkingGang(tmp_path, ["true"], num_nodes=2, launcher="mpirun", environment={"PATH": "/nowhere"})
    try:
        gang.start()
        ends = gang.ends()
    finally:
        gang.close()
    assert {end["fault"] for end in ends.values()} == {"start_failed"}
    assert all("mpirun is not on this node's PATH" in end["reason"] for end in ends.values())
    assert list(out.iterdir()) == []
