"""What every engine must prove. Subclass ``EngineContract``, override its ``harness`` fixture, and run pytest.

An engine that can preempt nodes subclasses ``PreemptingEngineContract`` instead. Ranks' behaviour is declared by
``RankScript`` and rendered by the harness: a tiny process for a real engine, simulated behaviour for a simulator.
Tests wait through ``EngineHarness.advance_until``, so they run under a virtual clock as well.
"""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec, GangStatus
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.errors import AbandonedError, CapacityError, LlmschedError
from airflow_llmsched.ports import Engine, EngineFeature, LateDuplicateGuard

SETTLE_S = 15.0
"""How long an engine may take to do what it was told, beyond every limit it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankScript:
    """What one rank does: write ``says``, run for ``lasts_s`` (None: until ended from outside), then end.

    It ends by ``signal`` when that is set (as if the kernel had killed it), else with ``exit_code``.
    """

    lasts_s: float | None = 0.0
    exit_code: int = 0
    signal: int | None = None
    says: str = ""
    ignores_sigterm: bool = False


SUCCEEDS = RankScript()
HANGS = RankScript(lasts_s=None)
HANGS_ON = RankScript(lasts_s=None, ignores_sigterm=True)


class EngineHarness(ABC):
    """One engine under test, its clock, and what lies beyond the port. Fresh: at least 2 nodes of 2 free slots."""

    engine: Engine

    @abstractmethod
    def with_scripts(self, gang: GangSpec, scripts: Sequence[RankScript]) -> GangSpec:
        """Return ``gang`` with a command (and environment) that makes rank i behave like ``scripts[i]``."""

    @abstractmethod
    def with_broken_command(self, gang: GangSpec) -> GangSpec:
        """Return ``gang`` with a command that no node can start."""

    @abstractmethod
    def channel_root(self, key: AttemptKey) -> str:
        """Return where agents of the attempt report and take orders."""

    @abstractmethod
    def advance_until(self, predicate: Callable[[], bool], limit_s: float) -> None:
        """Let this engine's time pass until ``predicate`` holds. Raises ``AssertionError`` after ``limit_s``."""

    @abstractmethod
    def now_s(self) -> float:
        """Return Unix seconds of this engine's clock."""

    @abstractmethod
    def num_live_ranks(self, handle: GangHandle) -> int:
        """Return how many processes of the gang's ranks exist, whatever the engine says."""

    @abstractmethod
    def preempt(self, node: NodeId, *, grace_s: float, return_after_s: float) -> None:
        """Have the platform take ``node``: notice, grace, kill; it comes back later. May return before the kill."""

    @abstractmethod
    def lose(self, handle: GangHandle, node: NodeId) -> None:
        """Make ``node``'s part of the gang vanish with no notice and no last word."""

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Make calls on engines as simultaneously as this one can be asked: here, one after the other.

        Returns what each returned, or the error of ours that it raised. Override it for an engine that several
        processes can ask.
        """
        return [outcome_of(call) for call in calls]

    def reopened(self) -> Engine:
        """Return the engine as another process would open it. The same object when nothing but memory backs it."""
        return self.engine


class EngineContract:
    """The contract. Its tests use only the port and the harness."""

    @pytest.fixture
    def harness(self) -> EngineHarness:
        """Override: return a harness around a fresh engine, and clean up what it leaves."""
        raise NotImplementedError("an engine's contract test overrides the harness fixture")

    def test_rendering_is_pure_and_printable(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [SUCCEEDS, SUCCEEDS])
        request = harness.engine.render(gang)
        assert request == harness.engine.render(gang)
        assert request.engine == harness.engine.name
        assert json.loads(json.dumps(dict(request.body))) == dict(request.body)
        assert list(harness.engine.find(gang.key.run)) == []

    def test_gang_succeeds_when_every_rank_exits_0(self, harness: EngineHarness) -> None:
        handle = submit(harness, gang_of(harness, [SUCCEEDS, replace(SUCCEEDS, lasts_s=0.3), SUCCEEDS, SUCCEEDS]))
        status = ended(harness, handle)
        assert status.phase is GangPhase.SUCCEEDED
        assert status.first_end is None
        assert status.fault is None
        assert status.started_at_s is not None
        assert status.ended_at_s is not None
        assert status.started_at_s <= status.ended_at_s <= harness.now_s()
        assert {node.phase for node in status.nodes} == {GangPhase.SUCCEEDED}

    def test_running_gang_shows_its_nodes(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [HANGS] * 4)
        handle = submit(harness, gang)
        status = running(harness, handle)
        assert tuple(node.node for node in status.nodes) == gang.placement.nodes
        assert status.noticed == ()
        assert status.ended_at_s is None
        assert harness.num_live_ranks(handle) == 4

    def test_submitting_twice_starts_one_gang(self, harness: EngineHarness) -> None:
        """Field case A24: the name exists already."""
        gang = gang_of(harness, [HANGS] * 2)
        handle = submit(harness, gang)
        running(harness, handle)
        assert submit(harness, gang) == handle
        assert harness.reopened().submit(harness.engine.render(gang), key=gang.key) == handle
        assert list(harness.engine.find(gang.key.run)) == [handle]
        assert harness.num_live_ranks(handle) == 2

    def test_submitting_an_ended_attempt_again_starts_nothing(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [SUCCEEDS] * 2)
        handle = submit(harness, gang)
        before = ended(harness, handle)
        assert submit(harness, gang) == handle
        after = poll(harness, handle)
        assert (after.phase, after.ended_at_s) == (before.phase, before.ended_at_s)

    def test_engine_declares_what_stops_a_late_duplicate(self, harness: EngineHarness) -> None:
        assert isinstance(harness.engine.late_duplicate_guard, LateDuplicateGuard)

    def test_submits_of_one_attempt_at_once_start_one_gang(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [HANGS] * 2)
        request = harness.engine.render(gang)
        engines = [harness.reopened() for _ in range(4)]
        outcomes = harness.at_once([partial(engine.submit, request, key=gang.key) for engine in engines])
        handle = outcomes[0]
        assert outcomes == [handle] * 4
        running(harness, handle)
        assert list(harness.engine.find(gang.key.run)) == [handle]
        assert harness.num_live_ranks(handle) == 2

    def test_late_submit_of_an_abandoned_attempt_starts_nothing(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [HANGS] * 2)
        free = free_slots(harness)
        assert harness.engine.abandon(gang.key)
        for engine in (harness.engine, harness.reopened()):
            with pytest.raises(AbandonedError, match=gang.key.name):
                engine.submit(engine.render(gang), key=gang.key)
        handle = only(harness.engine.find(gang.key.run))
        assert handle.key == gang.key
        assert harness.num_live_ranks(handle) == 0
        assert free_slots(harness) == free

    def test_abandoned_attempt_is_seen_as_a_gang_that_was_stopped(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [HANGS] * 2)
        began_s = harness.now_s()
        assert harness.engine.abandon(gang.key)
        later = submit(harness, replace(gang, key=replace(gang.key, attempt=2)))
        found = list(harness.reopened().find(gang.key.run))
        assert [each.key for each in found] == [gang.key, later.key]
        handle = found[0]
        status = poll(harness, handle)
        assert status.phase is GangPhase.STOPPED
        assert status.reason
        assert status.ended_at_s is not None
        assert began_s - 0.01 <= status.ended_at_s <= harness.now_s() + 0.01
        assert [each.handle for each in harness.engine.find_all()] == [later]
        harness.engine.stop(handle, grace_s=0.0)
        assert harness.engine.log_tail(handle, rank=0, num_lines=5) == ""
        assert poll(harness, later).phase is not GangPhase.STOPPED

    def test_abandoning_twice_is_abandoning_once(self, harness: EngineHarness) -> None:
        key = attempt_key()
        assert harness.engine.abandon(key)
        handle = only(harness.engine.find(key.run))
        before = poll(harness, handle).ended_at_s
        assert harness.reopened().abandon(key)
        assert list(harness.engine.find(key.run)) == [handle]
        assert poll(harness, handle).ended_at_s == before

    def test_a_gang_that_is_there_is_not_abandoned_and_left_as_it_is(self, harness: EngineHarness) -> None:
        live = submit(harness, gang_of(harness, [HANGS] * 2))
        running(harness, live)
        done = submit(harness, gang_of(harness, [SUCCEEDS], skip=2))
        ended(harness, done)
        for handle, phase in ((live, GangPhase.RUNNING), (done, GangPhase.SUCCEEDED)):
            assert not harness.engine.abandon(handle.key)
            assert poll(harness, handle).phase is phase
        assert harness.num_live_ranks(live) == 2

    def test_attempt_submitted_and_abandoned_at_once_is_either(self, harness: EngineHarness) -> None:
        gangs = [gang_of(harness, [HANGS], skip=slot) for slot in range(4)]
        for gang in gangs:
            submits = [partial(harness.reopened().submit, harness.engine.render(gang), key=gang.key)] * 2
            first, is_abandoned, second = harness.at_once(
                [submits[0], partial(harness.reopened().abandon, gang.key), submits[1]]
            )
            handle = only(harness.engine.find(gang.key.run))
            if is_abandoned:
                assert isinstance(first, AbandonedError)
                assert isinstance(second, AbandonedError)
                assert poll(harness, handle).phase is GangPhase.STOPPED
            else:
                assert first == second == handle
                running(harness, handle)
            assert harness.num_live_ranks(handle) == int(not is_abandoned)

    def test_find_returns_live_and_ended_gangs_oldest_first(self, harness: EngineHarness) -> None:
        first = gang_of(harness, [SUCCEEDS] * 2)
        first_handle = submit(harness, first)
        ended(harness, first_handle)
        second = gang_of(harness, [HANGS] * 2, key=replace(first.key, attempt=2))
        second_handle = submit(harness, second)
        third = gang_of(harness, [SUCCEEDS], key=replace(first.key, generation=2, attempt=1), skip=2)
        third_handle = submit(harness, third)
        assert list(harness.reopened().find(first.key.run)) == [first_handle, second_handle, third_handle]

    def test_find_of_an_unknown_run_is_empty(self, harness: EngineHarness) -> None:
        submit(harness, gang_of(harness, [HANGS]))
        assert list(harness.engine.find(RunKey("ls-never0submitted0here0"))) == []

    def test_all_live_gangs_of_all_runs_are_found_with_what_they_say_of_themselves(
        self, harness: EngineHarness
    ) -> None:
        began_s = harness.now_s()
        done = submit(harness, gang_of(harness, [SUCCEEDS]))
        ended(harness, done)
        origin = RunOrigin(deployment_id="here", run=RunKey("ls-served"), dag_id="a dag", run_id="manual__1+x")
        first = replace(gang_of(harness, [HANGS]), origin=origin)
        second = gang_of(harness, [HANGS], skip=1)
        handles = [submit(harness, first), submit(harness, second)]
        found = list(harness.reopened().find_all())
        assert [gang.handle for gang in found] == handles
        assert [gang.origin for gang in found] == [origin, None]
        assert [gang.channel_root for gang in found] == [first.channel_root, second.channel_root]
        for gang in found:
            assert began_s - 0.01 <= gang.submitted_at_s <= harness.now_s() + 0.01
        harness.engine.stop(handles[0], grace_s=0.5)
        ended(harness, handles[0])
        assert [gang.handle for gang in harness.engine.find_all()] == handles[1:]

    def test_engine_without_gangs_finds_none_of_any_run(self, harness: EngineHarness) -> None:
        assert list(harness.engine.find_all()) == []

    def test_handle_survives_json_and_another_process(self, harness: EngineHarness) -> None:
        handle = submit(harness, gang_of(harness, [HANGS] * 2))
        running(harness, handle)
        copy = codec.from_json(GangHandle, codec.to_json(handle))
        assert copy == handle
        assert harness.reopened().poll([copy])[copy].phase is GangPhase.RUNNING

    def test_polling_a_gang_that_never_was_says_lost(self, harness: EngineHarness) -> None:
        key = attempt_key("never")
        unknown = GangHandle(engine=harness.engine.name, key=key, native_id=key.name)
        known = submit(harness, gang_of(harness, [HANGS]))
        statuses = harness.engine.poll([unknown, known])
        assert set(statuses) == {unknown, known}
        assert statuses[unknown].phase is GangPhase.LOST
        assert key.name in statuses[unknown].reason
        assert not statuses[known].phase.ended

    def test_polling_nothing_returns_nothing(self, harness: EngineHarness) -> None:
        assert dict(harness.engine.poll([])) == {}

    def test_gang_that_does_not_fit_is_refused_whole(self, harness: EngineHarness) -> None:
        blocker = submit(harness, gang_of(harness, [HANGS] * 3))
        gang = gang_of(harness, [HANGS] * 4)
        with pytest.raises(CapacityError, match=gang.placement.nodes[0]):
            submit(harness, gang)
        assert list(harness.engine.find(gang.key.run)) == []
        harness.engine.stop(blocker, grace_s=1.0)
        assert submit(harness, gang).key == gang.key

    def test_command_that_cannot_start_fails_the_gang_and_names_a_rank(self, harness: EngineHarness) -> None:
        gang = harness.with_broken_command(gang_of(harness, [HANGS] * 4))
        handle = submit(harness, gang)
        status = ended(harness, handle, limit_s=gang.start_limit_s + SETTLE_S)
        assert status.phase is GangPhase.FAILED
        assert status.fault is FaultKind.START_FAILED
        assert status.first_end is not None
        assert f"rank {status.first_end.rank}" in status.reason
        assert status.first_end.log_tail
        assert harness.num_live_ranks(handle) == 0

    def test_failed_rank_ends_the_gang_and_is_named_with_its_code_and_last_lines(self, harness: EngineHarness) -> None:
        fails = RankScript(lasts_s=0.3, exit_code=3, says="loss is nan\ngiving up")
        handle = submit(harness, gang_of(harness, [HANGS, fails, HANGS, HANGS]))
        status = ended(harness, handle)
        assert status.phase is GangPhase.FAILED
        assert status.fault is FaultKind.RANK_FAILED
        assert status.first_end is not None
        assert (status.first_end.rank, status.first_end.exit_code, status.first_end.signal) == (1, 3, None)
        assert status.first_end.log_tail.splitlines()[-1] == "giving up"
        assert "rank 1" in status.reason
        assert "3" in status.reason
        assert harness.num_live_ranks(handle) == 0

    def test_rank_that_fails_on_a_later_node_ends_the_first_node_too(self, harness: EngineHarness) -> None:
        handle = submit(harness, gang_of(harness, [HANGS_ON, HANGS, HANGS, RankScript(exit_code=7)], grace_s=0.5))
        status = ended(harness, handle)
        assert status.first_end is not None
        assert (status.first_end.rank, status.first_end.exit_code) == (3, 7)
        assert harness.num_live_ranks(handle) == 0

    def test_killed_rank_without_a_notice_is_a_failure_that_names_the_signal(self, harness: EngineHarness) -> None:
        handle = submit(harness, gang_of(harness, [HANGS, HANGS, RankScript(lasts_s=0.2, signal=9), HANGS]))
        status = ended(harness, handle)
        assert status.phase is GangPhase.FAILED
        assert status.first_end is not None
        assert (status.first_end.rank, status.first_end.exit_code, status.first_end.signal) == (2, None, 9)
        assert "SIGKILL" in status.reason

    def test_rank_that_exits_0_early_fails_the_gang_within_the_exit_grace(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [HANGS, RankScript(lasts_s=0.2), HANGS, HANGS], exit_grace_s=1.0)
        handle = submit(harness, gang)
        status = ended(harness, handle, limit_s=gang.exit_grace_s + SETTLE_S)
        assert status.phase is GangPhase.FAILED
        assert status.fault is FaultKind.RANK_EXITED_EARLY
        assert status.first_end is not None
        assert (status.first_end.rank, status.first_end.exit_code) == (1, 0)
        assert "rank 1" in status.reason
        assert harness.num_live_ranks(handle) == 0

    def test_stop_ends_everything_within_the_grace_and_again_is_silent(self, harness: EngineHarness) -> None:
        """Field case A1: that it is gone already is no error."""
        handle = submit(harness, gang_of(harness, [HANGS, HANGS_ON, HANGS, HANGS_ON]))
        running(harness, handle)
        asked_at_s = harness.now_s()
        harness.engine.stop(handle, grace_s=1.0)
        harness.advance_until(lambda: harness.num_live_ranks(handle) == 0, 6.0)
        status = ended(harness, handle)
        assert harness.now_s() - asked_at_s <= 6.0
        assert status.phase is GangPhase.STOPPED
        assert status.first_end is None
        harness.engine.stop(handle, grace_s=1.0)
        harness.reopened().stop(handle, grace_s=0.0)
        assert poll(harness, handle).phase is GangPhase.STOPPED

    def test_stop_leaves_the_end_of_an_ended_gang_as_it_was(self, harness: EngineHarness) -> None:
        handle = submit(harness, gang_of(harness, [SUCCEEDS] * 2))
        ended(harness, handle)
        harness.engine.stop(handle, grace_s=1.0)
        assert poll(harness, handle).phase is GangPhase.SUCCEEDED

    def test_stop_of_one_gang_leaves_the_others_alone(self, harness: EngineHarness) -> None:
        mine = submit(harness, gang_of(harness, [HANGS] * 2))
        other = submit(harness, gang_of(harness, [HANGS] * 2, skip=2))
        running(harness, mine)
        running(harness, other)
        harness.engine.stop(mine, grace_s=0.5)
        harness.advance_until(lambda: harness.num_live_ranks(mine) == 0, 5.5)
        assert poll(harness, other).phase is GangPhase.RUNNING
        assert harness.num_live_ranks(other) == 2

    def test_topology_counts_what_live_gangs_use(self, harness: EngineHarness) -> None:
        free = free_slots(harness)
        gang = gang_of(harness, [HANGS] * 3)
        handle = submit(harness, gang)
        used = {node: free[node] - len(gang.placement.on(node)) for node in gang.placement.nodes}
        assert free_slots(harness) == {**free, **used}
        harness.engine.stop(handle, grace_s=0.5)
        ended(harness, handle)
        assert free_slots(harness) == free

    def test_vanished_node_means_lost_and_the_rest_is_ended(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [HANGS] * 4)
        handle = submit(harness, gang)
        running(harness, handle)
        gone = gang.placement.nodes[1]
        harness.lose(handle, gone)
        status = ended(harness, handle)
        assert status.phase is GangPhase.LOST
        assert gone in status.reason
        assert {node.node: node.phase for node in status.nodes}[gone] is GangPhase.LOST
        harness.advance_until(lambda: harness.num_live_ranks(handle) == 0, gang.grace_s + SETTLE_S)

    def test_log_tail_returns_the_last_lines_of_a_rank(self, harness: EngineHarness) -> None:
        talks = RankScript(says="one\ntwo\nthree")
        handle = submit(harness, gang_of(harness, [SUCCEEDS, talks]))
        ended(harness, handle)
        assert harness.engine.log_tail(handle, rank=1, num_lines=2).splitlines() == ["two", "three"]
        assert harness.engine.log_tail(handle, rank=0, num_lines=5) == ""
        tails = harness.engine.log_tails(handle, ranks=[1, 0], num_lines=1)
        assert {rank: text.strip() for rank, text in tails.items()} == {1: "three", 0: ""}


class PreemptingEngineContract(EngineContract):
    """The contract of an engine with ``EngineFeature.PREEMPT_NODE``."""

    def test_engine_says_that_it_preempts(self, harness: EngineHarness) -> None:
        assert EngineFeature.PREEMPT_NODE in harness.engine.features

    def test_preemption_is_announced_then_ends_the_gang_as_preempted(self, harness: EngineHarness) -> None:
        gang = gang_of(harness, [HANGS] * 4)
        handle = submit(harness, gang)
        running(harness, handle)
        taken = gang.placement.nodes[1]
        asked_at_s = harness.now_s()
        harness.preempt(taken, grace_s=1.0, return_after_s=3600.0)
        harness.advance_until(lambda: bool(poll(harness, handle).noticed), SETTLE_S)
        (notice,) = poll(harness, handle).noticed
        assert notice.node == taken
        assert notice.notice_deadline_s is not None
        assert asked_at_s - 0.01 <= notice.notice_deadline_s - 1.0 <= harness.now_s() + 0.01
        status = ended(harness, handle)
        assert status.phase is GangPhase.PREEMPTED
        assert taken in status.reason
        assert harness.num_live_ranks(handle) == 0

    def test_preempted_node_is_unusable_with_a_reason_until_it_returns(self, harness: EngineHarness) -> None:
        node = nodes_of(harness)[0]
        harness.preempt(node.id, grace_s=0.2, return_after_s=4.0)
        harness.advance_until(lambda: usable(harness, node.id) == 0, SETTLE_S)
        down = next(each for each in nodes_of(harness) if each.id == node.id)
        assert down.unusable_reason
        assert "preempt" in down.unusable_reason
        gang = gang_of(harness, [SUCCEEDS] * node.num_slots, on=down)
        with pytest.raises(CapacityError, match=node.id):
            submit(harness, gang)
        harness.advance_until(lambda: usable(harness, node.id) == node.num_slots, 4.0 + SETTLE_S)
        assert ended(harness, submit(harness, gang)).phase is GangPhase.SUCCEEDED


def outcome_of(call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, or the error of ours that it raises."""
    try:
        return call()
    except LlmschedError as error:
        return error


def only(handles: Sequence[GangHandle]) -> GangHandle:
    """Return the one gang there is."""
    assert len(handles) == 1, handles
    return handles[0]


def attempt_key(name: str | None = None) -> AttemptKey:
    """Return the first attempt of a run that nothing else here uses."""
    label = name or secrets.token_hex(6)
    return AttemptKey(run=RunKey(f"ls-contract-{label}"), generation=1, attempt=1)


def gang_of(
    harness: EngineHarness,
    scripts: Sequence[RankScript],
    *,
    key: AttemptKey | None = None,
    on: TopologyNode | None = None,
    skip: int = 0,
    grace_s: float = 2.0,
    exit_grace_s: float = 10.0,
) -> GangSpec:
    """Return a gang with one rank per script, on the nodes in order of their ids (or on ``on``), full or not.

    ``skip`` leaves that many of the first slots to others.
    """
    nodes = [on] if on else nodes_of(harness)
    places = [(node.id, slot) for node in nodes for slot in range(node.num_slots)][skip : skip + len(scripts)]
    assert len(places) == len(scripts), "the harness needs 2 nodes of 2 slots"
    locals_: dict[NodeId, int] = {}
    slots = []
    for rank, (node_id, slot) in enumerate(places):
        slots.append(RankSlot(rank=rank, node=node_id, slot=slot, local_rank=locals_.get(node_id, 0)))
        locals_[node_id] = slots[-1].local_rank + 1
    key = key or attempt_key()
    bare = GangSpec(
        key=key,
        placement=Placement(slots=tuple(slots)),
        layout=ParallelLayout(dp=len(slots)),
        command=("true",),
        channel_root=harness.channel_root(key),
        launcher=Launcher.PLAIN,
        start_limit_s=20.0,
        grace_s=grace_s,
        exit_grace_s=exit_grace_s,
        flush_interval_s=0.1,
    )
    return harness.with_scripts(bare, scripts)


def nodes_of(harness: EngineHarness) -> list[TopologyNode]:
    """Return the engine's nodes in order of their ids."""
    return sorted(harness.engine.topology().nodes, key=lambda node: node.id)


def free_slots(harness: EngineHarness) -> dict[NodeId, int]:
    """Return free slots by node."""
    return {node.id: node.num_free_slots for node in nodes_of(harness)}


def usable(harness: EngineHarness, node: NodeId) -> int:
    """Return the usable slots of one node."""
    return next(each.usable_slots for each in nodes_of(harness) if each.id == node)


def submit(harness: EngineHarness, gang: GangSpec) -> GangHandle:
    """Render and submit."""
    return harness.engine.submit(harness.engine.render(gang), key=gang.key)


def poll(harness: EngineHarness, handle: GangHandle) -> GangStatus:
    """Return one gang's status."""
    return harness.engine.poll([handle])[handle]


def running(harness: EngineHarness, handle: GangHandle) -> GangStatus:
    """Wait until the gang runs, and return that status."""
    harness.advance_until(lambda: poll(harness, handle).phase is GangPhase.RUNNING, SETTLE_S)
    return poll(harness, handle)


def ended(harness: EngineHarness, handle: GangHandle, *, limit_s: float = SETTLE_S) -> GangStatus:
    """Wait until the gang has ended, and return that status."""
    harness.advance_until(lambda: poll(harness, handle).phase.ended, limit_s)
    return poll(harness, handle)
