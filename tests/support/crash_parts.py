"""The crash harness on parts of a run: one task or one call that leaves something for others, shot by itself.

Each is a process that really dies, or stands still, at the shot. What it was to leave must be as if nobody had been
shot once somebody has done it again, and what can be read in between must be whole.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.agent.link import DirectoryLink
from airflow_llmsched.agent.spool import read_json
from airflow_llmsched.control import events as ev
from airflow_llmsched.control import journal as journals
from airflow_llmsched.control.allowances import Allowances
from airflow_llmsched.control.journal import Journal, JournalRaceError
from airflow_llmsched.control.rental_memory import MemoryFile, Sighting
from airflow_llmsched.domain.checkpoint import VerifyDepth
from airflow_llmsched.domain.dataset import DatasetManifest
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.lease import NodeNotice, NoticeKind
from airflow_llmsched.domain.run_report import EvaluationResult
from airflow_llmsched.errors import DataError
from airflow_llmsched.learning import calibration_file
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.prices.snapshots import PREFIX, MarketSnapshot, SnapshotPrices, encode_snapshot, snapshot_key
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.lease_watch import LeasePasses, Watched
from airflow_llmsched.provider.market_run import take_snapshot
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.reports import files as report_files
from airflow_llmsched.staging.shards import SEPARATOR
from airflow_llmsched.staging.verify import MANIFEST_NAME, load_manifest, verify
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.crash_actor import LIMIT_S, Actor
from tests.support.crash_combos import Combination, Findings
from tests.support.crash_watch import Observer, Seen, processes
from tests.support.crashing import Shot
from tests.support.pipeline import Pipeline, plain_spec
from tests.support.provider_cloud import opened_by_the_provider, real_time_cloud
from tests.support.sim_cloud import sim_pool
from tests.support.waiting import wait_until

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
CHECKPOINT = "step-00000006"
_AGAIN = ("retried", "cleared", "thawed", "thawed_cleared")

EVALUATOR = """
import fcntl, json, os, sys, time
folder = sys.argv[1]
lock = open(folder + "/evaluator.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(folder + "/overlap", "w").close()
while os.path.exists(folder + "/hold"):
    time.sleep(0.02)
loss = 4.0 + 0.1 * int(os.environ["LLMSCHED_GENERATION"])
with open(os.environ["LLMSCHED_OUTPUT"], "w") as file:
    json.dump({"loss": loss, "checkpoint_step": 6}, file)
"""
"""Tells each generation's result apart, and holds a lock that shows a second one."""


@dataclass(frozen=True, slots=True)
class Try:
    """A try of a task, as Airflow numbers them."""

    generation: int
    number: int

    @property
    def context(self) -> dict[str, int]:
        """Return what of it a task's context says."""
        return {"try_number": self.number}


FIRST, RETRIED, CLEARED = Try(0, 1), Try(0, 2), Try(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A call (``act``) that is shot, told the folder of its site and which try of its task it is.

    ``prepare`` is called before, unharmed. ``whole`` is what holds whenever somebody looks, ``check`` what holds in the
    end, in the generation that was the last; both raise. ``points`` begin the names of those at which it is shot.
    ``holds``: from the shot on its gang stands still, until somebody else has taken it up.
    """

    act: Callable[[Path, Try], object]
    points: tuple[str, ...]
    prepare: Callable[[Path], object] = lambda _folder: None
    whole: Callable[[Path], object] = lambda _folder: None
    check: Callable[[Path, int], object] = lambda _folder, _generation: None
    holds: bool = False
    follow_ups: tuple[str, ...] = _AGAIN


def pipeline(folder: Path, generation: int = 0) -> Pipeline:
    """Return the pipeline of a site, as a worker of a task's try in this generation has it."""
    spec = plain_spec(evaluator=(sys.executable, "-S", "-E", _evaluator(folder), str(folder)))
    made = Pipeline(folder, spec={**spec, "name": f"plain-{generation}"})
    made.generation = generation
    return made


def _evaluator(folder: Path) -> str:
    return str(folder / "evaluator.py")


def _task(name: str, **arguments: Any) -> Callable[[Path, Try], object]:
    return lambda folder, try_: pipeline(folder, try_.generation).run(name, context=try_.context, **arguments)


def _open(folder: Path) -> None:
    pipeline(folder).run("open_run")


def _spec_is_whole(folder: Path) -> None:
    _read_if_there(folder, run_files.read_spec)


def _check_spec(folder: Path, generation: int) -> None:
    assert run_files.read_spec(pipeline(folder).scope).name == f"plain-{generation}"


def _stage_another_text(folder: Path) -> None:
    """Leave the shards of what the text was before."""
    made = pipeline(folder)
    texts = {path: path.read_text() for path in made.folder.glob("corpus/*.txt")}
    for path in texts:
        path.write_text(f"what {path.name} was before\n" * 30)
    for name in ("open_run", "stage_dataset"):
        made.run(name)
    for path, text in texts.items():
        path.write_text(text)


def _dataset_is_whole(folder: Path) -> None:
    for path in folder.glob(f"state/datasets/*/{MANIFEST_NAME}"):
        verify(load_manifest(str(path)), str(path.parent), VerifyDepth.CONTENT)


def _check_dataset(folder: Path, _generation: int) -> None:
    manifest = run_files.read(pipeline(folder).scope, run_files.DATASET_FILE, DatasetManifest, made_by="nobody")
    root = Path(manifest.root)
    verify(manifest, manifest.root, VerifyDepth.CONTENT)
    texts = b"".join((root / shard.path).read_bytes() for shard in (*manifest.train, *manifest.held_out))
    assert sorted(texts.split(SEPARATOR)) == sorted([b"", *(path.read_bytes() for path in folder.glob("corpus/*.txt"))])
    assert load_manifest(str(root / MANIFEST_NAME)) == manifest
    known = {MANIFEST_NAME, ".staging-lock", *(shard.path for shard in (*manifest.train, *manifest.held_out))}
    assert {path.name for path in root.iterdir()} == known


def _check_plan(folder: Path, _generation: int) -> None:
    assert run_files.read_plan(pipeline(folder).scope).plans


def _report_is_whole(folder: Path) -> None:
    for path in folder.glob(f"state/runs/*/{report_files.JSON_NAME}"):
        report_files.read(path)
    for path in folder.glob(f"state/runs/*/{report_files.HTML_NAME}"):
        assert path.read_text().rstrip().endswith("</html>")


def _check_report(folder: Path, _generation: int) -> None:
    directory = pipeline(folder).scope.directory
    run_key = report_files.read(directory).names.run_key
    assert run_key in (directory / report_files.HTML_NAME).read_text()
    assert {path.name for path in directory.iterdir() if "report" in path.name} == {
        report_files.HTML_NAME,
        report_files.JSON_NAME,
    }


def _evaluate(folder: Path, try_: Try) -> object:
    return _task("evaluate_checkpoint", checkpoint=str(folder / CHECKPOINT))(folder, try_)


def _staged(folder: Path) -> None:
    (folder / CHECKPOINT).mkdir()
    for name in ("open_run", "stage_dataset"):
        pipeline(folder).run(name)


def _evaluation_is_whole(folder: Path) -> None:
    _read_if_there(folder, _evaluation)


def _evaluation(scope: RunScope) -> EvaluationResult:
    return run_files.read(scope, run_files.EVALUATION_FILE, EvaluationResult, made_by="nobody")


def _check_evaluation(folder: Path, generation: int) -> None:
    assert _evaluation(pipeline(folder).scope).loss == pytest.approx(4.0 + 0.1 * generation)


def _evaluating(folder: Path) -> None:
    """Leave an evaluation that runs for as long as nobody ends it."""
    _staged(folder)
    (folder / "hold").touch()
    pipeline(folder).defer("evaluate_checkpoint", checkpoint=str(folder / CHECKPOINT))
    wait_until(lambda: _evaluators(folder), LIMIT_S)


def _evaluators(folder: Path) -> list[Seen]:
    return processes(pipeline(folder).scope.evaluation_key, program=_evaluator(folder))


def _check_released(folder: Path, _generation: int) -> None:
    assert not any(each.runs_rank for each in _evaluators(folder))
    assert pipeline(folder).run("release")["stopped"] == []


def _records(folder: Path, number: int) -> list[ev.AnyEvent]:
    return [ev.Woke(at_s=float(number))]


def _bundled(folder: Path) -> None:
    """Leave a journal whose first records are bundled, so that their numbers are free in the store."""
    journals.BUNDLE_SIZE = 4
    journal = Journal(LocalStore(str(folder)), RUN)
    for number in range(1, 13):
        journal.append(_records(folder, number), number=number)


def _append_too_late(folder: Path, _try: Try) -> None:
    """Be a worker that stood still since it had read two records."""
    with contextlib.suppress(JournalRaceError):
        Journal(LocalStore(str(folder)), RUN).append([ev.Woke(at_s=-1.0)], number=3)


def _journal_is_whole(folder: Path) -> None:
    assert Journal(LocalStore(str(folder)), RUN).read() == tuple(ev.Woke(at_s=float(each)) for each in range(1, 13))


def _check_journal(folder: Path, _generation: int) -> None:
    _journal_is_whole(folder)
    store = LocalStore(str(folder))
    Journal(store, RUN).compact()
    assert [Path(info.key).stem for info in store.list(f"runs/{RUN}/journal/")] == [
        f"{each:08d}" for each in range(9, 13)
    ]


def _tell_agents(folder: Path, _try: Try) -> float:
    """Say down a channel all that control ever says; return when the last lease that agents can honour ends."""
    channel = DirectoryChannel(str(folder / "channel"))
    channel.renew(until_s=100.0)
    channel.order_checkpoint()
    channel.order_interval(interval_s=9.0)
    channel.extend(until_s=700.0)
    return channel.revoke(at_s=50.0, lease_s=60.0)


def _check_channel(folder: Path, _generation: int) -> None:
    down = DirectoryLink(str(folder / "channel"), node="n0").down()
    assert down.lease_until_s is None, "a revoked lease is honoured"
    assert DirectoryChannel(str(folder / "channel")).lease_until_s() == 700.0
    assert DirectoryChannel(str(folder / "channel")).revoke(at_s=9e9, lease_s=60.0) == 700.0


def _take_snapshot(folder: Path, _try: Try) -> object:
    with opened_by_the_provider(real_time_cloud()):
        return take_snapshot({"sim": {}}, ["sim.8x"], keep=1)


def _old_snapshot(folder: Path) -> None:
    old = MarketSnapshot(taken_at_s=1_750_000_000.0, offers=(sim_pool().offer,))
    LocalStore(str(folder / "state")).put(snapshot_key(old.taken_at_s), encode_snapshot(old))


def _market_is_whole(folder: Path) -> None:
    assert SnapshotPrices(LocalStore(str(folder / "state"))).offers(now_s=time.time()).offers


def _check_market(folder: Path, _generation: int) -> None:
    store = LocalStore(str(folder / "state"))
    assert len(SnapshotPrices(store).offers(now_s=time.time()).offers) == 2
    assert len(list(store.list(PREFIX))) == 1


def _be_interrupted(folder: Path, try_: Try) -> None:
    """Watch a run that has rented, in a cloud that announces to take a node."""
    made = pipeline(folder, try_.generation)
    with opened_by_the_provider(real_time_cloud()) as cloud:
        made.run("provision", context=try_.context)
        cloud.notify(NodeId(min(cloud.billed())), NodeNotice(kind=NoticeKind.INTERRUPTION))
        passes, watched = LeasePasses(), Watched(scope=made.scope, channel_root=str(folder / "channel"))
        for _ in range(2):
            passes.make([watched])


def _check_interruption(folder: Path, _generation: int) -> None:
    assert read_json(folder / "channel" / "down" / "orders.json")["checkpoint_seq"] in (1, 2)


RENTED = Sighting(at_s=1.0, up={"a": True}, in_stock=True)


def _remember(folder: Path, _try: Try) -> None:
    """See the pools twice, as a rental policy does."""
    memory = MemoryFile(LocalStore(str(folder / "state")), RUN)
    for _ in range(2):
        memory.write(memory.read().seen(RENTED))


def _memory_is_whole(folder: Path) -> None:
    assert all(each == RENTED for each in MemoryFile(LocalStore(str(folder / "state")), RUN).read().sightings)


def _check_memory(folder: Path, _generation: int) -> None:
    assert len(MemoryFile(LocalStore(str(folder / "state")), RUN).read().sightings) >= 2


def _allow(folder: Path, _try: Try) -> object:
    return Allowances(LocalStore(str(folder / "state")), RUN).allow(5.0, at_s=1.0)


def _check_allowance(folder: Path, _generation: int) -> None:
    assert Allowances(LocalStore(str(folder / "state")), RUN).newest_usd() == 5.0


def _calibrate(folder: Path, _try: Try) -> object:
    return calibration_file.save(LocalStore(str(folder / "state")), Calibration(fitted_on="2026-11-30"))


def _old_calibration(folder: Path) -> None:
    calibration_file.save(LocalStore(str(folder / "state")), Calibration(fitted_on="2026-11-01"))


def _calibration_is_whole(folder: Path) -> None:
    kept = calibration_file.load(LocalStore(str(folder / "state")))
    assert kept is not None
    assert kept.fitted_on in {"2026-11-01", "2026-11-30"}


def _check_calibration(folder: Path, _generation: int) -> None:
    kept = calibration_file.load(LocalStore(str(folder / "state")))
    assert kept is not None
    assert kept.fitted_on == "2026-11-30"


PARTS: dict[str, Part] = {
    "calibration": Part(
        act=_calibrate,
        points=("calibration.",),
        prepare=_old_calibration,
        whole=_calibration_is_whole,
        check=_check_calibration,
        follow_ups=("retried", "thawed"),
    ),
    "memory": Part(
        act=_remember,
        points=("rental.",),
        whole=_memory_is_whole,
        check=_check_memory,
        follow_ups=("retried", "thawed"),
    ),
    "allowance": Part(
        act=_allow,
        points=("budget.",),
        check=_check_allowance,
        follow_ups=("retried", "thawed"),
    ),
    "market": Part(
        act=_take_snapshot,
        points=("market.",),
        prepare=_old_snapshot,
        whole=_market_is_whole,
        check=_check_market,
        follow_ups=("retried", "thawed"),
    ),
    "interruption": Part(
        act=_be_interrupted,
        points=("leases.order_checkpoint",),
        check=_check_interruption,
        follow_ups=("retried", "thawed"),
    ),
    "channel": Part(
        act=_tell_agents,
        points=("channel.directory.",),
        check=_check_channel,
        follow_ups=("retried", "thawed"),
    ),
    "open": Part(act=_task("open_run"), points=("run_files.",), whole=_spec_is_whole, check=_check_spec),
    "stage": Part(
        act=_task("stage_dataset"),
        points=("staging.", "run_files."),
        prepare=_stage_another_text,
        whole=_dataset_is_whole,
        check=_check_dataset,
    ),
    "plan": Part(act=_task("plan_training"), points=("run_files.",), prepare=_staged, check=_check_plan),
    "evaluate": Part(
        act=_evaluate,
        points=("evaluation.", "run_files.", "single.", "intents."),
        prepare=_staged,
        whole=_evaluation_is_whole,
        check=_check_evaluation,
        holds=True,
    ),
    "release": Part(
        act=_task("release"),
        points=("single.", "local.abandon.", "local.submit.tidy"),
        prepare=_evaluating,
        check=_check_released,
        follow_ups=("retried", "thawed"),
    ),
    "report": Part(
        act=_task("report"), points=("report.",), prepare=_open, whole=_report_is_whole, check=_check_report
    ),
    "late_append": Part(
        act=_append_too_late,
        points=("journal.", "objects.local."),
        prepare=_bundled,
        whole=_journal_is_whole,
        check=_check_journal,
        follow_ups=("retried", "thawed"),
    ),
}


def combinations() -> Iterator[Combination]:
    """Yield every combination: each part is played unharmed once, to see which points it passes."""
    for name, part in PARTS.items():
        for shot in _passages(name):
            for follow_up in part.follow_ups:
                yield Combination("part", name, shot, follow_up)


@functools.cache
def _passages(name: str) -> tuple[Shot, ...]:
    with _site(name) as folder:
        shots = _player(name, folder).start(records=True).passages()
    return tuple(shot for shot in shots if shot.point.startswith(PARTS[name].points))


def run(combination: Combination) -> Findings:
    """Shoot, follow up, and check. Raises ``AssertionError`` when anything is not as it must be."""
    part = PARTS[combination.scenario]
    successor = CLEARED if combination.follow_up.endswith("cleared") else RETRIED
    with _site(combination.scenario) as folder:
        observer = Observer(pipeline(folder).scope.evaluation_key, _evaluator(folder))
        with observer.watching():
            if combination.follow_up.startswith("thawed"):
                _freeze(combination, folder, successor)
            else:
                victim = _player(combination.scenario, folder).start(shot=combination.shot)
                assert victim.end() == -signal.SIGKILL, f"it was never there\n{victim.log()}"
                part.whole(folder)
                _let_go(part, folder)
                _player(combination.scenario, folder, successor).start().result()
            part.whole(folder)
            part.check(folder, successor.generation)
        wait_until(lambda: not _evaluators(folder), LIMIT_S)
        assert not (folder / "overlap").exists()
        observer.look()
        return Findings(
            engine="part",
            follow_up=combination.follow_up,
            max_alive=observer.max_gangs,
            alive_after=observer.look(),
            steps_beyond=0,
        )


def _freeze(combination: Combination, folder: Path, successor: Try) -> None:
    """Stop the process at the shot; have another take its place; then let the first go on, in the middle of that."""
    part, name = PARTS[combination.scenario], combination.scenario
    first = _player(name, folder).start(shot=combination.shot, number=signal.SIGSTOP)
    first.wait_until_it_stands_still()
    part.whole(folder)
    second = _player(name, folder, successor).start()
    wait_until(
        lambda: not second.process.is_alive() or _waits_for_a_lock(second.process.pid) or _is_held(folder), LIMIT_S
    )
    first.thaw()
    _let_go(part, folder)
    first.end()  # Airflow runs no more of it: how it ends is nobody's business
    second.result()


def _let_go(part: Part, folder: Path) -> None:
    if part.holds:
        (folder / "hold").unlink(missing_ok=True)


def _is_held(folder: Path) -> bool:
    return (folder / "hold").exists() and any(each.runs_rank for each in _evaluators(folder))


def _waits_for_a_lock(pid: int) -> bool:
    """Whether a process stands before a lock that another holds, as the kernel tells."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any(words[1] == "->" and words[5] == str(pid) for words in map(str.split, lines))


@contextlib.contextmanager
def _site(name: str) -> Iterator[Path]:
    """Yield the folder of a part that is about to be played; whatever of it still runs in the end is ended."""
    with (
        tempfile.TemporaryDirectory(prefix="llmsched-crash-", ignore_cleanup_errors=True) as root,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(root)
        patch.setenv(*_state_root(folder))
        Path(_evaluator(folder)).write_text(EVALUATOR)
        Actor(_prepare, name, folder, files=folder / "prepare").start().result()
        try:
            yield folder
        finally:
            (folder / "hold").unlink(missing_ok=True)
            for each in _evaluators(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)


def _player(name: str, folder: Path, try_: Try = FIRST) -> Actor:
    marks = folder / "hold" if PARTS[name].holds else None
    return Actor(_play, name, folder, try_, files=folder / name, marks=marks)


def _prepare(name: str, folder: Path) -> None:
    os.environ.update([_state_root(folder)])
    PARTS[name].prepare(folder)


def _play(name: str, folder: Path, try_: Try) -> object:
    """Be the process that plays a part."""
    os.environ.update([_state_root(folder)])
    return PARTS[name].act(folder, try_)


def _state_root(folder: Path) -> tuple[str, str]:
    return "AIRFLOW__LLMSCHED__STATE_ROOT", str(folder / "state")


def _read_if_there(folder: Path, read: Callable[[RunScope], object]) -> None:
    """Read a file of the run, which may be absent but not damaged."""
    try:
        read(pipeline(folder).scope)
    except DataError as error:
        if "is absent" not in str(error):
            raise
