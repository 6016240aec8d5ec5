"""The evaluation gang: one rank on the same engine, with no recovery of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import time
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import holds
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.intents import evaluation_intents
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.control.single import SingleRun, SingleSettings, stop_all
from airflow_llmsched.control.snapshots import rebuild
from airflow_llmsched.domain.dataset import DatasetManifest
from airflow_llmsched.domain.gang import GangSpec, Launcher
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NotPlaced, Placement, PlacementProblem
from airflow_llmsched.domain.run_report import EvaluationResult
from airflow_llmsched.domain.workload import EvaluationSpec, WorkloadSpec
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CapacityError, DataError
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.channels import channel_dir, flush_interval_s, open_channel
from airflow_llmsched.provider.engine import open_engine
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.provider.trainer_settings import EVALUATOR, train_settings
from airflow_llmsched.trainers.settings import DATASET_VARIABLE, TRAIN_VARIABLE

_FOLDER = EffectPoint("evaluation.folder")

CHECKPOINT_VARIABLE = "LLMSCHED_CHECKPOINT"
OUTPUT_VARIABLE = "LLMSCHED_OUTPUT"
STOP_GRACE_S = 5.0

log = logging.getLogger(__name__)


def trained_checkpoint(scope: RunScope) -> str:
    """Return the path of the checkpoint that training ended with. Raises ``DataError`` when there is none."""
    state = rebuild(Journal(scope.store(), scope.run_key)).state
    if state.phase is not RunPhase.SUCCEEDED:
        raise DataError(f"run {scope.run_key} is {state.phase}, not succeeded: let RunGangOperator finish first")
    if state.checkpoint is None:
        raise DataError(f"run {scope.run_key} saved no checkpoint: set checkpoint in the spec to evaluate it")
    return state.checkpoint.path


def open_evaluation(settings: GangSettings, *, checkpoint: str) -> SingleRun:
    """Return the driver of the evaluation of ``checkpoint``, which nobody deletes while it is read."""
    spec = run_files.read_spec(settings.scope)
    evaluation = spec.evaluation or EvaluationSpec()
    hook = PlacementHook(engine=settings.engine, engine_options=settings.engine_options)

    def make_gang(key: AttemptKey) -> GangSpec:
        limit_s = time.time() + evaluation.limit_s
        _hold(settings, checkpoint, until_s=min(limit_s, settings.deadline_s or limit_s) + spec.launcher.grace_s)
        return _gang(settings, spec, evaluation, key=key, checkpoint=checkpoint, placement=_one_rank(hook))

    return SingleRun(
        SingleSettings(
            key=settings.scope.evaluation_key,
            generation=settings.generation,
            grace_s=spec.launcher.grace_s,
            start_limit_s=spec.launcher.start_limit_s,
            hang_limit_s=evaluation.limit_s,
            poll_interval_s=settings.poll_interval_s,
            deadline_s=settings.deadline_s,
            lease_s=settings.lease_s,
            capacity_wait_s=settings.capacity_wait_s,
            run_dir=channel_dir(settings.scope),
        ),
        engine=open_engine(settings.engine, settings.engine_options),
        clock=SystemClock(),
        make_gang=make_gang,
        open_channel=open_channel,
        intents=evaluation_intents(settings.scope.store(), settings.scope.run_key),
    )


def stop_evaluation(settings: GangSettings, *, through_generation: int | None = None) -> tuple[str, ...]:
    """Stop the run's live evaluation gangs, or those up to a generation; return their names. Idempotent.

    Needs neither checkpoint nor data. Raises ``CouldNotLookError``, ``StoreError``.
    """
    return stop_all(
        open_engine(settings.engine, settings.engine_options),
        settings.scope.evaluation_key,
        evaluation_intents(settings.scope.store(), settings.scope.run_key),
        grace_s=STOP_GRACE_S,
        through_generation=through_generation,
    )


def read_evaluation(settings: GangSettings, *, checkpoint: str, attempt: int, now_s: float) -> EvaluationResult:
    """Read what the evaluator of this launch wrote and apply the spec's gate; a loss that is not finite never passes.

    Raises ``DataError`` naming the file when it is no result.
    """
    evaluation = run_files.read_spec(settings.scope).evaluation or EvaluationSpec()
    with contextlib.suppress(OSError):  # it ends by itself
        holds.release(checkpoint, name=_hold_name(settings))
    path = _output(settings, attempt)
    try:
        written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        loss, step = float(written["loss"]), int(written["checkpoint_step"])
        num_tokens = None if written.get("num_tokens") is None else int(written["num_tokens"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no evaluation result ({type(error).__name__}: {error}): the evaluator must write JSON with "
            "loss and checkpoint_step there before it exits 0"
        ) from error
    finite = math.isfinite(loss)
    return EvaluationResult(
        checkpoint_step=step,
        loss=loss if finite else None,
        passed=finite and (evaluation.max_loss is None or loss <= evaluation.max_loss),
        max_loss=evaluation.max_loss,
        num_tokens=num_tokens,
        checkpoint_path=checkpoint,
        evaluated_at_s=now_s,
    )


def why_not_passed(result: EvaluationResult) -> str:
    """Return what is wrong with a result that did not pass, and what to do."""
    if result.loss is None:
        return (
            f"held-out loss at step {result.checkpoint_step} is not a finite number: the model has diverged, or the "
            "evaluator is at fault; look at its log"
        )
    return (
        f"held-out loss {result.loss:.4f} at step {result.checkpoint_step} is above the gate {result.max_loss}: "
        "train longer, or change evaluation.max_loss in the spec"
    )


def _gang(
    settings: GangSettings,
    spec: WorkloadSpec,
    evaluation: EvaluationSpec,
    *,
    key: AttemptKey,
    checkpoint: str,
    placement: Placement,
) -> GangSpec:
    scope = settings.scope
    manifest = run_files.read(scope, run_files.DATASET_FILE, DatasetManifest, made_by="StageDatasetOperator")
    manifest_path = f"{manifest.root}/manifest.json"
    output = _output(settings, key.attempt)
    with _FOLDER:
        output.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **spec.launcher.environment,
        CHECKPOINT_VARIABLE: checkpoint,
        DATASET_VARIABLE: manifest_path,
        OUTPUT_VARIABLE: str(output),
    }
    command = evaluation.command
    if not command:
        environment[TRAIN_VARIABLE] = train_settings(spec).to_json()
        arguments = {"checkpoint": checkpoint, "dataset": manifest_path, "output": str(output)}
        command = (
            *(sys.executable, "-m", EVALUATOR, "--num-batches", str(evaluation.num_batches)),
            *(part for name, value in arguments.items() for part in (f"--{name}", value)),
        )
    return GangSpec(
        key=key,
        placement=placement,
        layout=ParallelLayout(dp=1),
        command=command,
        channel_root=f"{channel_dir(scope)}/channel/{key.name}",
        launcher=Launcher.PLAIN,
        environment=environment,
        start_limit_s=spec.launcher.start_limit_s,
        grace_s=spec.launcher.grace_s,
        flush_interval_s=flush_interval_s(settings.poll_interval_s),
        lease_s=settings.lease_s,
        origin=scope.origin,
    )


def _hold(settings: GangSettings, checkpoint: str, *, until_s: float) -> None:
    try:
        holds.hold(checkpoint, name=_hold_name(settings), until_s=until_s)
    except OSError as error:
        log.warning("cannot keep %s from being deleted while it is evaluated: %s", checkpoint, error)


def _hold_name(settings: GangSettings) -> str:
    return f"{settings.scope.evaluation_key}-g{settings.generation}"


def _output(settings: GangSettings, attempt: int) -> Path:
    """Return where the evaluator of a launch writes: no launch's result can stand for another's."""
    return settings.scope.directory / "evaluation" / f"generation-{settings.generation}-attempt-{attempt}.json"


def _one_rank(hook: PlacementHook) -> Placement:
    result = hook.place(PlacementProblem(layout=ParallelLayout(dp=1), tree=hook.topology()))
    if isinstance(result, NotPlaced):
        raise CapacityError(f"no slot for the evaluation: {result.summary}")
    return result.placement
