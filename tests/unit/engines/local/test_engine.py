"""What the engine promises beyond the engine contract, which tests/contract runs against it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched import registry
from airflow_llmsched.agent import proc
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, RunKey, RunOrigin
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placed, Placement, PlacementProblem
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import CapacityError, CouldNotLookError, SpecError
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.testing.engine_contract import HANGS, HANGS_ON, attempt_key, gang_of, poll, running, submit
from tests.support.local_engine import LocalHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def test_topology_has_as_many_nodes_and_slots_as_asked_for(tmp_path: Path) -> None:
    engine = LocalEngine(root=str(tmp_path / "fresh"), num_nodes=3, slots_per_node=4, node_shape="toy")
    tree = engine.topology()
    assert tree.levels == ("host",)
    assert [(node.id, node.path, node.shape, node.num_slots, node.num_free_slots) for node in tree.nodes] == [
        (name, (name,), "toy", 4, 4) for name in ("n0", "n1", "n2")
    ]
    assert not (tmp_path / "fresh").exists(), "looking leaves no trace"


@pytest.mark.parametrize(
    "options", [{"root": "relative"}, {"root": "/x", "num_nodes": 0}, {"root": "/x", "slots_per_node": 0}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        LocalEngine(**options)  # type: ignore[arg-type]


def test_submits_of_one_attempt_at_the_same_time_start_one_gang(harness: LocalHarness) -> None:
    gang = gang_of(harness, [HANGS] * 4)
    handles: list[GangHandle] = []
    threads = [threading.Thread(target=lambda: handles.append(submit(harness, gang))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(handles) == 4
    assert len(set(handles)) == 1
    harness.advance_until(lambda: harness.num_live_ranks(handles[0]) == 4, 30)
    assert len(harness.processes(handles[0])) == 2 + 4 + 4


def test_request_of_another_attempt_or_engine_is_refused(harness: LocalHarness) -> None:
    request = harness.engine.render(gang_of(harness, [HANGS]))
    with pytest.raises(SpecError, match="not rendered"):
        harness.engine.submit(request, key=attempt_key())
    with pytest.raises(SpecError, match="not rendered"):
        harness.engine.submit(replace(request, engine="other"), key=request.key)


def test_attempts_are_found_by_their_whole_run_key(harness: LocalHarness) -> None:
    keys = [AttemptKey(run=RunKey(run), generation=1, attempt=1) for run in ("ls-a", "ls-a-g1-a1", "ls-ab")]
    for key in keys:
        with harness.client.exclusive():
            harness.client.create(harness.engine.render(gang_of(harness, [HANGS], key=key)))
    (harness.root / "engine" / "gangs" / "something-else").mkdir()
    for key in keys:
        assert [handle.key for handle in harness.engine.find(key.run)] == [key]


def test_later_generations_and_tenth_attempts_come_in_order(harness: LocalHarness) -> None:
    run = RunKey("ls-order")
    keys = [AttemptKey(run=run, generation=g, attempt=a) for g, a in ((1, 9), (1, 10), (2, 1), (10, 1))]
    for key in reversed(keys):
        with harness.client.exclusive():
            harness.client.create(harness.engine.render(gang_of(harness, [HANGS], key=key)))
    assert [handle.key for handle in harness.engine.find(run)] == keys


def test_state_that_cannot_be_read_is_never_taken_for_absent(harness: LocalHarness) -> None:
    gang = gang_of(harness, [HANGS])
    with harness.client.exclusive():
        harness.client.create(harness.engine.render(gang))
    handle = harness.engine.find(gang.key.run)[0]
    harness.client.gang(handle.native_id).request.write_text('{"torn":')
    for look in (
        lambda: harness.engine.poll([handle]),
        harness.engine.topology,
        lambda: harness.engine.stop(handle, grace_s=0.0),
        lambda: submit(harness, gang),
    ):
        with pytest.raises(CouldNotLookError, match="look again"):
            look()
    harness.client.gang(handle.native_id).request.write_text("{}")
    with pytest.raises(CouldNotLookError):
        harness.engine.topology()


def test_root_that_is_no_folder_is_not_an_empty_machine(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    engine = LocalEngine(root=str(tmp_path / "file" / "engine"))
    with pytest.raises(CouldNotLookError, match="look again"):
        engine.find(attempt_key().run)
    with pytest.raises(CouldNotLookError, match="look again"):
        engine.topology()


def test_handle_that_points_elsewhere_touches_nothing(harness: LocalHarness) -> None:
    key = attempt_key()
    for native_id in ("../../etc", "", "a b"):
        handle = GangHandle(engine="local", key=key, native_id=native_id)
        assert harness.engine.poll([handle])[handle].phase is GangPhase.LOST
        harness.engine.stop(handle, grace_s=0.0)
        assert harness.engine.log_tail(handle, rank=0, num_lines=5) == ""


def test_gang_whose_directory_was_deleted_is_gone_only_when_its_processes_are(harness: LocalHarness) -> None:
    handle = submit(harness, gang_of(harness, [HANGS_ON] * 4, grace_s=60.0))
    running(harness, handle)
    processes = harness.processes(handle)
    (harness.root / "engine" / "gangs").rename(harness.root / "deleted")  # at once: supervisors write on meanwhile
    status = poll(harness, handle)
    assert status.phase is GangPhase.RUNNING
    assert "directory was deleted" in status.reason
    harness.engine.stop(handle, grace_s=0.2)
    assert [process for process in processes if proc.alive(process)] == []
    assert poll(harness, handle).phase is GangPhase.LOST


def test_gang_whose_directory_was_deleted_is_found_as_long_as_a_process_of_it_lives(harness: LocalHarness) -> None:
    origin = RunOrigin(deployment_id="here", run=RunKey("ls-served"), dag_id="a dag", run_id="manual__1+x")
    gang = replace(gang_of(harness, [HANGS_ON] * 4, grace_s=60.0), origin=origin)
    began_s = time.time()
    handle = submit(harness, gang)
    running(harness, handle)
    for node in ("n0", "n1"):
        assert proc.send(harness.supervisor(handle, node), signal.SIGSTOP)  # nobody ends the ranks
    processes = harness.processes(handle)
    (harness.root / "engine" / "gangs").rename(harness.root / "deleted")  # at once: supervisors write on meanwhile
    try:
        for engine in (harness.engine, harness.reopened()):
            assert list(engine.find(gang.key.run)) == [handle]
            (found,) = engine.find_all()
            assert (found.handle, found.channel_root, found.origin) == (handle, gang.channel_root, origin)
            assert began_s - 1.0 <= found.submitted_at_s <= time.time() + 1.0
            assert submit(harness, gang) == handle
        assert set(harness.client.stray_names(proc.Census())) == {handle.native_id}
        assert LocalEngine(root=str(harness.root / "another")).find_all() == []
    finally:
        harness.engine.stop(handle, grace_s=0.2)
    assert not any(map(proc.alive, processes))
    assert list(harness.engine.find(gang.key.run)) == list(harness.engine.find_all()) == []


def test_preempting_a_node_that_is_not_there_names_those_that_are(harness: LocalHarness) -> None:
    with pytest.raises(SpecError, match="n0, n1"):
        harness.engine.preempt("n9", grace_s=0.0)


def test_engine_is_registered_under_its_name() -> None:
    assert registry.load(registry.AdapterGroup.ENGINES, LocalEngine.name) is LocalEngine


def test_gang_whose_files_cannot_be_read_leaves_the_others_seen(harness: LocalHarness) -> None:
    good = submit(harness, gang_of(harness, [HANGS]))
    bad = submit(harness, gang_of(harness, [HANGS], skip=1))
    stop_file = harness.client.gang(bad.native_id).stop
    stop_file.write_text("{")
    try:
        assert list(harness.engine.poll([good, bad])) == [good]
        with pytest.raises(CouldNotLookError, match="look again"):
            harness.engine.poll([bad])
    finally:
        stop_file.unlink()


def test_two_gangs_share_a_node_that_has_room_for_both(harness: LocalHarness) -> None:
    submit(harness, gang_of(harness, [HANGS]))
    first, *_ = harness.engine.topology().nodes
    assert (first.num_free_slots, first.free_slots) == (1, (1,))
    layout = ParallelLayout(dp=1)
    only = replace(harness.engine.topology(), nodes=(first,))
    placed = BestFitSolver().place(PlacementProblem(layout=layout, tree=only), time_limit_s=1.0, seed=0)
    assert isinstance(placed, Placed)
    second = replace(gang_of(harness, [HANGS], skip=1), placement=placed.placement, layout=layout)
    handle = submit(harness, second)
    harness.advance_until(lambda: harness.num_live_ranks(handle) == 1, 30)
    assert harness.engine.topology().nodes[0].num_free_slots == 0


def test_an_accelerator_that_was_divided_under_a_gang_is_given_to_nobody_in_slices(harness: LocalHarness) -> None:
    """And none as a whole of which a gang still has a slice. Two DAGs may list the same node otherwise, too."""
    plain, root = harness.engine, str(harness.root / "engine")
    halves = LocalEngine(root=root, divided=[{"slot": 1, "kind": "time", "slices": 2}])
    (rank,) = gang_of(harness, [HANGS]).placement.slots

    def gang_on(run: str, slot: int) -> GangSpec:
        gang = gang_of(harness, [HANGS], key=attempt_key(run))
        return replace(gang, placement=Placement(slots=(replace(rank, slot=slot),)))

    whole, part, again = gang_on("whole", 1), gang_on("part", 2000), gang_on("again", 1)
    handle = plain.submit(plain.render(whole), key=whole.key)
    assert halves.topology().nodes[0].divisions[0].free == ()
    with pytest.raises(CapacityError, match="2000"):
        halves.submit(halves.render(part), key=part.key)
    plain.stop(handle, grace_s=0.0)
    halves.submit(halves.render(part), key=part.key)
    assert plain.topology().nodes[0].free_slots == (0,)
    with pytest.raises(CapacityError, match=r"\[1\]"):
        plain.submit(plain.render(again), key=again.key)
