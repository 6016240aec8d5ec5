"""Runs shot under a real scheduler with two triggerers, many side by side, each followed up in its own way.

A combination's scenario is ``<phase>-<how>``. Phases: ``start`` (the worker that launches), ``resume`` (the worker that
acts on the trigger's event), ``watch`` (the triggerer that watches), ``on_kill`` (the triggerer that ends a gang whose
task was marked failed), ``release`` (the teardown, with the gang still alive). How: see ``tests.support.shooting``.

A case is played by a generator that is stepped every half second, so that waiting for one costs the others nothing.
What it does is its own; what must hold is looked at from outside: ``/proc`` all the time, journals at the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from airflow_llmsched.control import history, snapshots
from airflow_llmsched.control.records import read_all
from airflow_llmsched.effect_points import Side
from airflow_llmsched.errors import TransientError
from airflow_llmsched.telemetry.channel import DirectoryChannel
from airflow_llmsched.testing.airflow_stack import AirflowStack
from tests.support import shooting
from tests.support.crash_combos import Combination, Findings, spread
from tests.support.crashing import Shot
from tests.support.gang_runs import NUM_STEPS, Gang, GangRuns
from tests.support.processes import ProcessSampler
from tests.support.shooting import KILL, KILL_ALL, ON_KILL, STOP, TRIGGERER, WORKER, ShootingRange, worker_name
from tests.support.waiting import wait_until

ENGINE = "airflow"
QUOTAS = {"start": 18, "resume": 12, "watch": 14, "on_kill": 8, "release": 8}
"""How many combinations of each phase are drawn: 60."""

HOWS = {
    "start": (KILL, KILL_ALL, STOP),
    "resume": (KILL, KILL_ALL, STOP),
    "watch": (KILL_ALL, STOP),
    "on_kill": (KILL_ALL, STOP),
    "release": (KILL, STOP),
}
FOLLOW_UPS = {
    # Airflow leaves no worker's task alone that has a retry.
    "start": ("retried", "cleared", "failed", "success"),
    "resume": ("retried", "cleared", "failed", "success"),
    "watch": ("moved", "cleared", "failed", "success", "left"),
    "on_kill": ("cleared", "success", "left"),
    "release": ("retried", "cleared"),
}
GOES_ON = frozenset({"retried", "cleared", "moved"})
"""Follow-ups after which the run is to train to its end."""

LIMIT_S = 900.0
TICK_S = 0.5
EXTENSIONS = frozenset({"watch.extend", "channel.directory.note_extension"})
"""Points that a triggerer passes only when it hands a healthy gang over: the engine must be out of sight for that."""

_SEEN = frozenset({"up_for_retry", "deferred"})
"""States of a task whose worker was shot, once Airflow has seen it; the second when the harness comes late."""

FIRST_SHOT = Shot("run.submit", Side.AFTER, 1)
"""With which a gang outlives its task until the teardown, for the phase ``release``."""

Play = Generator[None, None, None]
T = TypeVar("T")


class MissedError(Exception):
    """The process went by the point without passing it as often as it was seen to: its way was another this time."""


class Case:
    """One combination and the gang it is tried on."""

    def __init__(self, house: House, combination: Combination, runs: GangRuns, task_id: str) -> None:
        self.house = house
        self.combination = combination
        self.runs = runs
        self.task_id = task_id
        self.name = str(combination).replace("/", "_")
        self.phase, self.how = combination.scenario.split("-")
        self.follow_up = combination.follow_up
        self.ended_before = False
        self.missed = False
        self._armed: list[tuple[str, str]] = []
        if self.phase == "start":
            self._arm(WORKER, self.task_id)
        if self.phase == "release":
            self._arm(WORKER, self.task_id, shot=FIRST_SHOT, how=KILL, name=f"{self.name}-first")

    @property
    def gang(self) -> Gang:
        return self.runs.gangs[self.task_id]

    def play(self) -> Play:
        """Play the case to the end of its task."""
        yield from self._until("the run is opened", lambda: self._state("open") == "success")
        play = {
            "start": self._worker,
            "resume": self._worker,
            "watch": self._watcher,
            "on_kill": self._on_kill,
            "release": self._release,
        }[self.phase]
        try:
            yield from play()
        except MissedError:
            self.missed = True
            self._disarm()
            self.house.end_turn(self)
            self.gang.unblind()
            self.gang.let_go()

    def _worker(self) -> Play:
        if self.phase == "resume":
            yield from self._until("the gang is held", self._is_held)
            self._arm(WORKER, self.task_id)
            self.gang.let_go()
        yield from self._until_shot("the worker is shot")
        self.ended_before = self.phase == "resume"
        if self.how != STOP:
            yield from self._until("Airflow has seen it", lambda: self._state() not in ("running", "queued"))
        yield from self._followed_up(self.task_id)
        if self.how == STOP:
            yield from self._thaw()
        yield from self._to_the_end()

    def _watcher(self) -> Play:
        yield from self._until("the gang is held", self._is_held)
        yield from self._until("no other triggerer is shot", lambda: self.house.take_turn(self))
        self._arm(TRIGGERER, self.gang.key)
        if self.combination.shot.point in EXTENSIONS:
            self.gang.blind()
        yield from self._until_shot("the triggerer is shot")
        self.gang.unblind()
        shot = self._shot_triggerer()
        if self.how == STOP:
            self.house.stack.pause(shot)  # with what else it is of, and not holding the database's lock
        if self.follow_up == "moved":
            yield from self._until("it is moved", lambda: self._state() != "deferred" or bool(self._holders() - {shot}))
        else:
            yield from self._followed_up(self.task_id)
        self._bring_back(shot)
        yield from self._to_the_end()

    def _on_kill(self) -> Play:
        yield from self._until("the gang is held", self._is_held)
        yield from self._until("no other triggerer is shot", lambda: self.house.take_turn(self))
        self._arm(ON_KILL, self.gang.key)
        self._mark("failed")
        yield from self._until_shot("the triggerer is shot")
        shot = self._shot_triggerer()
        if self.how == STOP:
            self.house.stack.pause(shot)
        yield from self._followed_up(self.task_id)
        self._bring_back(shot)
        yield from self._to_the_end()

    def _release(self) -> Play:
        yield from self._until("the first worker is shot", lambda: self._fired(f"{self.name}-first"))
        yield from self._until("Airflow has seen it", lambda: self._state() in _SEEN)
        self._arm(WORKER, "release")
        self._mark("failed")
        yield from self._until_shot("the release is shot")
        if self.how != STOP:
            yield from self._until("Airflow has seen it", lambda: self._state("release") != "running")
        yield from self._followed_up("release")
        if self.how == STOP:
            yield from self._thaw()

    def _followed_up(self, task_id: str) -> Play:
        runs, fired = self.runs, self._fired()
        assert fired is not None
        before = fired["try"] or self._try(task_id)  # Airflow may have begun the next by now
        if self.follow_up == "cleared":
            patiently(lambda: runs.client.clear(runs.dag_id, runs.run_id, [task_id]))
        elif self.follow_up in ("failed", "success"):
            self._mark(self.follow_up, task_id)
        if self.follow_up in ("retried", "cleared"):
            yield from self._until(
                "another try has begun",
                lambda: self._try(task_id) > before and self._state(task_id) in ("running", "deferred", "success"),
            )

    def _to_the_end(self) -> Play:
        self.gang.let_go()
        if self._is_to_go_on():
            yield from self._until("the task succeeds", lambda: self._state() == "success")

    def _is_to_go_on(self) -> bool:
        return self.follow_up in GOES_ON or (self.follow_up == "left" and self.phase == "watch")

    def _thaw(self) -> Play:
        """Let the frozen worker go on, and see it gone."""
        fired = self._fired()
        assert fired is not None
        for pid in (fired["parent"], fired["pid"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        yield from self._until("the thawed worker is gone", lambda: not _is_alive(fired["pid"]))

    def _bring_back(self, triggerer: str) -> None:
        if self.how == STOP:
            self.house.stack.resume(triggerer)
        else:
            self.house.stack.restart(triggerer)
        self.house.end_turn(self)

    def _shot_triggerer(self) -> str:
        fired = self._fired()
        assert fired is not None
        stack = self.house.stack
        return next(name for name in stack.triggerers if stack.component_pid(name) == fired["parent"])

    def _arm(self, where: str, who: str, *, shot: Shot | None = None, how: str = "", name: str = "") -> None:
        who = worker_name(self.runs.run_id, who) if where == WORKER else who
        self._armed.append((where, who))
        self.house.range.arm(
            name or self.name, where=where, who=who, shot=shot or self.combination.shot, how=how or self.how
        )

    def _disarm(self) -> None:
        """Have nobody shot any more; who was in the last moment is brought back."""
        for where, who in self._armed:
            self.house.range.disarm(where=where, who=who)
        if self.phase in ("watch", "on_kill") and self._fired() is not None:
            self._bring_back(self._shot_triggerer())

    def _fired(self, name: str = "") -> dict[str, int] | None:
        return self.house.range.fired(name or self.name)

    def _mark(self, state: str, task_id: str = "") -> None:
        runs = self.runs
        patiently(lambda: runs.client.mark(runs.dag_id, runs.run_id, task_id or self.task_id, state))

    def _is_held(self) -> bool:
        return self._state() == "deferred" and self.gang.is_held() and bool(self._holders())

    def _holders(self) -> set[str]:
        return self.house.holders(self.runs, self.task_id)

    def _state(self, task_id: str = "") -> str | None:
        state: str | None = self.house.view(self.runs)[task_id or self.task_id]["state"]
        return state

    def _try(self, task_id: str) -> int:
        number: int = self.house.view(self.runs)[task_id]["try_number"]
        return number

    def _until_shot(self, what: str) -> Play:
        """Wait until someone is shot. Raises ``MissedError`` once it can no longer come to it."""
        # A trigger that is slow to hear of its end finds nothing to stop once the teardown has been there.
        task_id = "release" if self.phase in ("release", "on_kill") else self.task_id
        over = {"success", "deferred"} if self.phase == "start" else {"success"}

        def shot_or_missed() -> bool:
            if self._fired() is None and self._state(task_id) in over:
                raise MissedError
            return self._fired() is not None

        yield from self._until(what, shot_or_missed)

    def _until(self, what: str, condition: Callable[[], Any]) -> Play:
        give_up_s = time.monotonic() + LIMIT_S
        self.house.note(f"{self.combination} ({self.task_id}) waits until {what}")
        while not condition():
            if time.monotonic() > give_up_s:
                tasks = {name: task["state"] for name, task in self.house.view(self.runs).items()}
                raise AssertionError(f"not within {LIMIT_S:.0f} s: {what}; {tasks}")
            yield

    def findings(self) -> Findings:
        """Return what came of it, as seen from outside."""
        key, sampler = self.gang.key, self.house.sampler
        return Findings(
            engine=ENGINE,
            follow_up=self.follow_up,
            max_alive=sampler.most_at_once(key),
            alive_after=len(sampler.alive(key)),
            steps_beyond=steps_beyond(history.attempts(self.gang.events())),
        )

    def check(self) -> None:
        """Raise ``AssertionError`` for what must never be."""
        gang, sampler, found = self.gang, self.house.sampler, self.findings()
        assert snapshots.rebuild(gang.journal).state == gang.state()
        assert found.max_alive <= 1, f"two gangs at once: {sampler.crowd(gang.key)}"
        assert found.alive_after == 0, f"alive after the run's end: {sampler.alive(gang.key)}"
        assert found.steps_beyond == 0, f"trained again {found.steps_beyond} steps that a complete checkpoint held"
        doubled = {name: pids for name, pids in sampler.ranks(gang.key).items() if len(pids) > 1}
        assert not doubled, f"launched twice under one attempt: {doubled}"
        launches = history.attempts(gang.events())
        if self._is_to_go_on() and self.phase != "release" and not self.missed:
            trained = {step for launch in launches for step in steps_of(launch)}
            assert trained == set(range(1, NUM_STEPS + 1)), f"never trained: {set(range(1, NUM_STEPS + 1)) - trained}"
        if self.ended_before and self.follow_up == "retried":
            assert len(launches) == 1, f"trained again after its success: {[each.key.name for each in launches]}"


class House:
    """The stack, the range and the sampler that all cases share; one triggerer is shot at a time."""

    def __init__(self, stack: AirflowStack, range_: ShootingRange, sampler: ProcessSampler) -> None:
        self.stack = stack
        self.range = range_
        self.sampler = sampler
        self._views: dict[str, dict[str, dict[str, Any]]] = {}
        self._logs: dict[str, list[str]] = {}
        self._turn: Case | None = None

    def view(self, runs: GangRuns) -> dict[str, dict[str, Any]]:
        """Return the run's task instances by task id, as of this tick."""
        return self._views[runs.run_id]

    def holders(self, runs: GangRuns, task_id: str) -> set[str]:
        """Return which triggerers had the log of the task's trigger open, as of this tick."""
        mine = f"/run_id={runs.run_id}/task_id={task_id}/"
        return {name for name, paths in self._logs.items() if any(mine in path for path in paths)}

    def note(self, line: str) -> None:
        """Keep a line for whoever wonders what the harness is at."""
        with (self.range.folder / "cases.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def _look(self, runs: Iterable[GangRuns]) -> None:
        for each in runs:
            instances = patiently(lambda each=each: each.client.task_instances(each.dag_id, each.run_id))  # type: ignore[misc]
            seen = {instance["task_id"]: instance for instance in instances}
            self._views[each.run_id] = {**self._views.get(each.run_id, {}), **seen}  # a new try may fall between pages
        self._logs = {name: open_logs(self.stack.component_pid(name)) for name in self.stack.triggerers}

    def take_turn(self, case: Case) -> bool:
        """Whether ``case`` may have a triggerer shot now; it must ``end_turn`` then."""
        self._turn = self._turn or case
        return self._turn is case

    def end_turn(self, case: Case) -> None:
        if self._turn is case:
            self._turn = None

    def play(self, cases: Sequence[Case]) -> dict[Case, BaseException]:
        """Play all side by side to the end of their DAG runs; return what went wrong in which."""
        failures: dict[Case, BaseException] = {}
        playing = {case: case.play() for case in cases}
        while playing:
            self._look({case.runs.run_id: case.runs for case in playing}.values())
            for case, play in list(playing.items()):
                try:
                    next(play)
                except StopIteration:
                    del playing[case]
                except Exception as error:  # noqa: BLE001 - every case is told of, whatever came of the others
                    self.note(f"{case.combination} ({case.task_id}) failed: {error!r}")
                    failures[case] = error
                    del playing[case]
                    self._give_up(case)
            time.sleep(TICK_S)
        for runs in {case.runs.run_id: case.runs for case in cases}.values():
            wait_until(lambda runs=runs: runs.has_ended(), limit_s=LIMIT_S, poll_s=TICK_S)  # type: ignore[misc]
        self.sampler.wait_for_a_sample()
        return failures

    def _give_up(self, case: Case) -> None:
        """Undo what would keep the others waiting."""
        if self._turn is case:
            for name in self.stack.triggerers:
                self.stack.resume(name)
            self.end_turn(case)
        case.gang.let_go()
        with contextlib.suppress(Exception):
            case.runs.client.mark(case.runs.dag_id, case.runs.run_id, case.task_id, "failed")


def record(house: House) -> list[Combination]:
    """Run with nobody shot but who must be, recording all passages, and return every combination there is."""
    house.range.record()
    ordinary = GangRuns(house.stack, house.range.folder / "hold", dag_id="shot_recorded", run_id="recorded")
    alone = GangRuns(house.stack, house.range.folder / "hold", dag_id="shot_alone", run_id="recorded-alone")
    first = worker_name(alone.run_id, "gang-01")
    house.range.arm("recorded-first", where=WORKER, who=first, shot=FIRST_SHOT, how=KILL)
    # At once: a task that is tried again has its gang ended by the triggerer, and leaves the teardown nothing to stop.
    alone.wait_for(lambda: house.range.fired("recorded-first") and alone.tasks()["gang-01"] in _SEEN)
    alone.client.mark(alone.dag_id, alone.run_id, "gang-01", "failed")
    ordinary.wait_until_held()
    plain, marked, other = ordinary.gangs.values()
    ordinary.client.mark(ordinary.dag_id, ordinary.run_id, marked.task_id, "failed")
    # Before the teardown can do it: a triggerer's first question about a task's state may take it half a minute.
    ordinary.wait_for(lambda: not house.sampler.alive(marked.key))
    plain.let_go()
    other.let_go()
    for runs in (ordinary, alone):
        wait_until(runs.has_ended, limit_s=LIMIT_S, poll_s=TICK_S)
    return sorted(_combinations(house.range.recorded(), plain=plain, marked=marked))


def _combinations(recorded: Iterable[dict[str, Any]], *, plain: Gang, marked: Gang) -> set[Combination]:
    passed: dict[str, list[Shot]] = {phase: [] for phase in QUOTAS}
    counts: dict[tuple[str, int, str, str], int] = {}
    pids: list[int] = []
    for each in recorded:
        phase = None
        if each["who"] == worker_name("recorded", plain.task_id):
            pids += [each["pid"]] if each["pid"] not in pids else []
            phase = dict(enumerate(("start", "resume"))).get(pids.index(each["pid"]))
        elif each["who"] == worker_name("recorded-alone", "release"):
            phase = "release"
        elif each["who"] == marked.key and each["where"] == ON_KILL:
            phase = "on_kill"
        elif each["who"] == marked.key and each["where"] == TRIGGERER:
            phase = "watch"
        if phase is not None:
            at = (phase, each["pid"], each["point"], each["side"])
            counts[at] = counts.get(at, 0) + 1
            passed[phase].append(Shot(each["point"], Side(each["side"]), counts[at]))
    passed["watch"] = [shot for shot in passed["watch"] if shot.occurrence == 1]
    passed["watch"] += [Shot(point, side, 1) for point in EXTENSIONS for side in Side]
    found = set()
    for phase, shots in passed.items():
        last = {(shot.point, shot.side): shot.occurrence for shot in shots}
        for shot in shots:
            if shot.occurrence in (1, last[shot.point, shot.side]):
                found |= {
                    Combination(ENGINE, f"{phase}-{how}", shot, follow_up)
                    for how in HOWS[phase]
                    for follow_up in FOLLOW_UPS[phase]
                }
    return found


def drawn(everything: Sequence[Combination], budget: int) -> list[Combination]:
    """Return about ``budget`` combinations, so many of each phase as its quota says, drawn by the seed."""
    total = sum(QUOTAS.values())
    return [
        each
        for phase, quota in QUOTAS.items()
        for each in spread(
            [one for one in everything if one.scenario.startswith(f"{phase}-")], max(1, round(quota * budget / total))
        )
    ]


def steps_of(launch: Any) -> list[int]:
    reports = read_all(DirectoryChannel(launch.channel_root))
    return [step.step for report in reports for step in report.steps]


def steps_beyond(launches: Sequence[Any]) -> int:
    """Return how many steps were trained again that a complete checkpoint already held when they were begun."""
    marks: list[tuple[float, int]] = []
    beyond = 0
    for launch in launches:
        held = max((step for at_s, step in marks if at_s < launch.intended_at_s), default=0)
        steps = steps_of(launch)
        if steps:
            beyond += max(0, held + 1 - steps[0])
            assert steps == list(range(steps[0], steps[0] + len(steps)))
        reports = read_all(DirectoryChannel(launch.channel_root))
        marks += [(mark.at_s, mark.step) for report in reports for mark in report.marks]
    return beyond


def patiently(call: Callable[[], T]) -> T:
    """Return what a busy Airflow answers at last. What is asked of it may be asked twice."""
    give_up_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return call()
        except TransientError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(TICK_S)


def open_logs(pid: int) -> list[str]:
    try:
        return [file.path for file in psutil.Process(pid).open_files() if ".log.trigger." in file.path]
    except psutil.NoSuchProcess:
        return []


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def range_in(folder: Path) -> ShootingRange:
    return ShootingRange(folder / shooting.RANGE.lower())
