"""The crash harness on the simulated engine: a run under a virtual clock, shot once, and what is done afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from airflow_llmsched.control import journal as journals
from airflow_llmsched.control import snapshots
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.machine import fold
from airflow_llmsched.control.reaper import Reap
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import Side
from airflow_llmsched.errors import TransientError
from airflow_llmsched.sim.scripts import (
    Hangs,
    RankFails,
)
from tests.support.crash_combos import Combination, Findings
from tests.support.crash_sim_houses import (
    LEASE_S,
    LONG_LEASE_S,
    LONG_S,
    NUM_STEPS,
    TRIGGERER,
    CrashHouse,
    EvaluationHouse,
    QueueHouse,
    SideHouse,
    StoodStillError,
)
from tests.support.crashing import Gun, Recorder, Shot, WorkerDied, listening
from tests.support.sim_house import ROOT, RUN

_LOOK_S = 5.0


_AFTER_A_TRY = ("retried", "cleared", "failed", "success", "moved", "left", "hung", "thawed", "thawed_cleared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What befalls a run (``befall``), what is done first (``before``), and then what is shot (``act``), by whom."""

    befall: Callable[[CrashHouse], None] = lambda _house: None
    before: Callable[[CrashHouse], None] = lambda _house: None
    act: Callable[[CrashHouse], object] = lambda house: house.work(owner="try-1")
    owner: str = "try-1"
    generation: int = 0
    house: type[CrashHouse] = CrashHouse
    ends: tuple[type, ...] = (Succeeded,)
    follow_ups: tuple[str, ...] = (*_AFTER_A_TRY, "late")


def _faults(house: CrashHouse) -> None:
    """A rank fails, and before that a node is taken."""
    house.engine.faults = [RankFails(at_step=22, rank=1)]
    house.trouble = house.when_step(12, lambda: house.engine.preempt(NodeId("n1"), grace_s=5.0))


def _cut_off(house: CrashHouse) -> None:
    """A node cannot be seen any more, while its ranks go on."""
    house.trouble = house.when_step(12, lambda: house.engine.partition(NodeId("n1")))


def _deadline(house: CrashHouse) -> None:
    house.context = replace(house.context, deadline_s=house.clock.now_s() + 30.0)


def _long(house: CrashHouse) -> None:
    """So many records before this try that the journal makes snapshots and bundles while it runs."""
    house.engine.faults = [RankFails(at_step=22, rank=1)]


def _to_step_12(house: CrashHouse) -> None:
    """Bring a healthy run to the middle of its training."""
    outcome = house.driver(owner="try-1").start()
    assert isinstance(outcome, Watch)
    house.deferred = outcome.state
    while 12 not in house.steps_of(outcome.state.channel_root):
        house.clock.sleep(1.0)


def _dead_before_it_submits(house: CrashHouse) -> None:
    """Have a first try die with a launch intended: whoever ends it must see to it that it is never made."""

    def die() -> None:
        raise WorkerDied

    with listening(Gun(Shot(house.submits_at, Side.BEFORE, 1), die)), pytest.raises(WorkerDied):
        house.work(owner="try-1")
    house.wait(40.0)


def _taken(house: CrashHouse) -> None:
    """Have a node that a launch is planned for be taken before it is made."""
    house.planned = lambda node: house.engine.lose_node(node, return_after_s=20.0)


def _urgent(house: CrashHouse) -> None:
    """Have a run come in the middle that goes first, and wants all there is."""
    assert isinstance(house, QueueHouse)
    house.trouble = house.when_step(12, house.urgent_comes)


def _to_the_order(house: CrashHouse) -> None:
    """Bring a run to where it was told to make room, and nobody has seen to that yet."""
    assert isinstance(house, QueueHouse)
    _to_step_12(house)
    house.urgent_comes()


def _lost_in_an_evaluation(house: CrashHouse) -> None:
    lost_at_s = house.clock.now_s() + 8.0

    def lose() -> None:
        if house.clock.now_s() >= lost_at_s and house.engine.live(RUN):
            house.trouble = lambda: None
            house.engine.lose_node(NodeId("n0"), return_after_s=20.0)

    house.trouble = lose


def _urgent_in_an_evaluation(house: CrashHouse) -> None:
    """Have a run come while the evaluation goes on that goes first, and wants all there is."""
    assert isinstance(house, SideHouse)
    comes_at_s = house.clock.now_s() + 8.0

    def come() -> None:
        if house.clock.now_s() >= comes_at_s and house.engine.live(RUN):
            house.trouble = lambda: None
            house.urgent_comes()

    house.trouble = come


def _claim_to_the_reaper(house: CrashHouse) -> None:
    """Leave behind what an evaluation held: its gang has ended, and nobody came to see."""
    _into_an_evaluation(house)
    house.wait(LONG_S)


def _into_an_evaluation(house: CrashHouse) -> None:
    house.begin(owner="try-1")
    house.wait(5.0)


def _evaluation_to_the_reaper(house: CrashHouse) -> None:
    assert isinstance(house, EvaluationHouse)
    house.lasts_s = None
    _into_an_evaluation(house)
    _hang(house)
    house.lasts_s = 20.0


def _reap(house: CrashHouse) -> list[str]:
    reaper = house.reaper()
    return [name for found in reaper.look() if isinstance(found.verdict, Reap) for name in reaper.reap(found).stopped]


def _to_the_reaper(house: CrashHouse) -> None:
    """Leave a run's gang behind with hung agents, for days."""
    _to_step_12(house)
    _hang(house)


def _hang(house: CrashHouse) -> None:
    """Have agents and ranks of whatever lives stand still for days."""
    for handle in house.live():
        house.engine.freeze_agents(handle)
    others = house.engine.faults
    house.engine.faults = [Hangs(at_step=step) for step in range(1, NUM_STEPS + 1)]
    house.wait(LONG_S)
    house.engine.faults = others


SCENARIOS: dict[str, Scenario] = {
    "faults": Scenario(befall=_faults),
    # With a lease of hours a node that cannot be seen is not known to be free for hours: nobody comes late to that.
    "cut_off": Scenario(befall=_cut_off, follow_ups=_AFTER_A_TRY),
    "deadline": Scenario(befall=_deadline, ends=(Failed, Succeeded)),
    "long": Scenario(befall=_long),
    "taken": Scenario(befall=_taken),
    "yields": Scenario(befall=_urgent, house=QueueHouse),
    "yields_killed": Scenario(
        before=_to_the_order,
        act=lambda house: house.driver(owner="try-1").cancel("marked failed"),
        house=QueueHouse,
        follow_ups=_AFTER_A_TRY,
    ),
    "yields_released": Scenario(
        before=_to_the_order,
        act=lambda house: house.release(),
        house=QueueHouse,
        follow_ups=("failed", "cleared", "left", "hung", "thawed_cleared"),
    ),
    "overtakes": Scenario(
        before=_dead_before_it_submits,
        act=lambda house: house.work(owner="try-2", generation=1),
        owner="try-2",
        generation=1,
    ),
    "killed": Scenario(
        before=_to_step_12,
        act=lambda house: house.driver(owner="try-1").cancel("marked failed"),
        follow_ups=_AFTER_A_TRY,
    ),
    "released": Scenario(
        before=_to_step_12,
        act=CrashHouse.release,
        follow_ups=("failed", "cleared", "left", "hung", "thawed_cleared"),
    ),
    "evaluated": Scenario(befall=_lost_in_an_evaluation, house=EvaluationHouse),
    "evaluated_again": Scenario(
        before=_dead_before_it_submits,
        act=lambda house: house.work(owner="try-2", generation=1),
        owner="try-2",
        generation=1,
        house=EvaluationHouse,
    ),
    "evaluation_stopped": Scenario(
        before=_into_an_evaluation,
        act=lambda house: house.release(),
        follow_ups=("retried", "cleared", "failed", "left", "hung", "thawed_cleared"),
        house=EvaluationHouse,
    ),
    "evaluation_reaped": Scenario(
        before=_evaluation_to_the_reaper,
        act=_reap,
        follow_ups=("hung", "failed", "thawed_cleared"),
        house=EvaluationHouse,
    ),
    "evaluation_yields": Scenario(befall=_urgent_in_an_evaluation, house=SideHouse, follow_ups=_AFTER_A_TRY),
    "evaluation_gives_back": Scenario(
        before=_into_an_evaluation,
        act=lambda house: house.release(),
        follow_ups=("retried", "cleared", "failed", "left", "hung", "thawed_cleared"),
        house=SideHouse,
    ),
    "claim_reaped": Scenario(
        before=_claim_to_the_reaper,
        act=lambda house: house.reap_claims(),  # type: ignore[attr-defined]
        follow_ups=("cleared", "failed", "left", "thawed_cleared"),
        house=SideHouse,
    ),
    "reaped": Scenario(before=_to_the_reaper, act=_reap, follow_ups=("hung", "cleared", "failed", "thawed_cleared")),
}


def combinations() -> Iterator[Combination]:
    """Yield every combination: each scenario is run unharmed to see which points it passes, and who passes them."""
    for name, scenario in SCENARIOS.items():
        for follow_ups, lease_s in _leases(scenario.follow_ups):
            for shot, where in _passages(name, scenario, lease_s):
                for follow_up in follow_ups:
                    if follow_up != "moved" or where == TRIGGERER:
                        yield Combination("sim", name, shot, follow_up)


def _leases(follow_ups: tuple[str, ...]) -> list[tuple[tuple[str, ...], float]]:
    """Return follow-ups by the lease that they need: whoever is to end well without a worker needs a long one."""
    late = tuple(each for each in follow_ups if each == "late")
    return [(tuple(each for each in follow_ups if each != "late"), LEASE_S), (late, LONG_LEASE_S)]


def _passages(name: str, scenario: Scenario, lease_s: float) -> list[tuple[Shot, str]]:
    house = _house(scenario, lease_s=lease_s)
    recorder = Recorder(lambda: house.where)
    scenario.before(house)
    with _bundles_of(4 if name == "long" else None), listening(recorder):
        scenario.act(house)
    return recorder.first_and_last()


def run(combination: Combination) -> Findings:
    """Shoot, follow up, and check. Raises ``AssertionError`` when anything is not as it must be."""
    scenario = SCENARIOS[combination.scenario]
    house = _house(scenario, lease_s=LONG_LEASE_S if combination.follow_up == "late" else LEASE_S)
    scenario.before(house)
    with _bundles_of(4 if combination.scenario == "long" else None):
        if combination.follow_up in ("thawed", "thawed_cleared"):
            _freeze(house, scenario, combination, is_cleared=combination.follow_up == "thawed_cleared")
        else:
            _shoot(house, scenario, combination)
            _FOLLOW_UPS[combination.follow_up](house, scenario)
        house.wait(300.0)  # ranks that nobody can see have ended by then
        return _check(house, combination)


def _house(scenario: Scenario, *, lease_s: float) -> CrashHouse:
    house = scenario.house(lease_s=lease_s)
    scenario.befall(house)
    return house


@contextlib.contextmanager
def _bundles_of(size: int | None) -> Iterator[None]:
    """Have journals bundle and snapshot early, as if a run had lasted for months."""
    if size is None:
        yield
        return
    kept = journals.BUNDLE_SIZE, snapshots.SNAPSHOT_EVERY
    journals.BUNDLE_SIZE, snapshots.SNAPSHOT_EVERY = size, size - 1
    try:
        yield
    finally:
        journals.BUNDLE_SIZE, snapshots.SNAPSHOT_EVERY = kept


def _seen_by(house: CrashHouse, gun: Gun) -> contextlib.AbstractContextManager[None]:
    """Have ``gun`` listen, and count what lives at each effect too, also where no time passes between two."""

    def listener(point: str, side: Side) -> None:
        house.live()
        gun(point, side)

    return listening(listener)


def _shoot(house: CrashHouse, scenario: Scenario, combination: Combination) -> None:
    def die() -> None:
        raise WorkerDied(str(combination.shot))

    with _seen_by(house, Gun(combination.shot, die)), pytest.raises(WorkerDied):
        scenario.act(house)
    house.live()


def _freeze(house: CrashHouse, scenario: Scenario, combination: Combination, *, is_cleared: bool) -> None:
    """Stop the process at the shot; let Airflow run another in its place; then let the first go on, in the middle."""
    generation = scenario.generation + is_cleared
    stands, thaw = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands.set()
        assert thaw.wait(60.0)

    trouble: list[BaseException] = []

    def be_the_first() -> None:
        try:
            scenario.act(house)
        except (StoodStillError, TransientError):
            pass  # Airflow runs no more of it
        except BaseException as error:  # noqa: BLE001  (raised below, in the thread that is looked at)
            trouble.append(error)
        finally:
            stands.set()

    gun = Gun(combination.shot, stand_still)
    first = threading.Thread(target=be_the_first)
    with _seen_by(house, gun):
        first.start()
        assert stands.wait(60.0)
        try:
            assert gun.fired
            house.taken_over = True
            house.wait(40.0)
            by_triggerer = house.where == TRIGGERER and house.deferred is not None and not is_cleared
            outcome: Outcome = (
                Watch(state=house.deferred)  # type: ignore[arg-type]
                if by_triggerer
                else house.begin(owner="try-3", generation=generation)
            )
            house.wait(10.0)
        finally:
            thaw.set()
            first.join(60.0)
    if trouble:
        raise trouble[0]
    house.live()
    owner = scenario.owner if by_triggerer else "try-3"
    assert isinstance(house.go_on(outcome, owner=owner, generation=generation), scenario.ends)


def _retried(house: CrashHouse, scenario: Scenario) -> None:
    house.wait(30.0)
    _try(house, scenario, generation=scenario.generation)


def _cleared(house: CrashHouse, scenario: Scenario) -> None:
    house.wait(30.0)
    _try(house, scenario, generation=scenario.generation + 1)


def _late(house: CrashHouse, scenario: Scenario) -> None:
    """The next try comes when the gang has long ended: what it did is not done again."""
    house.wait(3600.0)
    gangs = house.engine.find(RUN)
    is_whole = any(ref.complete and ref.step == NUM_STEPS for ref in house.checkpoints.scan(ROOT))
    done = is_whole or isinstance(house, EvaluationHouse)  # which saves nothing
    done &= any(status.phase is GangPhase.SUCCEEDED for status in house.engine.poll(gangs).values())
    _try(house, scenario, generation=scenario.generation)
    if done:
        assert house.engine.find(RUN) == gangs, "what had succeeded was trained again"


def _try(house: CrashHouse, scenario: Scenario, *, generation: int) -> None:
    outcome = house.work(owner="try-3", generation=generation)
    assert isinstance(outcome, scenario.ends), outcome


def _failed(house: CrashHouse, _scenario: Scenario) -> None:
    house.wait(30.0)
    house.release()
    assert house.live() == ()
    assert house.release() == ()
    state = house.driver().state()
    assert state.released or state.phase is RunPhase.NEW


def _success(house: CrashHouse, scenario: Scenario) -> None:
    """Marked as a success: the teardown comes at once."""
    house.wait(_LOOK_S)
    _failed(house, scenario)


def _moved(house: CrashHouse, scenario: Scenario) -> None:
    """Another triggerer goes on, with the state in which the task was deferred."""
    assert house.deferred is not None
    house.wait(40.0)
    assert isinstance(
        house.go_on(Watch(state=house.deferred), owner=scenario.owner, generation=scenario.generation), scenario.ends
    )


def _left(house: CrashHouse, _scenario: Scenario) -> None:
    house.wait(LONG_S)
    assert house.live() == ()
    assert _reap(house) == []


def _hung(house: CrashHouse, _scenario: Scenario) -> None:
    """Left, and its agents hang: only the reaper can end it."""
    _hang(house)
    still = house.live()
    assert set(_reap(house)) == {handle.key.name for handle in still}


_FOLLOW_UPS: dict[str, Callable[[CrashHouse, Scenario], None]] = {
    "retried": _retried,
    "cleared": _cleared,
    "failed": _failed,
    "success": _success,
    "moved": _moved,
    "left": _left,
    "hung": _hung,
    "late": _late,
}


def _check(house: CrashHouse, combination: Combination) -> Findings:
    handles = house.engine.find(RUN)
    findings = Findings(
        engine="sim",
        follow_up=combination.follow_up,
        max_alive=max(house.max_live, 2 * len(house.engine.overlaps)),
        alive_after=house.num_alive(),
        steps_beyond=max((_steps_beyond(house, handle) for handle in handles), default=0),
    )
    assert house.engine.overlaps == []
    assert (findings.max_alive <= 1, findings.alive_after, findings.steps_beyond) == (True, 0, 0), findings
    assert len({handle.key for handle in handles}) == len(handles)
    journal = Journal(house.store, RUN)
    assert snapshots.rebuild(journal).state == fold(RUN, journal.read())
    if isinstance(house, QueueHouse):
        house.check()
    return findings


def _steps_beyond(house: CrashHouse, handle: GangHandle) -> int:
    """Return how many steps a gang did again although a complete checkpoint had them when the gang started."""
    steps = house.steps_of(f"{house.context.run_dir}/channel/{handle.key.name}")
    started_at_s = house.engine.poll([handle])[handle].started_at_s
    if not steps or started_at_s is None:
        return 0
    complete = [
        ref.step for ref in house.checkpoints.scan(ROOT) if ref.saved_at_s is not None and ref.saved_at_s < started_at_s
    ]
    return max(0, max(complete, default=0) + 1 - steps[0])
