"""One run on the local engine as the processes of the crash harness share it: a folder, and all else made from it.

A worker, a triggerer, a teardown and a reaper are each a process of their own (``House.actor``). What it hands on it
leaves in the folder.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control import fencing, runs, snapshots
from airflow_llmsched.control import journal as journals
from airflow_llmsched.control.closing import SPEC_FILE, open_closing_driver
from airflow_llmsched.control.context import Outcome, RunContext, Watch
from airflow_llmsched.control.deployment import deployment_id
from airflow_llmsched.control.events import Handover
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.poller import KeepWatching, WatchState
from airflow_llmsched.control.reaper import AirflowWord, Reap, ReaperLimits
from airflow_llmsched.control.reaping import Reaper
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.control.task_files import task_file_key
from airflow_llmsched.control.watching import step
from airflow_llmsched.domain.identity import NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import RetrySpec, WorkloadSpec
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.objects.remote import RemoteStore
from airflow_llmsched.ports import ObjectStore, RunChannel
from airflow_llmsched.telemetry.channel import DirectoryChannel, open_witness
from airflow_llmsched.telemetry.http_channel import ObjectChannel
from tests.support import crash_rank, seaweed
from tests.support.crash_actor import LIMIT_S, Actor
from tests.support.sim_house import plan_of, workload_of

RANK = str(Path(crash_rank.__file__))
_PYTHON = sys.executable
REAPER_LIMITS = ReaperLimits(skew_s=0.0, silence_s=0.5, unleased_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all processes of one run agree on.

    ``fails``: a rank of the first gang fails. ``misstarts``: a supervisor of the first launch does not start.
    ``ends_early``: the deadline strikes in the middle. ``holds``: at the shot, ranks begin to stand still. ``s3``: the
    address of the server in whose bucket journal and channels are; none: they are in the folder.
    """

    root: str
    run_key: str
    s3: str = ""
    fails: bool = False
    misstarts: bool = False
    ends_early: bool = False
    holds: bool = True
    lease_s: float = 60.0


class House:
    """The run, seen by one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.root = Path(settings.root)
        self.run_key = RunKey(settings.run_key)
        self.store: ObjectStore = self._bucket("state") if settings.s3 else LocalStore(str(self.root / "state"))
        self.engine = LocalEngine(root=str(self.root / "engine"), num_nodes=4, slots_per_node=1)
        self.clock = SystemClock()
        self.began_at_s = self.clock.now_s()

    def driver(self, *, owner: str, generation: int = 0) -> RunDriver:
        """Return the driver of a worker that Airflow started when this process began."""
        origin = RunOrigin(deployment_id=deployment_id(self.store), run=self.run_key, dag_id="gone", run_id="manual")
        deadline = self.root / "deadline"
        context = RunContext(
            run_key=self.run_key,
            generation=generation,
            workload=self.workload,
            run_dir=str(self.root / "run"),
            checkpoint_root=str(self.root / "checkpoints"),
            command=(_PYTHON, "-S", "-E", RANK, str(self.root), "fails" if self.settings.fails else "works"),
            num_steps=crash_rank.NUM_STEPS,
            deadline_s=float(deadline.read_text()) if deadline.exists() else None,
            owner=owner,
            owner_since_s=self.began_at_s,
            origin=origin,
            dag_id="gone",
            run_id="manual",
            poll_interval_s=0.05,
            flush_interval_s=0.05,
            lease_s=self.settings.lease_s,
            handoff_limit_s=5.0,
            channel_dir=f"s3://{seaweed.BUCKET}/{self.run_key}" if self.settings.s3 else "",
        )
        return RunDriver(
            context=context,
            journal=self.journal,
            engine=self.engine,
            planner=partial(_two_nodes, from_behind=owner != "try-1"),
            checkpoints=DcpFormat(),
            open_channel=self.open_channel,
            clock=self.clock,
        )

    def actor(self, role: str, *, owner: str = "try-1", generation: int = 0) -> Actor:
        """Return a process that is to play ``role``. Once it is shot, ranks hold where the run's settings say so."""
        marks = self.root / "hold" if self.settings.holds else None
        return Actor(play, self.settings, role, owner, generation, files=self.root / role, marks=marks)

    def open_channel(self, channel_root: str) -> RunChannel:
        """Open control's end of an attempt's channel."""
        if not self.settings.s3:
            return DirectoryChannel(channel_root)
        name = channel_root.rpartition("/")[2]
        store = self._bucket(f"channel/{name}")
        return ObjectChannel(store, "", presigner=store, links=self.root / "links" / name)

    def _bucket(self, prefix: str) -> RemoteStore:
        return RemoteStore(
            f"s3://{seaweed.BUCKET}/{self.run_key}/{prefix}",
            config=seaweed.config(self.settings.s3),
            client_options={"allow_http": True},
        )

    def misstarting_python(self) -> Path:
        """Return a Python that fails the second time that anyone starts it."""
        path = self.root / "python"
        if not path.exists():
            root, python = shlex.quote(str(self.root)), shlex.quote(sys.executable)
            path.write_text(
                f"#!/bin/sh\nmkdir {root}/start-1 2>/dev/null || {{ mkdir {root}/start-2 2>/dev/null && exit 1; }}\n"
                f'exec {python} "$@"\n'
            )
            path.chmod(0o700)
        return path

    @property
    def workload(self) -> WorkloadSpec:
        """Return what the run's spec says, which its teardown reads too."""
        spec = workload_of(retries=RetrySpec(max_code_failures=5))
        return replace(spec, launcher=replace(spec.launcher, kind=Launcher.PLAIN, grace_s=0.5))

    def open(self) -> House:
        """Leave the spec where a teardown looks for it."""
        self.store.put(task_file_key(self.run_key, SPEC_FILE, try_number=1), codec.to_json(self.workload))
        return self

    @property
    def journal(self) -> Journal:
        return Journal(self.store, self.run_key)

    def start(self, owner: str, generation: int) -> Outcome:
        """Be a worker until it defers or the run is over."""
        outcome = self.driver(owner=owner, generation=generation).start()
        if isinstance(outcome, Watch):
            (self.root / "deferred.json").write_bytes(codec.to_json(outcome.state))
        return outcome

    def trigger(self, _owner: str, _generation: int) -> Handover:
        """Be the triggerer of the task that was deferred, until it yields."""
        return self._watch(codec.from_json(WatchState, (self.root / "deferred.json").read_bytes()))

    def attempt(self, owner: str, generation: int) -> Outcome:
        """Be a whole try of the task that watches by itself."""
        return self._follow(self.driver(owner=owner, generation=generation).start(), owner, generation)

    def go_on(self, owner: str, generation: int) -> Outcome:
        """Be another triggerer, and then what follows, until the run is over."""
        state = codec.from_json(WatchState, (self.root / "deferred.json").read_bytes())
        return self._follow(Watch(state=state), owner, generation)

    def _follow(self, outcome: Outcome, owner: str, generation: int) -> Outcome:
        while isinstance(outcome, Watch):
            event = self._watch(outcome.state)
            driver = self.driver(owner=owner, generation=generation)
            outcome = driver.handle(event, yielded_at_s=self.clock.now_s())
        return outcome

    def _watch(self, state: WatchState) -> Handover:
        channel = self.open_channel(state.channel_root) if state.handle else None
        while True:
            state = self._in_the_middle(state)
            state, verdict = step(self.engine, channel, state, self.clock)
            if not isinstance(verdict, KeepWatching):
                return verdict.event
            time.sleep(verdict.after_s)

    def cancel(self, owner: str, generation: int) -> bool:
        """Be a worker that is told to end."""
        return self.driver(owner=owner, generation=generation).cancel("marked failed")

    def release(self, _owner: str, _generation: int) -> tuple[str, ...]:
        """Be the teardown."""
        return open_closing_driver(self.store, self.run_key, engine=self.engine, clock=self.clock).release()

    def reap(self, _owner: str, _generation: int) -> list[str]:
        """Be the reaper, until nothing is left that it would reap."""
        reaper = Reaper(
            store=self.store,
            deployment_id=deployment_id(self.store),
            engine=self.engine,
            open_witness=open_witness,
            ask=lambda _dag_id, _run_id: AirflowWord.RUNNING if self.is_cleared() else AirflowWord.UNKNOWN,
            clock=self.clock,
            limits=REAPER_LIMITS,
        )
        reaped: list[str] = []
        give_up_at_s = time.monotonic() + LIMIT_S
        while found := reaper.look():
            assert time.monotonic() < give_up_at_s, [each.verdict for each in found]
            for each in found:
                if isinstance(each.verdict, Reap):
                    reaped += reaper.reap(each).stopped
            time.sleep(0.05)
        return reaped

    def preempt(self, _owner: str, _generation: int) -> None:
        """Be the platform that takes a node of the first gang, for longer than the run lasts."""
        self.engine.preempt("n0", grace_s=0.5)

    def is_cleared(self) -> bool:
        """Whether a user has cleared the run that Airflow had no longer known."""
        return (self.root / "cleared").exists()

    def evidence(self) -> list[dict[str, Any]]:
        """Return what ranks wrote, in the order in which it happened."""
        path = self.root / "evidence.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def reached(self, number: int) -> bool:
        """Whether a rank 0 has done this step."""
        return any(each["what"] == "step" and each["step"] >= number for each in self.evidence())

    def _in_the_middle(self, state: WatchState) -> WatchState:
        """Once this has been watched in the middle of training, let it go on, or have the deadline strike."""
        path = self.root / "deadline"
        if not state.has_spoken or not self.reached(crash_rank.HOLDS_FROM_STEP):
            return state
        if not self.settings.ends_early:
            (self.root / "hold").unlink(missing_ok=True)
            return state
        if not path.exists():
            path.write_text(str(self.clock.now_s()))
        return replace(state, deadline_s=float(path.read_text()))


def _two_nodes(
    _workload: WorkloadSpec, tree: TopologyTree, excluded: frozenset[NodeId], *, from_behind: bool
) -> PlanSearch:
    """Plan for two free nodes: a later try for others, where the gang of a thawed one would have room as well."""
    free = [node.id for node in tree.nodes if node.usable_slots and node.id not in excluded]
    free = free[::-1] if from_behind else free
    if len(free) < 2:
        return PlanSearch(plans=(), rejections={"fewer than 2 free nodes": 1}, num_candidates=1)
    return PlanSearch(plans=(plan_of((free[0], 1), (free[1], 1)),), num_candidates=1)


ROLES: dict[str, Callable[[House, str, int], object]] = {
    "attempt": House.attempt,
    "start": House.start,
    "trigger": House.trigger,
    "go_on": House.go_on,
    "cancel": House.cancel,
    "release": House.release,
    "reap": House.reap,
    "preempt": House.preempt,
}


def play(settings: Settings, role: str, owner: str, generation: int) -> object:
    """Be a process that plays ``role`` of the run."""
    runs.CLOCK_SKEW_S = fencing.CLOCK_SKEW_S = 0.0  # one machine has one clock
    house = House(settings)
    if settings.misstarts:
        sys.executable = str(house.misstarting_python())
    if settings.s3:
        journals.BUNDLE_SIZE, snapshots.SNAPSHOT_EVERY = 4, 3  # as if the run had lasted for months
    return ROLES[role](house, owner, generation)
