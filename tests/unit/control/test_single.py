from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.intents import evaluation_intents
from airflow_llmsched.control.poller import KeepWatching
from airflow_llmsched.control.single import SingleRun, SingleSettings, stop_all
from airflow_llmsched.control.watching import step
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec, LaunchRequest
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.progress import ChannelCursor
from airflow_llmsched.errors import CapacityError, CouldNotLookError, LaunchError
from airflow_llmsched.sim.scripts import RANKS_VARIABLE, SIM_RANKS_COMMAND, SimRankScript
from tests.support.sim_house import RUN, SimHouse, plan_of, tree_of

N0 = NodeId("n0")
GOOD = SimRankScript(lasts_s=20.0)
FAILS = SimRankScript(lasts_s=20.0, exit_code=3, says="no such checkpoint")
SETTINGS = SingleSettings(key=RUN, generation=1, max_attempts=3, start_limit_s=30.0, hang_limit_s=60.0, run_dir="mem/")


class Bench:
    """One evaluation on a simulated machine; each attempt does what the next script says, the last one for good."""

    def __init__(self, *scripts: SimRankScript, tree=None) -> None:
        self.house = SimHouse(tree=tree or tree_of(1, 1))
        self.scripts = scripts or (GOOD,)
        self.made: list[AttemptKey] = []
        self.intents = evaluation_intents(self.house.store, RunKey("ls-whose-evaluation-this-is"))

    def worker(self, **changes: object) -> SingleRun:
        """Return what a new worker would use."""
        settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
        house = self.house
        return SingleRun(
            settings,
            engine=house.engine,
            clock=house.clock,
            make_gang=self.make_gang,
            open_channel=house.hub.open,
            intents=self.intents,
        )

    def stop_all(self, **changes: int) -> tuple[str, ...]:
        return stop_all(self.house.engine, RUN, self.intents, grace_s=5.0, **changes)

    def stand_still(self, meanwhile: Callable[[], object]) -> None:
        """Let ``meanwhile`` happen while the next worker to submit stands still just before."""
        engine, submit = self.house.engine, self.house.engine.submit

        def submit_late(request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
            engine.submit = submit  # type: ignore[method-assign]
            meanwhile()
            return submit(request, key=key)

        engine.submit = submit_late  # type: ignore[method-assign]

    def make_gang(self, key: AttemptKey) -> GangSpec:
        self.made.append(key)
        script = self.scripts[min(len(self.made), len(self.scripts)) - 1]
        plan = plan_of((N0, 1))
        return GangSpec(
            key=key,
            placement=plan.placement,
            layout=plan.layout,
            command=SIM_RANKS_COMMAND,
            channel_root=SETTINGS.channel_root_of(key),
            environment={RANKS_VARIABLE: codec.to_json([script], list[SimRankScript]).decode()},
            grace_s=5.0,
        )

    def finish(self, outcome: Outcome, **changes: object) -> Outcome:
        """Watch and hand over, to a new worker each time, until it is over."""
        while isinstance(outcome, Watch):
            outcome = self.worker(**changes).handle(self.event(outcome))
        return outcome

    def event(self, outcome: Watch) -> ev.AnyEvent:
        """Watch until there is an event."""
        watch = outcome.state
        channel = self.house.hub.open(watch.channel_root)
        while True:
            watch, verdict = step(self.house.engine, channel, watch, self.house.clock)
            if not isinstance(verdict, KeepWatching):
                return verdict.event
            self.house.clock.sleep(verdict.after_s)

    def live(self) -> tuple[GangHandle, ...]:
        return self.house.engine.live(RUN)


def test_a_gang_whose_rank_exits_0_succeeds_in_one_launch() -> None:
    bench = Bench()
    outcome = bench.finish(bench.worker().start())
    assert outcome == Succeeded(checkpoint=None, last_step=None, num_attempts=1)
    assert [key.name for key in bench.made] == [f"{RUN}-g1-a1"]
    assert not bench.live()


def test_two_starts_are_one_gang() -> None:
    bench = Bench()
    first, second = bench.worker().start(), bench.worker().start()
    assert isinstance(first, Watch)
    assert isinstance(second, Watch)
    assert first.state.handle == second.state.handle
    assert len(bench.made) == 1
    assert len(bench.live()) == 1


def test_a_start_whose_answer_was_lost_is_adopted_by_the_next() -> None:
    bench = Bench()
    bench.house.engine.lose_answers(1)
    with pytest.raises(CouldNotLookError):
        bench.worker().start()
    outcome = bench.worker().start()
    assert isinstance(outcome, Watch)
    assert len(bench.made) == 1
    assert isinstance(bench.finish(outcome), Succeeded)


def test_the_result_of_a_finished_gang_is_taken_and_nothing_launched() -> None:
    bench = Bench()
    bench.worker().start()
    bench.house.clock.sleep(60.0)
    assert bench.worker().start() == Succeeded(checkpoint=None, last_step=None, num_attempts=1)
    assert len(bench.made) == 1


def test_a_code_fault_is_never_tried_again() -> None:
    bench = Bench(FAILS)
    outcome = bench.finish(bench.worker().start())
    assert isinstance(outcome, Failed)
    assert outcome.fault is not None
    assert outcome.fault.kind is FaultKind.RANK_FAILED
    assert outcome.fault.log_tail == "no such checkpoint"
    assert outcome.reason == "launch 1 of 3: rank 0 on n0 exited with code 3"
    assert bench.worker().start() == outcome  # nor by the task's next try
    assert len(bench.made) == 1


def test_a_lost_node_is_retried_and_can_end_well() -> None:
    bench = Bench()
    outcome = bench.worker().start()
    bench.house.clock.sleep(5.0)
    bench.house.engine.lose_node(N0, return_after_s=0.0)
    assert bench.finish(outcome) == Succeeded(checkpoint=None, last_step=None, num_attempts=2)


def test_infrastructure_faults_are_retried_up_to_the_limit() -> None:
    bench = Bench()
    outcome = bench.worker().start()
    while isinstance(outcome, Watch):
        bench.house.clock.sleep(5.0)
        bench.house.engine.lose_node(N0, return_after_s=0.0)
        outcome = bench.worker().handle(bench.event(outcome))
    assert isinstance(outcome, Failed)
    assert outcome.reason == "launch 3 of 3: node n0 vanished"
    assert len(bench.made) == 3
    assert not bench.live()


def test_a_hung_gang_is_stopped_before_the_next_starts() -> None:
    bench = Bench(SimRankScript(lasts_s=None), GOOD)
    first = bench.worker().start()
    assert isinstance(first, Watch)
    bench.house.hub.line(first.state.channel_root).beat(None)
    event = bench.event(first)
    assert isinstance(event, ev.FaultDetected)
    assert event.fault.kind is FaultKind.HUNG
    second = bench.worker().handle(event)
    assert isinstance(second, Watch)
    assert bench.live() == (second.state.handle,)
    assert bench.finish(second) == Succeeded(checkpoint=None, last_step=None, num_attempts=2)


def test_a_gang_that_never_uses_the_agent_may_take_longer_than_the_hang_limit() -> None:
    bench = Bench(SimRankScript(lasts_s=5 * SETTINGS.hang_limit_s))
    first = bench.worker().start()
    assert isinstance(first, Watch)
    assert bench.finish(first) == Succeeded(checkpoint=None, last_step=None, num_attempts=1)
    reports, _ = bench.house.hub.open(first.state.channel_root).read(ChannelCursor(positions={}))
    assert not any(rank.speaks for report in reports for rank in report.ranks)


def test_an_older_generation_is_stopped_first() -> None:
    bench = Bench()
    bench.worker(generation=1).start()
    outcome = bench.worker(generation=2).start()
    assert [handle.key.generation for handle in bench.live()] == [2]
    assert bench.finish(outcome, generation=2) == Succeeded(checkpoint=None, last_step=None, num_attempts=1)


def test_a_worker_of_an_older_generation_touches_nothing() -> None:
    bench = Bench()
    bench.worker(generation=2).start()
    outcome = bench.worker(generation=1).start()
    assert isinstance(outcome, Failed)
    assert "superseded: generation 2" in outcome.reason
    assert [handle.key.generation for handle in bench.live()] == [2]
    assert len(bench.made) == 1


def test_a_gang_that_an_earlier_try_stopped_is_launched_again() -> None:
    bench = Bench()
    bench.worker().start()
    assert bench.stop_all() == (f"{RUN}-g1-a1",)
    assert bench.finish(bench.worker().start()) == Succeeded(checkpoint=None, last_step=None, num_attempts=2)


def test_the_deadline_stops_the_gang_and_fails() -> None:
    bench = Bench(SimRankScript(lasts_s=None))
    deadline_s = bench.house.clock.now_s() + 25.0
    outcome = bench.finish(bench.worker(deadline_s=deadline_s).start())
    assert outcome == Failed(reason="not done by its deadline")
    assert not bench.live()
    assert bench.house.clock.now_s() == pytest.approx(deadline_s, abs=1.0)


def test_the_deadline_of_an_older_generation_spares_the_newer() -> None:
    bench = Bench(tree=tree_of(1, 2))
    bench.worker(generation=2).start()
    bench.worker(generation=1).handle(ev.DeadlineReached(at_s=bench.house.clock.now_s()))
    assert [handle.key.generation for handle in bench.live()] == [2]


def test_when_nobody_can_look_nothing_is_concluded_and_nothing_launched() -> None:
    bench = Bench()
    bench.worker().start()
    bench.house.engine.blind(for_s=10.0)
    with pytest.raises(CouldNotLookError):
        bench.worker().start()
    with pytest.raises(CouldNotLookError):
        bench.stop_all()
    assert len(bench.made) == 1
    assert len(bench.live()) == 1


def test_a_failed_look_is_watched_again_once_the_engine_answers() -> None:
    bench = Bench()
    first = bench.worker().start()
    assert isinstance(first, Watch)
    assert first.state.handle is not None
    event = ev.LookFailed(at_s=bench.house.clock.now_s(), key=first.state.handle.key, num_errors=6, reason="no answer")
    again = bench.worker().handle(event)
    assert isinstance(again, Watch)
    assert again.state.handle == first.state.handle


def test_an_end_of_a_gang_that_the_engine_forgot_is_not_taken_for_one() -> None:
    bench = Bench()
    first = bench.worker().start()
    assert isinstance(first, Watch)
    event = bench.event(first)
    assert isinstance(event, ev.GangEnded)
    with pytest.raises(CouldNotLookError, match="no longer knows"):
        bench.worker().handle(replace(event, key=replace(event.key, attempt=9)))


def test_without_a_free_slot_it_waits_for_one() -> None:
    bench = Bench()
    bench.house.engine.lose_node(N0, return_after_s=100.0)
    outcome = bench.worker().start()
    assert isinstance(outcome, Watch)
    assert outcome.state.handle is None
    assert bench.finish(outcome) == Succeeded(checkpoint=None, last_step=None, num_attempts=1)


def test_it_gives_up_on_capacity_after_its_limit_whoever_waits() -> None:
    bench = Bench()
    bench.house.engine.lose_node(N0)
    began_s = bench.house.clock.now_s()
    bench.worker(capacity_wait_s=300.0).start()
    bench.house.clock.sleep(200.0)
    outcome = bench.finish(bench.worker(capacity_wait_s=300.0).start(), capacity_wait_s=300.0)  # the next try
    assert isinstance(outcome, Failed)
    assert "waited 300 s for capacity: node n0" in outcome.reason
    assert bench.house.clock.now_s() - began_s == pytest.approx(300.0, abs=2.0)


def test_a_try_after_one_that_gave_up_on_capacity_waits_anew() -> None:
    bench = Bench()
    bench.house.engine.lose_node(N0, return_after_s=400.0)
    bench.finish(bench.worker(capacity_wait_s=300.0).start(), capacity_wait_s=300.0)
    outcome = bench.finish(bench.worker(capacity_wait_s=300.0).start(), capacity_wait_s=300.0)
    assert outcome == Succeeded(checkpoint=None, last_step=None, num_attempts=2)


def test_the_deadline_ends_a_wait_for_capacity() -> None:
    bench = Bench()
    bench.house.engine.lose_node(N0)
    deadline_s = bench.house.clock.now_s() + 60.0
    outcome = bench.finish(bench.worker(deadline_s=deadline_s).start(), deadline_s=deadline_s)
    assert outcome == Failed(reason="not done by its deadline")
    assert bench.house.clock.now_s() == pytest.approx(deadline_s, abs=1.0)


@pytest.mark.parametrize("through", [None, 1])
def test_a_worker_that_stood_still_before_its_submit_while_all_was_ended_starts_nothing(through: int | None) -> None:
    bench = Bench()
    limit = {} if through is None else {"through_generation": through}
    bench.stand_still(lambda: bench.stop_all(**limit))
    outcome = bench.worker().start()
    assert isinstance(outcome, Failed)
    assert "given up before it was submitted" in outcome.reason
    assert bench.live() == ()
    bench.house.clock.sleep(1000.0)
    assert bench.live() == ()


def test_the_try_after_one_that_was_ended_before_its_submit_launches_anew() -> None:
    bench = Bench()
    bench.stand_still(bench.stop_all)
    bench.worker().start()
    assert bench.finish(bench.worker().start()) == Succeeded(checkpoint=None, last_step=None, num_attempts=2)


def test_a_worker_that_stood_still_while_a_clear_went_on_starts_nothing_beside_the_newer() -> None:
    bench = Bench(tree=tree_of(1, 2))
    bench.stand_still(lambda: bench.worker(generation=2).start())
    assert isinstance(bench.worker(generation=1).start(), Failed)
    assert [handle.key.generation for handle in bench.live()] == [2]


def test_a_worker_that_stood_still_while_its_successor_gave_up_on_capacity_starts_nothing() -> None:
    bench = Bench()
    bench.house.engine.lose_node(N0, return_after_s=400.0)
    bench.stand_still(lambda: bench.finish(bench.worker(capacity_wait_s=300.0).start(), capacity_wait_s=300.0))
    bench.worker().start()
    bench.house.clock.sleep(200.0)
    assert bench.live() == ()


def test_whoever_gives_up_on_capacity_takes_the_gang_that_another_has_just_launched() -> None:
    bench = Bench()
    engine, submit = bench.house.engine, bench.house.engine.submit

    def refuse_what_another_gets(request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        engine.submit = submit  # type: ignore[method-assign]
        submit(request, key=key)
        raise CapacityError("no slot")

    engine.submit = refuse_what_another_gets  # type: ignore[method-assign]
    outcome = bench.worker(capacity_wait_s=0.0).start()
    assert isinstance(outcome, Watch)
    assert bench.live() == (outcome.state.handle,)


def test_a_launch_that_the_engine_could_not_make_is_never_made_later() -> None:
    bench = Bench()
    engine, submit = bench.house.engine, bench.house.engine.submit

    def fail(_request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        engine.submit = submit  # type: ignore[method-assign]
        raise LaunchError(f"{key.name}: no supervisor")

    engine.submit = fail  # type: ignore[method-assign]
    with pytest.raises(LaunchError):
        bench.worker().start()
    assert bench.finish(bench.worker().start()) == Succeeded(checkpoint=None, last_step=None, num_attempts=2)


def test_stopping_all_is_idempotent_and_can_spare_newer_generations() -> None:
    bench = Bench(SimRankScript(lasts_s=None), tree=tree_of(1, 2))
    bench.worker(generation=1).start()
    bench.house.engine.submit(
        bench.house.engine.render(bench.make_gang(AttemptKey(run=RUN, generation=2, attempt=1))),
        key=AttemptKey(run=RUN, generation=2, attempt=1),
    )
    assert bench.stop_all(through_generation=1) == (f"{RUN}-g1-a1",)
    assert bench.stop_all(through_generation=1) == ()
    assert bench.stop_all() == (f"{RUN}-g2-a1",)
    assert bench.stop_all() == ()
    found = bench.house.engine.poll(bench.house.engine.find(RUN))
    assert {status.phase for status in found.values()} == {GangPhase.STOPPED}


def test_launch_after_a_gang_that_ended_unseen_waits_until_its_agent_has_fenced_it() -> None:
    bench = Bench(tree=tree_of(2, 1))
    bench.make_gang = lambda key, make=bench.make_gang: replace(make(key), lease_s=30.0)  # type: ignore[method-assign]
    watch = bench.worker(lease_s=30.0).start()
    assert isinstance(watch, Watch)
    bench.house.clock.sleep(3.0)
    bench.house.engine.partition(N0, heals_after_s=1.0)
    waiting = bench.worker(lease_s=30.0).handle(bench.event(watch))
    assert isinstance(waiting, Watch)
    assert waiting.state.handle is None
    assert (waiting.state.wake_at_s or 0.0) >= bench.house.clock.now_s() + 30.0
    assert bench.worker(lease_s=30.0).start() == waiting  # after a crash in between
    assert isinstance(bench.finish(waiting, lease_s=30.0), Succeeded)
    assert bench.house.engine.overlaps == []


def test_worker_that_stood_still_before_it_noted_its_launch_starts_nothing_beside_a_later_generation() -> None:
    bench = Bench(tree=tree_of(2, 2))
    note = bench.intents.note

    def note_late(key: AttemptKey, *, at_s: float) -> float:
        bench.intents.note = note  # type: ignore[method-assign]
        assert isinstance(bench.worker(generation=2).start(), Watch)
        return note(key, at_s=at_s)

    bench.intents.note = note_late  # type: ignore[method-assign]
    outcome = bench.worker(generation=1).start()
    assert isinstance(outcome, Failed)
    assert "superseded: generation 2" in outcome.reason
    (live,) = bench.live()
    assert live.key.generation == 2


def test_launch_noted_by_an_older_generation_while_a_later_one_began_is_given_up() -> None:
    bench = Bench(tree=tree_of(2, 2))
    note = bench.intents.note
    older = AttemptKey(run=RUN, generation=1, attempt=1)

    def note_second(key: AttemptKey, *, at_s: float) -> float:
        note(older, at_s=at_s)
        return note(key, at_s=at_s)

    bench.intents.note = note_second  # type: ignore[method-assign]
    assert isinstance(bench.worker(generation=2).start(), Watch)
    assert isinstance(bench.worker(generation=1).start(), Failed)
    assert [handle.key.generation for handle in bench.live()] == [2]
    assert not bench.house.engine.num_live_ranks(GangHandle(engine="sim", key=older, native_id=older.name))


def test_a_clean_up_that_stood_still_spares_the_generation_that_began_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(SimRankScript(lasts_s=None), tree=tree_of(1, 2))
    bench.worker(generation=1).start()
    abandon = bench.house.engine.abandon

    def stand_still(key: AttemptKey) -> bool:
        monkeypatch.undo()
        bench.worker(generation=2).start()
        return abandon(key)

    monkeypatch.setattr(bench.house.engine, "abandon", stand_still)
    bench.stop_all()
    assert [handle.key.generation for handle in bench.live()] == [2]
