"""Effects one by one, on the simulated house: what they do, and that doing them again is harmless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Outcome, Watch
from airflow_llmsched.control.effects import JOIN_S, Effects
from airflow_llmsched.control.launch import build_gang
from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.decision import Abort, Finish
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec, GangStatus, LaunchRequest
from airflow_llmsched.domain.health import Fault, FaultKind
from airflow_llmsched.domain.identity import AttemptKey, LeaseKey, NodeId
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseId, LeaseState
from airflow_llmsched.errors import CapacityError, CouldNotLookError, InternalError, LaunchError
from airflow_llmsched.planner.policies.failure import FailureHistory
from airflow_llmsched.ports import EngineFeature
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.sim_cloud import sim_pool
from tests.support.sim_house import ROOT, RUN, SimHouse, greedy_planner, plan_of, tree_of, workload_of

KEY = AttemptKey(run=RUN, generation=1, attempt=1)
LAUNCH = cmd.Launch(key=KEY, channel_root="ch", plan=plan_of(("n0", 2)), checkpoint=None, waiting_since_s=None)


def effects(house: SimHouse) -> Effects:
    return house.driver()._effects


def launched(house: SimHouse) -> ev.Launched:
    (event,) = effects(house).perform(LAUNCH)
    assert isinstance(event, ev.Launched)
    return event


def stop_command(event: ev.Launched, *, save_first: bool) -> cmd.StopGang:
    return cmd.StopGang(handle=event.handle, channel_root="ch", reason="enough", save_first=save_first)


def test_launching_again_adopts() -> None:
    house = SimHouse()
    handle = launched(house).handle
    (again,) = effects(house).perform(LAUNCH)
    assert isinstance(again, ev.Adopted)
    assert again.handle == handle
    assert house.live() == (handle,)


def test_launch_tells_the_engine_which_nodes_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    house = SimHouse()
    render, asked = house.engine.render, []
    monkeypatch.setattr(house.engine, "render", lambda gang: (asked.append(gang), render(gang))[1])
    effects(house).perform(replace(LAUNCH, excluded=(NodeId("n0"), NodeId("n7"))))
    assert [gang.excluded for gang in asked] == [("n7",)], "n0 is the plan's own: there is none without it"


def test_launch_first_stops_any_other_gang_of_the_run() -> None:
    house = SimHouse()
    launched(house)
    second = cmd.Launch(
        key=AttemptKey(run=RUN, generation=1, attempt=2),
        channel_root="ch2",
        plan=LAUNCH.plan,
        checkpoint=None,
        waiting_since_s=None,
    )
    effects(house).perform(second)
    assert [handle.key.attempt for handle in house.live()] == [2]


def test_launch_waits_out_a_gang_that_a_worker_stopped_unseen_before_it_died() -> None:
    house = SimHouse(tree=tree_of(3), workload=workload_of())
    house.context = replace(house.context, lease_s=30.0)
    launched(house)
    house.engine.partition(NodeId("n0"))
    effects(house).stop_live(through=None)  # and then nothing: it died before it could record a fence
    other = replace(LAUNCH, key=replace(KEY, attempt=2), channel_root="ch2", plan=plan_of(("n1", 2)))
    (refused,) = effects(house).perform(other)
    assert isinstance(refused, ev.LaunchRefused)
    assert refused.fault is None
    assert refused.retry_at_s is not None
    house.clock.sleep(refused.retry_at_s - house.clock.now_s())
    (begun,) = effects(house).perform(replace(other, key=replace(KEY, attempt=3)))
    assert isinstance(begun, ev.Launched)
    assert house.engine.overlaps == []


def test_launch_on_what_is_not_free_any_more_is_refused_without_a_fault() -> None:
    house = SimHouse()
    house.engine.lose_node(NodeId("n0"))
    (refused,) = effects(house).perform(LAUNCH)
    assert isinstance(refused, ev.LaunchRefused)
    assert refused.fault is None
    assert refused.retry_at_s is not None
    assert "node n0" in refused.reason


def test_a_launch_refused_for_want_of_capacity_is_never_made_later() -> None:
    house = SimHouse()
    house.engine.lose_node(NodeId("n0"), return_after_s=10.0)
    effects(house).perform(LAUNCH)
    house.clock.sleep(20.0)
    (refused,) = effects(house).perform(LAUNCH)  # by a worker that had stood still meanwhile
    assert isinstance(refused, ev.LaunchRefused)
    assert refused.fault is None
    assert refused.retry_at_s == house.clock.now_s()
    assert "given up" in refused.reason
    assert house.live() == ()


def test_a_launch_that_another_worker_made_while_it_was_refused_is_adopted() -> None:
    house = SimHouse()
    submit = house.engine.submit

    def refuse_what_another_gets(request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        house.engine.submit = submit  # type: ignore[method-assign]
        submit(request, key=key)
        raise CapacityError("no slot")

    house.engine.submit = refuse_what_another_gets  # type: ignore[method-assign]
    (adopted,) = effects(house).perform(LAUNCH)
    assert isinstance(adopted, ev.Adopted)
    assert house.live() == (adopted.handle,)


@pytest.mark.parametrize(
    "ending",
    [
        cmd.StopOthers(through=AttemptKey(run=RUN, generation=2, attempt=0), unlaunched=KEY),
        cmd.CancelRun(reason="killed", through=KEY, unlaunched=KEY),
    ],
)
def test_an_attempt_that_was_intended_is_given_up_or_stopped(ending: cmd.StopOthers | cmd.CancelRun) -> None:
    house = SimHouse()
    effects(house).perform(ending)
    (refused,) = effects(house).perform(LAUNCH)
    assert isinstance(refused, ev.LaunchRefused)
    other = SimHouse()
    launched(other)
    effects(other).perform(ending)
    assert other.live() == ()


def test_launch_that_the_engine_refuses_is_a_fault() -> None:
    house = SimHouse()

    def refuse(_request: object, *, key: AttemptKey) -> None:
        raise LaunchError(f"{key.name}: quota exceeded")

    house.engine.submit = refuse  # type: ignore[method-assign, assignment]
    (refused,) = effects(house).perform(LAUNCH)
    assert isinstance(refused, ev.LaunchRefused)
    assert refused.fault is not None
    assert refused.fault.kind is FaultKind.START_FAILED
    assert "quota exceeded" in refused.fault.summary
    assert [status.phase for status in house.engine.poll(house.engine.find(RUN)).values()] == [GangPhase.STOPPED]


def test_brief_blindness_is_waited_out_and_lasting_blindness_is_raised() -> None:
    house = SimHouse()
    house.engine.blind(for_s=5.0)
    launched(house)
    house.engine.blind(for_s=1e6)
    with pytest.raises(CouldNotLookError):
        effects(house).perform(cmd.StopOthers(through=LAUNCH.key))


def test_stop_waits_until_the_gang_is_gone_and_can_be_repeated() -> None:
    house = SimHouse()
    event = launched(house)
    house.clock.sleep(10.0)
    for _ in range(2):
        (stopped,) = effects(house).perform(stop_command(event, save_first=False))
        assert isinstance(stopped, ev.Stopped)
        assert stopped.status.phase is GangPhase.STOPPED
        assert not stopped.completed
    assert house.live() == ()


def test_stop_that_does_not_take_is_not_called_a_stop() -> None:
    house = SimHouse()
    event = launched(house)
    house.engine.stop = lambda _handle, *, grace_s: None  # type: ignore[method-assign]
    with pytest.raises(CouldNotLookError, match="still alive"):
        effects(house).stop(event.handle)


def test_stop_with_a_save_lets_the_ranks_leave_by_themselves() -> None:
    house = SimHouse()
    event = launched(house)
    house.clock.sleep(21.5)
    seen, stopped = effects(house).perform(stop_command(event, save_first=True))
    assert isinstance(seen, ev.CheckpointSeen)
    assert isinstance(stopped, ev.Stopped)
    assert stopped.status.phase is GangPhase.SUCCEEDED
    assert not stopped.completed
    newest = next(iter(house.checkpoints.scan(ROOT)))
    assert newest.complete
    assert newest.step == stopped.last_step


def test_stop_with_a_save_works_even_when_the_ranks_cannot_be_told() -> None:
    house = SimHouse()
    event = launched(house)
    house.clock.sleep(10.0)
    house.hub.blind(for_s=1e6)
    (stopped,) = effects(house).perform(stop_command(event, save_first=True))
    assert isinstance(stopped, ev.Stopped)
    assert stopped.status.phase is GangPhase.STOPPED


def test_gang_that_had_finished_when_it_was_to_be_stopped_has_completed() -> None:
    house = SimHouse(training=SimTraining(num_steps=4))
    event = launched(house)
    house.clock.sleep(100.0)
    (stopped,) = effects(house).perform(stop_command(event, save_first=False))
    assert isinstance(stopped, ev.Stopped)
    assert (stopped.completed, stopped.last_step) == (True, 4)


def test_assessment_counts_a_new_checkpoint_before_it_decides() -> None:
    house = SimHouse()
    fault = Fault(kind=FaultKind.NODE_LOST, summary="lost", at_s=1.0)
    history = FailureHistory(num_infrastructure_faults=1, num_launches_without_progress=3)
    command = cmd.Assess(fault=fault, history=history, newest=None)
    (decided,) = effects(house).perform(command)
    assert isinstance(decided, ev.Decided)
    assert isinstance(decided.decision, Abort)
    house.checkpoints.finish_save(house.checkpoints.begin_save(ROOT, step=5, world_size=4))
    seen, decided = effects(house).perform(command)
    assert isinstance(seen, ev.CheckpointSeen)
    assert seen.digest
    assert isinstance(decided, ev.Decided)
    assert not isinstance(decided.decision, Abort)


def test_assessment_of_a_fault_after_the_last_save_finds_nothing_left_to_train() -> None:
    house = SimHouse()
    fault = Fault(kind=FaultKind.PREEMPTED, summary="n1 was taken", at_s=1.0)
    command = cmd.Assess(fault=fault, history=FailureHistory(), newest=None)
    house.checkpoints.finish_save(house.checkpoints.begin_save(ROOT, step=40, world_size=4))
    seen, decided = effects(house).perform(command)
    assert isinstance(seen, ev.CheckpointSeen)
    assert isinstance(decided, ev.Decided)
    assert isinstance(decided.decision, Finish)
    assert decided.decision.step == 40
    assert "n1 was taken" in decided.decision.reason
    failed = replace(command, fault=Fault(kind=FaultKind.RANK_FAILED, summary="exit code 3", at_s=1.0))
    *_, decided = effects(house).perform(failed)
    assert isinstance(decided, ev.Decided)
    assert not isinstance(decided.decision, Finish)
    house.checkpoints.damage(f"{ROOT}/step-00000040")
    (decided,) = effects(house).perform(command)
    assert isinstance(decided, ev.Decided)
    assert not isinstance(decided.decision, Finish)


def test_success_with_a_damaged_last_checkpoint_says_so() -> None:
    house = SimHouse()
    for step in (10, 20):
        house.checkpoints.finish_save(house.checkpoints.begin_save(ROOT, step=step, world_size=4))
    house.checkpoints.damage(f"{ROOT}/step-00000020")
    *_, done = effects(house).perform(cmd.FinishRun(last_step=20))
    assert isinstance(done, ev.RunSucceeded)
    assert done.checkpoint is not None
    assert done.checkpoint.step == 10
    assert "trained to step 20, but the newest sound checkpoint is that of step 10" in done.note
    assert "checksum" in done.note


@pytest.mark.parametrize("error", [InternalError("unknown outcome"), None])
def test_a_gang_whose_status_makes_no_sense_or_is_left_out_is_stopped_all_the_same(error: Exception | None) -> None:
    """Field case A4."""
    house = SimHouse()
    bad = launched(house).handle
    good = replace(LAUNCH, key=replace(KEY, attempt=2), plan=plan_of(("n1", 2)), channel_root="ch2")
    house.engine.submit(house.engine.render(build(house, good)), key=good.key)
    poll, stop, stopped = house.engine.poll, house.engine.stop, []

    def bad_payload(handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        if bad in stopped:
            return poll(handles)
        if bad in handles and error is not None:
            raise error
        return {handle: status for handle, status in poll(handles).items() if handle != bad}

    def note(handle: GangHandle, *, grace_s: float) -> None:
        stopped.append(handle)
        stop(handle, grace_s=grace_s)

    house.engine.poll, house.engine.stop = bad_payload, note  # type: ignore[method-assign]
    assert set(effects(house).stop_live(through=None)) == {bad.key.name, good.key.name}
    assert house.live() == ()


def build(house: SimHouse, command: cmd.Launch) -> GangSpec:
    return build_gang(
        house.context,
        key=command.key,
        plan=command.plan,
        place=CheckpointPlace(root=house.context.checkpoint_root, node_root=house.context.checkpoint_root),
        channel_root=command.channel_root,
        checkpoint=None,
        own_folder=True,
    )


def _rented(house: SimHouse, *names: str, wait_s: float = 60.0) -> RunDriver:
    """A driver of a run that has rented machines of these names."""
    lease = Lease(
        id=LeaseId("z/l"),
        key=LeaseKey(run=RUN, generation=1, rental=1),
        pool=sim_pool().offer.pool,
        num_nodes=len(names),
        state=LeaseState.ACTIVE,
        expires_at_s=1e12,
        nodes=tuple(LeasedNode(id=NodeId(name), state=LeasedNodeState.RUNNING) for name in names),
    )
    return RunDriver(
        context=replace(house.context, capacity_wait_s=wait_s),
        journal=house.journal,
        engine=house.engine,
        planner=greedy_planner,
        checkpoints=house.checkpoints,
        open_channel=house.hub.open,
        clock=house.clock,
        leases=lambda: (lease,),
    )


def test_machines_that_have_not_joined_the_engine_are_waited_for_and_no_others_planned_on() -> None:
    house = SimHouse()
    waits = _rented(house, "i-1").start()
    assert isinstance(waits, Watch)
    assert waits.state.handle is None
    (refused,) = [event for event in house.journal.read() if isinstance(event, ev.PlanRefused)]
    assert "rented nodes have not joined the engine: i-1 (lease z/l)" in refused.reason
    joined = _rented(house, "n1")
    house.clock.sleep(30.0)
    outcome = joined.handle(ev.Woke(at_s=house.clock.now_s()))
    assert isinstance(outcome, Watch)
    assert outcome.state.handle is not None
    assert [each.plan.placement.nodes for each in joined.attempts()] == [("n1",)]


def test_machines_that_never_join_are_not_waited_for_for_ever() -> None:
    house = SimHouse()
    outcome: Outcome = _rented(house, "i-1").start()
    while isinstance(outcome, Watch):
        house.clock.sleep(max(0.0, (outcome.state.wake_at_s or 0.0) - house.clock.now_s()))
        outcome = _rented(house, "i-1").handle(ev.Woke(at_s=house.clock.now_s()))
    assert isinstance(outcome, Failed)
    assert "i-1" in outcome.reason
    assert "waited 60 s" in outcome.reason
    assert house.driver().attempts() == ()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_machine_that_joins_later_than_others_is_waited_for_but_not_for_long(is_there: bool) -> None:
    house = SimHouse()
    if is_there:
        house.engine.lose_node(NodeId("n0"))  # as a host is that does not answer yet
    names = ("n1", "n0" if is_there else "i-2")
    began_s = house.clock.now_s()
    outcome: Outcome = _rented(house, *names, wait_s=3600.0).start()
    while isinstance(outcome, Watch) and outcome.state.handle is None:
        assert names[1] in house.driver().state().reason
        house.clock.sleep(max(0.0, (outcome.state.wake_at_s or 0.0) - house.clock.now_s()))
        outcome = _rented(house, *names, wait_s=3600.0).handle(ev.Woke(at_s=house.clock.now_s()))
    assert JOIN_S <= house.clock.now_s() - began_s < 2 * JOIN_S
    assert [each.plan.placement.nodes for each in house.driver().attempts()] == [("n1",)]


def test_engine_whose_nodes_are_fixed_waits_for_no_machine() -> None:
    house = SimHouse()
    house.engine.features = house.engine.features | {EngineFeature.NODES_ARE_FIXED}  # type: ignore[misc]  # of this one
    outcome = _rented(house, "i-1").start()
    assert isinstance(outcome, Watch)
    assert outcome.state.handle is not None
