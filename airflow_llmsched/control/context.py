"""What a worker knows about its run beside the journal, and what comes of acting on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.domain.checkpoint import CheckpointRef, VerifyDepth
from airflow_llmsched.domain.health import Fault
from airflow_llmsched.domain.identity import NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.workload import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The caller's side of a run. ``generation`` is the caller's count, which a clear advances and a retry does not.

    ``owner`` names who acts (a task-instance id): ``cancel`` by any other than the last to ``start`` does nothing.
    ``owner_since_s`` is when it set out (None: when it calls ``start``): of two that begin, the later one is right.
    ``origin`` is what its gangs say of themselves. ``command`` and ``environment`` are what every rank runs with;
    ``checkpoint_root`` is what all attempts save below, but on clusters, and in regions that are rented in, with a
    storage of their own: ``places``.
    ``unfit`` are nodes that nothing may be launched on, and why: checks before the run spoke against them.
    ``checked_as`` is what those checks claim as, where they do: what they hold becomes the run's at its first launch.
    ``first_plan`` is used for the first launch while its nodes are free. ``num_steps`` is how many steps a complete run
    has (None: exit 0 is success). ``deadline_s`` is absolute, in Unix seconds. A run waits up to ``capacity_wait_s``
    for what it needs. A gang is reviewed every ``review_every_s`` (None: never). ``channel_dir`` is where channels
    live (default: ``run_dir``).
    """

    run_key: RunKey
    generation: int
    workload: WorkloadSpec
    run_dir: str
    checkpoint_root: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    unfit: Mapping[NodeId, str] = field(default_factory=dict)
    checked_as: RunKey | None = None
    first_plan: Plan | None = None
    num_steps: int | None = None
    deadline_s: float | None = None
    owner: str = ""
    owner_since_s: float | None = None
    origin: RunOrigin | None = None
    dag_id: str = ""
    run_id: str = ""
    poll_interval_s: float = 2.0
    flush_interval_s: float = 0.5
    lease_s: float | None = None
    handoff_limit_s: float = 600.0
    max_look_errors: int = 5
    capacity_wait_s: float = 3600.0
    capacity_poll_s: float = 5.0
    review_every_s: float | None = None
    verify_depth: VerifyDepth = VerifyDepth.CONTENT
    channel_dir: str = ""
    places: Mapping[str, CheckpointPlace] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Watch by ``state`` (``watching.step`` or ``watching.watch``) and hand the event to ``RunDriver.handle``."""

    state: WatchState
    kind: Literal["watch"] = "watch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The run is complete. ``checkpoint`` is the newest sound one, None when the trainer saves none."""

    checkpoint: CheckpointRef | None
    last_step: int | None
    num_attempts: int
    note: str = ""
    kind: Literal["succeeded"] = "succeeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The generation is over and nothing of it is alive. ``fault`` is the one that was given up on, if one was."""

    reason: str
    fault: Fault | None = None
    cancelled: bool = False
    kind: Literal["failed"] = "failed"


Outcome = Watch | Succeeded | Failed
