"""The crash harness on the local engine: real processes, really shot, and what lives of the run looked at in /proc."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_llmsched.control import snapshots
from airflow_llmsched.control.machine import fold
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.effect_points import Side
from airflow_llmsched.errors import TransientError
from tests.support import seaweed
from tests.support.crash_actor import LIMIT_S, Actor
from tests.support.crash_combos import Combination, Findings
from tests.support.crash_house import RANK, House, Settings
from tests.support.crash_rank import HOLDS_FROM_STEP, NUM_RANKS, NUM_STEPS
from tests.support.crash_watch import Observer, processes
from tests.support.crashing import Shot
from tests.support.waiting import wait_until

_LEASE_S, _SHORT_LEASE_S = 60.0, 4.0
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run's settings, what is done unharmed (``before``), and the role of the process that is shot.

    ``points`` begin the names of those at which it is shot, where not at all: the others are shot in other scenarios.
    """

    role: str
    follow_ups: tuple[str, ...]
    points: tuple[str, ...] = ()
    before: Callable[[House], None] = lambda _house: None
    in_bucket: bool = False
    fails: bool = False
    misstarts: bool = False
    ends_early: bool = False
    ends: tuple[str, ...] = ("succeeded",)
    owner: str = "try-1"
    generation: int = 0


def _to_the_middle(house: House) -> None:
    """Bring a healthy run to the middle of its training, deferred, and have it stand there."""
    (house.root / "hold").touch()
    house.actor("start").start().result()
    wait_until(lambda: house.reached(HOLDS_FROM_STEP), LIMIT_S)


def _dead_before_it_submits(house: House) -> None:
    """Have a first try die with a launch intended: whoever ends it must see to it that it is never made."""
    assert house.actor("attempt").start(shot=Shot("run.submit", Side.BEFORE, 1)).end() == -signal.SIGKILL
    (house.root / "hold").unlink(missing_ok=True)


def _to_the_reaper(house: House) -> None:
    """Leave behind a gang whose agents hang."""
    _to_the_middle(house)
    _hang(house)


def _to_orphans(house: House) -> None:
    """Leave ranks behind whose supervisors and wrappers were killed all at once."""
    _to_the_middle(house)
    above = [each for each in processes(house.run_key, program=RANK) if not each.runs_rank]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # whoever sees another go ends the ranks
        for each in above:
            _signal(each.pid, number)


def _to_a_deleted_gang(house: House) -> None:
    """Leave behind a gang whose directory somebody deleted, before its supervisors could see that."""
    _to_the_reaper(house)
    (house.root / "engine" / "gangs").rename(house.root / "deleted")  # at once: supervisors write on meanwhile


_WORKER = ("retried", "cleared", "failed", "success", "left", "hung", "late", "thawed")
_HELD = ("retried", "cleared", "failed", "success", "hung", "thawed")
"""Of a gang that stands still before the shot, and whose agents may be gone: it does not end by itself."""

_BUCKET = ("retried", "cleared", "failed", "success", "left", "late", "thawed")
"""Without ``hung``: the reaper stops no gang whose channel is in a bucket, where it sees no agent's silence."""

_TRIGGERER = ("moved", "cleared", "failed", "success", "left", "hung", "thawed")
_EARLY = ("succeeded", "failed")

SCENARIOS: dict[str, Scenario] = {
    "faults": Scenario(role="attempt", follow_ups=_WORKER, fails=True),
    "deadline": Scenario(role="attempt", follow_ups=_WORKER, ends_early=True, ends=_EARLY),
    "triggerer": Scenario(role="trigger", follow_ups=_TRIGGERER, before=_to_the_middle),
    "triggerer_at_deadline": Scenario(
        role="trigger",
        follow_ups=_TRIGGERER,
        before=_to_the_middle,
        ends_early=True,
        ends=_EARLY,
    ),
    "overtakes": Scenario(
        role="attempt", follow_ups=_WORKER, before=_dead_before_it_submits, owner="try-2", generation=1
    ),
    "killed": Scenario(
        role="cancel", follow_ups=("retried", "cleared", "failed", "success", "left", "hung"), before=_to_the_middle
    ),
    "released": Scenario(
        role="release", follow_ups=("failed", "cleared", "left", "hung", "thawed_cleared"), before=_to_the_middle
    ),
    "reaped": Scenario(role="reap", follow_ups=("hung", "cleared", "failed", "thawed_cleared"), before=_to_the_reaper),
    "misstarts": Scenario(
        role="attempt",
        follow_ups=_WORKER,
        misstarts=True,
        points=("local.submit.abort", "local.submit.end_aborted", "local.submit.tidy"),
    ),
    "orphaned": Scenario(
        role="attempt", follow_ups=_HELD, before=_to_orphans, owner="try-2", generation=1, points=("local.stop.",)
    ),
    "deleted": Scenario(
        role="attempt",
        follow_ups=_HELD,
        before=_to_a_deleted_gang,
        owner="try-2",
        generation=1,
        points=("local.stop.",),
    ),
    "preempted": Scenario(
        role="preempt", follow_ups=(*_HELD, "left"), before=_to_the_middle, points=("local.preempt.",)
    ),
    "bucket": Scenario(
        role="attempt", follow_ups=_BUCKET, in_bucket=True, fails=True, points=("objects.remote.", "channel.store.")
    ),
    "bucket_triggerer": Scenario(
        role="trigger",
        follow_ups=("moved", *_BUCKET),
        before=_to_the_middle,
        in_bucket=True,
        points=("channel.store.",),
    ),
}


_UNDER_A_LOCK = ("local.submit.", "local.preempt.take_down", "local.preempt.notice")
"""Whoever stands still there holds a lock of the engine, for which others wait until it is thawed or killed."""


def combinations() -> Iterator[Combination]:
    """Yield every combination: each scenario is run once, unharmed, to see which points its process passes."""
    for name, shots in _recorded().items():
        for point, side, occurrence in shots:
            for follow_up in SCENARIOS[name].follow_ups:
                if follow_up != "thawed" or not point.startswith(_UNDER_A_LOCK):
                    yield Combination("local", name, Shot(point, side, occurrence), follow_up)


def _recorded() -> dict[str, list[Any]]:
    """Return the passages of each scenario; those who test at once in several processes share one recording."""
    path = _recording()
    if path is None:
        return _record()
    with path.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(_record()))
        return dict(json.loads(path.read_text()))


def _recording() -> Path | None:
    """Return where those who test at once share a recording; None for one who tests alone."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return None if session is None else Path(tempfile.gettempdir()) / f"llmsched-crash-{os.getuid()}-{session}.json"


def forget_recording() -> None:
    """Delete the shared recording. Nobody runs a test before all have collected theirs, so it has been read by then."""
    path = _recording()
    if path is not None:
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)


def _record() -> dict[str, list[Any]]:
    found = {}
    for name, scenario in SCENARIOS.items():
        with tempfile.TemporaryDirectory(prefix="llmsched-crash-", ignore_cleanup_errors=True) as root:
            house = _house(root, scenario, "retried")
            try:
                scenario.before(house)
                victim = _victim(house, scenario).start(records=True)
                _let_go(house, victim)
                shots = victim.passages()
            finally:
                _end(house)
        found[name] = [(shot.point, shot.side, shot.occurrence) for shot in shots if _is_wanted(shot, name)]
    return found


def _let_go(house: House, victim: Actor) -> None:
    """Have ranks that stand still from before go on once there is a second gang; the first is stopped as it stands."""

    def has_second() -> bool:
        return len({each["attempt"] for each in house.evidence() if each["what"] == "start"}) > 1

    if (house.root / "hold").exists():
        wait_until(lambda: has_second() or not victim.process.is_alive(), LIMIT_S)
        (house.root / "hold").unlink(missing_ok=True)


def _is_wanted(shot: Shot, scenario: str) -> bool:
    """Leave out what depends on time, as how often a watcher renews, and the store's own steps in all runs but one.

    Stopping leaves a record only for supervisors that do not end by themselves: sure only where they hang.
    """
    if shot.point == "local.stop.record":
        return scenario == "reaped"
    if shot.point.startswith(("watch.", "channel.")) and shot.occurrence > 1:
        return False
    chosen = SCENARIOS[scenario].points
    if chosen:
        return shot.point.startswith(chosen)
    return scenario == "faults" or not shot.point.startswith("objects.")


def run(combination: Combination) -> Findings:
    """Shoot, follow up, and check. Raises ``AssertionError`` when anything is not as it must be."""
    scenario = SCENARIOS[combination.scenario]
    with tempfile.TemporaryDirectory(prefix="llmsched-crash-", ignore_cleanup_errors=True) as root:
        house = _house(root, scenario, combination.follow_up)
        observer = Observer(house.run_key, RANK)
        try:
            with observer.watching():
                with _renewed(house):
                    scenario.before(house)
                if combination.follow_up.startswith("thawed"):
                    _freeze(house, scenario, combination)
                else:
                    with _renewed(house) if scenario.role != "reap" else contextlib.nullcontext():
                        victim = _victim(house, scenario).start(shot=combination.shot)
                        assert victim.end() == -signal.SIGKILL, f"it was never there\n{victim.log()}"
                    observer.look()
                    _FOLLOW_UPS[combination.follow_up](house, scenario)
                return _check(house, combination, observer)
        finally:
            _end(house)


def _house(root: str, scenario: Scenario, follow_up: str) -> House:
    settings = Settings(
        root=root,
        run_key=f"ls-{secrets.token_hex(10)}",
        s3=_s3() if scenario.in_bucket else "",
        fails=scenario.fails,
        misstarts=scenario.misstarts,
        ends_early=scenario.ends_early,
        # Whoever comes late finds a gang that has run on to its end.
        holds=follow_up != "late",
        lease_s=_SHORT_LEASE_S if follow_up in ("left", "hung") or scenario.role == "reap" else _LEASE_S,
    )
    return House(settings).open()


@functools.cache
def _s3() -> str:
    """Return the address of a real S3 server, which lives as long as this process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="llmsched-crash-", ignore_cleanup_errors=True))
    return stack.enter_context(seaweed.seaweed_server(Path(folder)))


def _victim(house: House, scenario: Scenario) -> Actor:
    return house.actor(scenario.role, owner=scenario.owner, generation=scenario.generation)


@contextlib.contextmanager
def _renewed(house: House) -> Iterator[None]:
    """Keep the gang's lease alive inside of the block: how fast the machine is decides nothing before the shot."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(_SHORT_LEASE_S / 8):
            with contextlib.suppress(TransientError):
                root = snapshots.rebuild(house.journal).state.channel_root
                if root:
                    house.open_channel(root).renew(until_s=house.clock.now_s() + house.settings.lease_s)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _freeze(house: House, scenario: Scenario, combination: Combination) -> None:
    """Stop the process at the shot; have another take its place; then let the first go on, in the middle of that."""
    generation = scenario.generation + (combination.follow_up == "thawed_cleared")
    first = _victim(house, scenario).start(shot=combination.shot, number=signal.SIGSTOP)
    first.wait_until_it_stands_still()
    if scenario.role == "trigger":
        second = house.actor("go_on", owner=scenario.owner, generation=scenario.generation).start()
    else:
        if generation > scenario.generation:
            (house.root / "cleared").touch()
        second = house.actor("attempt", owner="try-3", generation=generation).start()
        wait_until(lambda: _has_begun(house, "try-3") or not second.process.is_alive(), LIMIT_S)
    first.thaw()
    (house.root / "hold").unlink(missing_ok=True)
    first.end()  # Airflow runs no more of it: how it ends is nobody's business
    assert second.result()["kind"] in scenario.ends


def _retried(house: House, scenario: Scenario) -> None:
    _try(house, scenario, generation=scenario.generation)


def _cleared(house: House, scenario: Scenario) -> None:
    _try(house, scenario, generation=scenario.generation + 1)


def _late(house: House, scenario: Scenario) -> None:
    """The next try comes when the gang has ended by itself: what it did is not done again."""
    quiet_since_s = time.monotonic()

    def is_quiet() -> bool:
        nonlocal quiet_since_s
        if any(each.runs_rank for each in processes(house.run_key, program=RANK)):
            quiet_since_s = time.monotonic()
        return time.monotonic() - quiet_since_s > _QUIET_S

    wait_until(is_quiet, LIMIT_S)
    starts = [each for each in house.evidence() if each["what"] == "start"]
    succeeded = _succeeded(house.evidence())
    _try(house, scenario, generation=scenario.generation)
    if succeeded:
        assert [each for each in house.evidence() if each["what"] == "start"] == starts, "it was trained again"


def _try(house: House, scenario: Scenario, *, generation: int) -> None:
    player = house.actor("attempt", owner="try-3", generation=generation).start()
    wait_until(lambda: _has_begun(house, "try-3") or not player.process.is_alive(), LIMIT_S)
    (house.root / "hold").unlink(missing_ok=True)
    result = player.result()
    assert result["kind"] in scenario.ends, result


def _moved(house: House, scenario: Scenario) -> None:
    """Another triggerer goes on, with the state in which the task was deferred."""
    player = house.actor("go_on", owner=scenario.owner, generation=scenario.generation).start()
    (house.root / "hold").unlink(missing_ok=True)
    result = player.result()
    assert result["kind"] in scenario.ends, result


def _failed(house: House, _scenario: Scenario) -> None:
    """Marked as failed: the teardown comes."""
    house.actor("release").start().result()
    assert not any(each.runs_rank for each in processes(house.run_key, program=RANK))
    assert house.actor("release").start().result() == []
    state = snapshots.rebuild(house.journal).state
    assert state.released or state.phase is RunPhase.NEW


def _success(house: House, scenario: Scenario) -> None:
    """Marked as a success: the teardown comes, while training goes on."""
    (house.root / "hold").unlink(missing_ok=True)
    _failed(house, scenario)


def _left(house: House, _scenario: Scenario) -> None:
    """Nobody comes back: the gang ends itself when its lease runs out."""
    wait_until(lambda: not processes(house.run_key, program=RANK), LIMIT_S, poll_s=0.1)
    assert house.actor("reap").start().result() == []


def _hung(house: House, _scenario: Scenario) -> None:
    """Nobody comes back, and the agents hang: only the reaper can end it."""
    _hang(house)
    house.actor("reap").start().result()
    assert not any(each.runs_rank for each in processes(house.run_key, program=RANK))


_FOLLOW_UPS: dict[str, Callable[[House, Scenario], None]] = {
    "retried": _retried,
    "cleared": _cleared,
    "moved": _moved,
    "failed": _failed,
    "success": _success,
    "left": _left,
    "hung": _hung,
    "late": _late,
}


def _has_begun(house: House, owner: str) -> bool:
    return snapshots.rebuild(house.journal).state.owner == owner


def _hang(house: House) -> None:
    """Stop the supervisors in their tracks: they neither report nor mind their lease, and the ranks run on."""
    for each in processes(house.run_key, program=RANK):
        if each.is_supervisor:
            _signal(each.pid, signal.SIGSTOP)


def _end(house: House) -> None:
    """Kill what is left of the run, whoever started it: the verdict has been given."""
    num_empty = 0
    while num_empty < 2:  # a process that is just becoming another program shows no environment
        left = processes(house.run_key, program=RANK)
        for each in left:
            _signal(each.pid, signal.SIGKILL)
        num_empty = 0 if left else num_empty + 1
        time.sleep(0.02)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _check(house: House, combination: Combination, observer: Observer) -> Findings:
    observer.look()
    with contextlib.suppress(AssertionError):  # supervisors have a last word to write
        wait_until(lambda: not processes(house.run_key, program=RANK), 20.0, poll_s=0.05)
    evidence = house.evidence()
    overlaps = [each for each in evidence if each["what"] == "overlap"]
    findings = Findings(
        engine="local",
        follow_up=combination.follow_up,
        max_alive=max(observer.max_gangs, 2 if overlaps else 0),
        alive_after=len(processes(house.run_key, program=RANK)),
        steps_beyond=_steps_beyond(evidence),
    )
    assert (findings.max_alive <= 1, findings.alive_after, findings.steps_beyond) == (True, 0, 0), (findings, evidence)
    starts = [(each["attempt"], each["rank"]) for each in evidence if each["what"] == "start"]
    assert len(set(starts)) == len(starts), f"launched twice under one key: {starts}"
    journal = house.journal
    assert snapshots.rebuild(journal).state == fold(house.run_key, journal.read())
    return findings


def _succeeded(evidence: list[dict[str, Any]]) -> set[str]:
    """Return the attempts all of whose ranks did the last step and exited well."""
    done = [
        (each["attempt"], each["rank"]) for each in evidence if each["what"] == "done" and each["step"] == NUM_STEPS
    ]
    return {attempt for attempt, rank in done if all((attempt, other) in done for other in range(NUM_RANKS))}


def _steps_beyond(evidence: list[dict[str, Any]]) -> int:
    """Return how many steps were done again although a complete checkpoint had them when their gang started."""
    saved = beyond = 0
    begun: set[str] = set()
    for each in evidence:
        if each["what"] == "saved":
            saved = max(saved, each["step"])
        elif each["what"] == "start" and each["attempt"] not in begun:
            begun.add(each["attempt"])
            beyond = max(beyond, saved - each["resumed"])
    return beyond
