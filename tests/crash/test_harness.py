"""The harness itself: it names and draws combinations, shoots where it says, and sees what must not be."""

from __future__ import annotations

import ast
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.effect_points import EffectPoint, Side
from tests.support import crash_cloud, crash_combos, crash_local, crash_parts, crash_sim
from tests.support.crash_combos import Combination, spread
from tests.support.crash_watch import Observer, processes
from tests.support.crashing import Gun, Recorder, Shot, listening
from tests.support.source import modules, tree
from tests.support.waiting import wait_until

_OUTER, _INNER = EffectPoint("harness.outer"), EffectPoint("harness.inner")

NOT_FROZEN = {
    "local.submit.": "it holds a lock of the engine, for which others wait: tests/contract/test_local_engine_frozen.py",
    "local.preempt.": "the same lock, but for the end, where it is frozen",
}
"""Points at which nobody is frozen by a combination, and why: by the beginnings of their names."""


def every_combination() -> Iterator[Combination]:
    """Yield every combination of every engine but Airflow, where the same points are passed under a scheduler."""
    yield from crash_sim.combinations()
    yield from crash_local.combinations()
    yield from crash_parts.combinations()
    yield from crash_cloud.combinations()


ELSEWHERE = {
    "arbiter.join": "dies at each: tests/unit/control/test_arbiter_machines.py",
    "arbiter.close": "the same",
    "checkpoint.copy": "dies at each: tests/unit/checkpoints/test_copying.py",
    "fleet.": "dies at each, and stands still at what it claims: tests/crash/test_fleet_deaths.py",
    "links.keep": "dies on both sides: tests/unit/control/test_measured_links.py",
    "numbered.": "dies at each and stands still in each: tests/unit/clouds/onprem/test_reservations.py",
    "hosts.": "a worker dies at each, as the next goes on from there: tests/contract/test_hosts_engine_crashes.py",
    "ssh.": "a command may run twice, and does when its connection breaks: tests/unit/engines/test_ssh.py",
    "slurm.": "dies at each on a queue that a test wrote: tests/unit/engines/slurm/test_engine.py",
    "slurm.rest.": "a submit or cancel whose reply is lost is repeated: tests/integration/test_slurm_clients.py",
    "gcp.slice.": "a lease of TPU slices dies at every passage: tests/contract/test_gcp_cloud_contract.py",
}
"""Points that are shot by other tests than combinations, and by which: by the beginnings of their names."""


def made() -> set[str]:
    """Every point that the package makes, but for those shot elsewhere."""
    calls = [node for module in modules() for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]
    names = {ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "EffectPoint"}
    return {name for name in names if not name.startswith(tuple(ELSEWHERE))}


def test_a_combination_is_told_by_its_name() -> None:
    each = Combination("sim", "faults", Shot("run.submit", Side.BEFORE, 2), "retried")
    assert str(each) == "sim:faults:run.submit:before:2:retried"
    assert Combination.parse(str(each)) == each
    assert each.command == f"make test-crash ONLY={each} SEED={crash_combos.seed()}"


def test_a_failure_tells_the_command_that_repeats_it() -> None:
    each = Combination("sim", "faults", Shot("run.submit", Side.BEFORE, 2), "retried")
    with pytest.raises(AssertionError) as caught, crash_combos.repeatable(each):
        raise AssertionError("no")
    assert caught.value.__notes__ == [f"repeat it: {each.command}"]


def test_one_combination_or_all_or_a_sample_is_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = list(crash_sim.combinations())
    for name in (crash_combos.ONLY, crash_combos.ALL, crash_combos.BUDGET):
        monkeypatch.delenv(name, raising=False)
    assert crash_combos.chosen("sim", lambda: everything, smoke=[str(everything[3])]) == [everything[3]]
    monkeypatch.setenv(crash_combos.ALL, "1")
    assert crash_combos.chosen("sim", lambda: everything, smoke=1) == sorted(everything)
    monkeypatch.setenv(crash_combos.BUDGET, "30")
    assert len(crash_combos.chosen("sim", lambda: everything, smoke=1)) == 30
    monkeypatch.setenv(crash_combos.ONLY, str(everything[5]))
    assert crash_combos.chosen("sim", lambda: everything, smoke=1) == [everything[5]]
    assert crash_combos.chosen("local", lambda: everything, smoke=1) == []


def test_a_sample_is_the_same_for_a_seed_and_takes_every_point_before_any_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything = list(crash_sim.combinations())
    sides = {(each.shot.point, each.shot.side) for each in everything}
    monkeypatch.setenv(crash_combos.SEED, "1")
    first = spread(everything, len(sides))
    assert first == spread(reversed(everything), len(sides))
    assert {(each.shot.point, each.shot.side) for each in first} == sides
    assert {each.follow_up for each in first} == {each.follow_up for each in everything}
    monkeypatch.setenv(crash_combos.SEED, "2")
    assert first != spread(everything, len(sides))


def test_a_gun_fires_once_at_its_passage() -> None:
    fired: list[int] = []
    gun = Gun(Shot("harness.inner", Side.AFTER, 2), lambda: fired.append(1))
    with listening(gun):
        for number in range(4):
            with _OUTER, _INNER:
                assert gun.fired is (number > 1)
    assert fired == [1]


def test_a_recorder_notes_first_and_last_passages_and_where_they_were() -> None:
    where = ["worker"]
    recorder = Recorder(lambda: where[0])
    with listening(recorder):
        for place in ("worker", "triggerer", "worker"):
            where[0] = place
            with _INNER:
                pass
    inner = "harness.inner"
    assert recorder.first_and_last() == [
        (Shot(inner, Side.BEFORE, 1), "worker"),
        (Shot(inner, Side.AFTER, 1), "worker"),
        (Shot(inner, Side.BEFORE, 3), "worker"),
        (Shot(inner, Side.AFTER, 3), "worker"),
    ]
    assert recorder.passed[2] == (Shot(inner, Side.BEFORE, 2), "triggerer")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_point_of_the_code_is_shot_on_both_sides_and_frozen() -> None:
    """All of it is computed: the points from the source, the shots by playing every scenario unharmed."""
    shot, frozen = set(), set()
    for each in every_combination():
        shot.add((each.shot.point, each.shot.side))
        if each.follow_up.startswith("thawed"):
            frozen.add(each.shot.point)
    missing = {(name, side) for name in made() for side in Side} - shot
    assert missing == set(), "shoot it: in a scenario of crash_sim or crash_local, or as a part in crash_parts"
    assert {name for name, _ in shot if not name.startswith(tuple(ELSEWHERE))} == made()
    excused = {begin for begin in NOT_FROZEN for name in made() - frozen if name.startswith(begin)}
    assert {name for name in made() - frozen if not name.startswith(tuple(NOT_FROZEN))} == set()
    assert excused == set(NOT_FROZEN)


def test_there_are_as_many_combinations_as_promised() -> None:
    by_follow_up = Counter(each.follow_up for each in crash_sim.combinations())
    assert sum(by_follow_up.values()) >= 200
    assert min(by_follow_up[name] for name in ("retried", "cleared", "failed", "success", "moved", "left")) >= 20


def evidence(*lines: tuple[str, str, int]) -> list[dict[str, object]]:
    """Lines as ranks write them: what, attempt, step."""
    return [
        {"what": what, "attempt": attempt, "rank": 0, "step": number, "resumed": number}
        for what, attempt, number in lines
    ]


def test_steps_that_a_complete_checkpoint_had_are_seen_to_be_done_again() -> None:
    resumed = evidence(("start", "a1", 0), ("saved", "a1", 4), ("step", "a1", 6), ("start", "a2", 4))
    assert crash_local._steps_beyond(resumed) == 0
    lost = evidence(("start", "a1", 0), ("saved", "a1", 4), ("saved", "a1", 8), ("start", "a2", 4))
    assert crash_local._steps_beyond(lost) == 4


def test_two_gangs_that_live_at_once_are_seen_in_proc_and_nothing_once_they_are_gone(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text("import time; time.sleep(600)")
    key = f"ls-{os.getpid()}-{os.urandom(4).hex()}"
    pids = [
        os.spawnve(
            os.P_NOWAIT,
            sys.executable,
            [sys.executable, "-S", "-E", str(program)],
            {"LLMSCHED_ATTEMPT_NAME": f"{key}-g1-a{attempt}"},
        )
        for attempt in (1, 2)
    ]
    observer = Observer(key, str(program))
    try:
        wait_until(lambda: observer.look() == 2, 60.0)
        assert {each.attempt for each in processes(key, program=str(program))} == {f"{key}-g1-a1", f"{key}-g1-a2"}
        assert processes(f"{key}x", program=str(program)) == []
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    assert observer.look() == 0
    assert observer.max_gangs == 2
