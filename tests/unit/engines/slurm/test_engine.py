"""What the engine decides, on a queue that a test wrote; tests/contract and tests/integration run it on a real one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.proc import myself
from airflow_llmsched.agent.shelf import Shelf
from airflow_llmsched.agent.spool import write_json
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId, RunOrigin
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.effect_points import Side
from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.records import JobRecord
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, LaunchError, SpecError
from airflow_llmsched.testing.engine_contract import attempt_key
from tests.support.crashing import Gun, Shot, WorkerDied, listening
from tests.support.slurm_queue import ListedSlurm
from tests.support.wirings import TWO_SOCKETS


class House:
    """One cluster of three nodes, and engines upon it as one process after the other would open them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.slurm = ListedSlurm("n1", "n2", "n3")
        self.shelf = Shelf(root)

    def engine(self, **options: object) -> SlurmEngine:
        given = {"root": str(self.root), "python": "/usr/bin/python3", "slots_per_node": 2, "vanish_grace_s": 0.0}
        return SlurmEngine(
            options=SlurmOptions.from_json({**given, **options}), client=self.slurm, shelf=Shelf(self.root)
        )

    def gang(self, *nodes: str, num_slots: int = 2, **changes: object) -> GangSpec:
        places = [(node, slot) for node in nodes or ("n1", "n2") for slot in range(num_slots)]
        slots = [
            RankSlot(rank=rank, node=NodeId(node), slot=slot, local_rank=slot)
            for rank, (node, slot) in enumerate(places)
        ]
        bare = GangSpec(
            key=attempt_key(),
            placement=Placement(slots=tuple(slots)),
            layout=ParallelLayout(dp=len(slots)),
            command=("true",),
            channel_root="/channel",
        )
        return replace(bare, **changes)  # type: ignore[arg-type]

    def submit(self, gang: GangSpec, **options: object) -> GangHandle:
        engine = self.engine(**options)
        return engine.submit(engine.render(gang), key=gang.key)

    def take(self, handle: GangHandle, job_id: str) -> None:
        """Do what a job does first."""
        job = {"v": 1, "job_id": job_id, "restart": 0, "at_s": 1.0}
        write_json(self.root / "gangs" / handle.native_id / "job.json", job)

    def run(self, handle: GangHandle) -> None:
        """Do what a job of one node does until its ranks run."""
        self.take(handle, "1")
        gang = GangDir(self.root / "gangs" / handle.native_id)
        gang.node("n1").make()
        body = {"nodes": [{"node": "n1"}], "start_limit_s": 1e9, "grace_s": 1.0, "environment": {}}
        write_json(gang.request, {"v": 1, "submitted_at_s": 1.0, "restart": 0, "body": body})
        gang.node("n1").claim(myself(), at_s=1.0, port=None)
        write_json(gang.node("n1").started, {"v": 1, "at_s": 1.5})


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_request_of_another_attempt_or_engine_is_refused(house: House) -> None:
    engine = house.engine()
    request = engine.render(house.gang())
    with pytest.raises(SpecError, match="not rendered"):
        engine.submit(request, key=attempt_key())
    with pytest.raises(SpecError, match="not rendered"):
        engine.submit(replace(request, engine="other"), key=request.key)


def test_submitting_again_queues_no_second_job_at_any_time(house: House) -> None:
    gang = house.gang()
    handle = house.submit(gang)
    assert house.submit(gang) == handle
    house.slurm.turn("1", "COMPLETED")
    assert house.submit(gang) == handle
    house.slurm.listed.clear()
    house.take(handle, "1")
    assert house.submit(gang) == handle
    assert len(house.slurm.scripts) == 1


def test_second_of_two_jobs_submitted_at_once_is_cancelled_by_whoever_finds_it(house: House) -> None:
    gang = house.gang()
    house.submit(gang)
    waiting, house.slurm.listed = house.slurm.listed, []
    slow = house.engine()
    queued = house.slurm.submit

    def submit_late(script: str, **parts: object) -> object:
        house.slurm.listed += waiting
        return queued(script, **parts)  # type: ignore[arg-type]

    house.slurm.submit = submit_late  # type: ignore[method-assign, assignment]
    slow.submit(slow.render(gang), key=gang.key)
    assert house.slurm.cancelled == ["2"]


def test_refused_job_uses_its_attempt_up(house: House) -> None:
    house.slurm.answer = LaunchError("Slurm refused the job: Invalid account")
    gang = house.gang()
    with pytest.raises(LaunchError, match="Invalid account"):
        house.submit(gang)
    house.slurm.answer = None
    handle = house.submit(gang)
    assert house.slurm.scripts == []
    status = house.engine().poll([handle])[handle]
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)


def test_submit_whose_answer_was_lost_is_repeated_under_the_same_name(house: House) -> None:
    house.slurm.answer = CouldNotLookError("sbatch did not answer")
    gang = house.gang()
    with pytest.raises(CouldNotLookError):
        house.submit(gang)
    house.slurm.answer = None
    assert [each.key for each in house.engine().find(gang.key.run)] == [gang.key]
    house.submit(gang)
    assert len(house.slurm.scripts) == 1


def test_abandoned_attempt_is_not_submitted(house: House) -> None:
    gang = house.gang()
    assert house.engine().abandon(gang.key)
    with pytest.raises(AbandonedError):
        house.submit(gang)
    assert house.slurm.scripts == []
    assert not house.engine().abandon(house.submit(house.gang()).key)


def test_room_that_a_waiting_gang_will_take_is_not_free(house: House) -> None:
    house.submit(house.gang("n1", num_slots=1))
    free = {node.id: node.num_free_slots for node in house.engine().topology().nodes}
    assert free == {"n1": 1, "n2": 2, "n3": 2}
    with pytest.raises(CapacityError, match="n1 has 1 free slots of the 2"):
        house.submit(house.gang("n1"))
    house.submit(house.gang("n2"))


LINKS = [{"bandwidth_bytes_per_s": 4e10, "measured": True}]


def test_what_is_known_of_the_network_survives_a_look_at_the_queue(house: House, tmp_path: Path) -> None:
    file = tmp_path / "topo"
    file.write_text(TWO_SOCKETS, encoding="utf-8")
    said = {"fabric": {"rails": 8}, "wirings": {"slurm-node": str(file)}}
    tree = house.engine(scale_up_level="host", switches_reduce=True, flat=True, network=LINKS, **said).topology()
    assert (tree.facts.num_rails, len(tree.wirings["slurm-node"].gpus)) == (8, 4)
    assert (tree.levels, tree.scale_up_level, tree.switches_reduce) == (("host",), "host", True)
    assert tree.network == (NetworkLevel(level=None, bandwidth_bytes_per_s=4e10, is_measured=True),)


def test_queue_that_never_stands_still_is_looked_at_a_few_times(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = house.engine()
    sights = [{f"gang-{number}": {"n1": 1}} for number in range(100)]
    monkeypatch.setattr(engine._looker, "waiting", sights.pop)
    assert {node.id: node.num_free_slots for node in engine.topology().nodes}["n1"] == 1
    assert len(sights) > 90


def test_partition_without_nodes_is_no_full_cluster(house: House) -> None:
    with pytest.raises(CouldNotLookError, match="no node is in partition lwo"):
        house.engine(partition="lwo").topology()


def test_node_that_is_down_or_unknown_is_refused_with_the_reason(house: House) -> None:
    first = house.slurm.records[0]
    house.slurm.records[0] = replace(first, states=("IDLE", "DRAIN"), reason="bad fan")
    with pytest.raises(CapacityError, match=r"n1 is .*drain.*bad fan"):
        house.submit(house.gang())
    with pytest.raises(CapacityError, match="no node n9"):
        house.submit(house.gang("n9"))


def test_slurm_that_chooses_nodes_is_not_asked_for_room_first(house: House) -> None:
    house.slurm.records.clear()
    house.submit(house.gang(), chooses_nodes=True)
    assert len(house.slurm.scripts) == 1


def test_node_that_failed_and_was_taken_out_of_the_cluster_keeps_no_job_from_being_queued(house: House) -> None:
    gang = house.gang(excluded=(NodeId("n3"), NodeId("n7")))
    house.submit(gang, chooses_nodes=True)
    (script,) = house.slurm.scripts
    assert "#SBATCH --exclude=n3\n" in script


def test_nodes_that_the_options_exclude_are_told_as_they_are(house: House) -> None:
    house.submit(house.gang(excluded=(NodeId("n3"),)), chooses_nodes=True, exclude=["n8"])
    (script,) = house.slurm.scripts
    assert "#SBATCH --exclude=n[3,8]\n" in script, "whoever mistyped it is told by Slurm"


def test_gang_whose_folder_was_deleted_is_found_and_ended_by_its_job(house: House) -> None:
    origin = RunOrigin(deployment_id="here", run=attempt_key().run, dag_id="a dag", run_id="manual__1+x")
    gang = house.gang(origin=origin)
    handle = house.submit(gang)
    house.slurm.turn("1", "RUNNING", submitted_at_s=50.0)
    shutil.rmtree(house.root / "gangs")
    assert list(house.engine().find(gang.key.run)) == [handle]
    (found,) = house.engine().find_all()
    assert (found.handle, found.origin, found.channel_root, found.submitted_at_s) == (handle, origin, "/channel", 50.0)
    assert house.submit(gang) == handle
    house.engine().stop(handle, grace_s=0.0)
    assert house.slurm.cancelled == ["1"]
    assert house.engine().poll([handle])[handle].phase is GangPhase.LOST


def test_site_that_takes_its_time_after_a_job_does_not_keep_a_gang_without_ranks_alive(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_llmsched.engines.slurm.engine._CANCELLED_LIMIT_S", 0.1)
    handle = house.submit(house.gang("n1"))
    house.slurm.turn("1", "RUNNING")
    house.run(handle)
    house.slurm.cancel = lambda job: house.slurm.turn(job.id, "COMPLETING")  # type: ignore[method-assign]
    with pytest.raises(CouldNotLookError, match="still there"):
        house.engine().stop(handle, grace_s=0.0)
    exit_record = {"v": 1, "at_s": 2.0, "outcome": "stopped", "fault": None, "reason": "", "ends": []}
    write_json(house.root / "gangs" / handle.native_id / "nodes" / "n1" / "exit.json", exit_record)
    house.engine().stop(handle, grace_s=0.0)
    assert house.engine().poll([handle])[handle].phase is GangPhase.STOPPED


def test_waiting_job_is_cancelled_without_a_grace(house: House) -> None:
    handle = house.submit(house.gang())
    house.engine().stop(handle, grace_s=600.0)
    assert house.slurm.cancelled == ["1"]
    assert house.engine().poll([handle])[handle].phase is GangPhase.STOPPED


def test_gang_whose_files_cannot_be_read_hides_no_other(house: House) -> None:
    good, bad = house.submit(house.gang("n1")), house.submit(house.gang("n2"))
    for job_id in ("1", "2"):
        house.slurm.turn(job_id, "RUNNING")
    (house.root / "gangs" / bad.native_id / "submit.json").write_text("{")
    engine = house.engine()
    assert set(engine.poll([good, bad])) == {good}
    for look in (lambda: engine.poll([bad]), engine.find_all, lambda: engine.stop(bad, grace_s=0.0)):
        with pytest.raises(CouldNotLookError, match="look again"):
            look()


def test_gang_whose_end_only_a_silent_database_knows_hides_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(job_ids: Sequence[str]) -> list[JobRecord]:
        raise CouldNotLookError(f"sacct: Problem talking to the database about {', '.join(job_ids)}; look again")

    monkeypatch.setattr(house.slurm, "accounting", silent)
    gone, good = house.submit(house.gang("n1")), house.submit(house.gang("n2"))
    house.take(gone, "1")
    house.slurm.listed = [job for job in house.slurm.listed if job.job_id != "1"]
    engine = house.engine()
    assert set(engine.poll([gone, good])) == {good}
    with pytest.raises(CouldNotLookError, match="database about 1"):
        engine.poll([gone])
    house.run(gone)
    done = {"v": 1, "at_s": 2.0, "outcome": "done", "fault": None, "reason": "", "ends": []}
    write_json(house.root / "gangs" / gone.native_id / "nodes" / "n1" / "exit.json", done)
    assert engine.poll([gone])[gone].phase is GangPhase.SUCCEEDED, "no database is needed for that"


def test_handle_that_points_elsewhere_touches_nothing(house: House) -> None:
    for native_id in ("../../etc", "a/b", ".hidden"):
        handle = GangHandle(engine="slurm", key=attempt_key(), native_id=native_id)
        with pytest.raises(CouldNotLookError):
            house.engine().poll([handle])
    assert house.slurm.cancelled == []


def _submits(house: House, gang: GangSpec) -> None:
    house.submit(gang)


def _refused(house: House, gang: GangSpec) -> None:
    house.slurm.answer = LaunchError("Slurm refused the job: no")
    try:
        house.submit(gang)
    except LaunchError:
        house.slurm.answer = None


def _doubles(house: House, gang: GangSpec) -> None:
    house.submit(gang)
    engine = house.engine()
    engine._queue(engine.render(gang), gang.key)  # as one does who did not see the first


def _stops(house: House, gang: GangSpec) -> None:
    handle = house.submit(gang)
    house.engine().stop(handle, grace_s=0.0)
    house.engine().poll([handle])


def _loses(house: House, gang: GangSpec) -> None:
    handle = house.submit(gang)
    house.slurm.listed.clear()
    house.engine().poll([handle])


def _abandons(house: House, gang: GangSpec) -> None:
    house.engine().abandon(gang.key)


DEATHS: list[tuple[str, Callable[[House, GangSpec], None], set[GangPhase]]] = [
    ("slurm.submit.claim", _submits, {GangPhase.PENDING}),
    ("slurm.submit.sbatch", _submits, {GangPhase.PENDING}),
    ("slurm.submit.refused", _refused, {GangPhase.PENDING, GangPhase.FAILED}),
    ("slurm.submit.cancel_duplicate", _doubles, {GangPhase.PENDING}),
    ("slurm.abandon.claim", _abandons, {GangPhase.PENDING, GangPhase.STOPPED}),
    ("slurm.stop.mark", _stops, {GangPhase.PENDING, GangPhase.STOPPED}),
    ("slurm.stop.cancel", _stops, {GangPhase.PENDING, GangPhase.STOPPED}),
    ("slurm.poll.give_up", _loses, {GangPhase.PENDING, GangPhase.LOST}),
    ("slurm.poll.end", _loses, {GangPhase.LOST}),
]


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("point", "deed", "phases"), DEATHS, ids=[point for point, _, _ in DEATHS])
def test_worker_that_dies_anywhere_leaves_at_most_one_gang_and_the_next_says_what_became_of_it(
    house: House, point: str, deed: Callable[[House, GangSpec], None], phases: set[GangPhase], side: Side
) -> None:
    gang = house.gang()

    def die() -> None:
        raise WorkerDied

    with listening(Gun(Shot(point, side, 1), die)), pytest.raises(WorkerDied):
        deed(house, gang)
    house.slurm.answer = None
    try:
        handle = house.submit(gang)
    except AbandonedError:
        (handle,) = house.engine().find(gang.key.run)
    assert [each.key for each in house.engine().find(gang.key.run)] == [gang.key]
    live = [job for job in house.slurm.listed if not job.state.phase.ended]
    first = [house.engine().poll([handle])[handle] for _ in range(2)]
    assert first[0].phase is first[1].phase
    assert first[0].phase in phases
    # The others of the name wait for the first to end (singleton), and then find its place taken.
    assert len(live) <= 1 or point == "slurm.submit.cancel_duplicate"
    house.engine().stop(handle, grace_s=0.0)
    assert house.engine().poll([handle])[handle].phase.ended
    assert [job for job in house.slurm.listed if not job.state.phase.ended] == []
