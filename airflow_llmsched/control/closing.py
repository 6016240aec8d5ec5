"""A driver that can only end a run: for whoever has the run's journal and engine, but not what it was to train with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.control.task_files import newest_task_file
from airflow_llmsched.domain.checkpoint import CheckpointRef, Compatibility, Verdict, VerifyDepth
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import BudgetSpec, DatasetKind, DatasetSpec, TrainingStage, WorkloadSpec
from airflow_llmsched.errors import InternalError, ObjectMissingError
from airflow_llmsched.ports import Clock, Engine, ObjectStore, RunChannel

SPEC_FILE = "spec.json"
"""Name of a run's workload spec among its task files."""


def open_closing_driver(
    store: ObjectStore,
    run_key: RunKey,
    *,
    engine: Engine,
    clock: Clock,
    dag_id: str = "",
    run_id: str = "",
    ground: Ground | None = None,
) -> RunDriver:
    """Return a driver of which only ``release`` and what reads the journal may be called.

    What the run claims of ``ground`` is given back; who gets it is decided by whoever waits for it.

    How long ranks get to end is the spec's word, or the default where the spec never came or is damaged. Raises
    ``StoreError``.
    """
    spec = _spec(store, run_key)
    context = RunContext(
        run_key=run_key,
        generation=0,
        workload=spec,
        run_dir="",
        checkpoint_root="",
        command=(),
        dag_id=dag_id,
        run_id=run_id,
    )
    return RunDriver(
        context=context,
        journal=Journal(store, run_key),
        engine=engine,
        planner=_plan_nothing,
        checkpoints=_NoCheckpoints(),
        open_channel=_open_nothing,
        clock=clock,
        arbiter=None if ground is None else _Returns(ground, run_key),
    )


def _spec(store: ObjectStore, run_key: RunKey) -> WorkloadSpec:
    try:
        return codec.from_json(WorkloadSpec, newest_task_file(store, run_key, SPEC_FILE))
    except (ObjectMissingError, ValidationError):
        # Ending a run reads nothing of it but the launcher's grace.
        return WorkloadSpec(
            name="",
            stage=TrainingStage.PRETRAIN,
            model=None,
            data=DatasetSpec(kind=DatasetKind.FILES),
            batch=(),
            budget=BudgetSpec(),
        )


def _refuse() -> NoReturn:
    raise InternalError("a driver opened to end a run was asked to go on with it: report this with the journal")


def _plan_nothing(_workload: WorkloadSpec, _tree: TopologyTree, _excluded: frozenset[NodeId]) -> PlanSearch:
    _refuse()


def _open_nothing(_root: str) -> RunChannel:
    _refuse()


class _Returns:
    """An ``Arbitration`` that only gives back."""

    # ruff: noqa: ARG002  (the protocol's signatures)

    def __init__(self, ground: Ground, run: RunKey) -> None:
        self.ground = ground.name
        self._ground = ground
        self._run = run

    def choose(self, command: cmd.ChoosePlan, tree: TopologyTree, *, is_own: bool = False) -> NoReturn:
        _refuse()

    def order(self, key: AttemptKey) -> None:
        _refuse()

    def free(self, *, num_records: int, tree: Callable[[], TopologyTree]) -> None:
        self._ground.free(self._run, num_records=num_records)


class _NoCheckpoints:
    """A ``CheckpointFormat`` that nobody may ask."""

    # ruff: noqa: ARG002  (the port's signatures)

    name = "none"

    def scan(self, root: str) -> Iterator[CheckpointRef]:
        _refuse()

    def verify(self, ref: CheckpointRef, *, depth: VerifyDepth) -> Verdict:
        _refuse()

    def can_resume(self, ref: CheckpointRef, layout: ParallelLayout) -> Compatibility:
        _refuse()
