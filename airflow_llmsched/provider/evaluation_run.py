"""The evaluation gang: one rank on the same engine, with no recovery of its own."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.agent import holds
from airflow_llmsched.control.intents import evaluation_intents
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.places import CheckpointPlaces
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.control.single import SingleRun, give_back, stop_all
from airflow_llmsched.control.snapshots import rebuild
from airflow_llmsched.domain.dataset import DatasetManifest
from airflow_llmsched.domain.fleet import cluster_of
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NotPlaced, Placement, PlacementProblem, RankSlot
from airflow_llmsched.domain.queue import QueuedGang, SliceAsk
from airflow_llmsched.domain.queue_rules import DEFAULT_PRIORITY, DEFAULT_TEAM
from airflow_llmsched.domain.run_report import EvaluationResult
from airflow_llmsched.domain.topology import Division, TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import EvaluationSpec, WorkloadSpec
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CapacityError, DataError, RelaxError
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.channels import channel_dir, flush_interval_s
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.places import checkpoint_root, cluster_places
from airflow_llmsched.provider.run_engine import open_run_engine
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.provider.side_claims import open_claims
from airflow_llmsched.provider.side_gangs import open_side_gang
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
    by_cluster = cluster_places(settings.scope.run_key, engine=settings.engine)
    places = CheckpointPlaces(checkpoint_root(settings.scope, spec), by_cluster)
    engine = open_run_engine(settings.engine, settings.engine_options)
    claims = open_claims(
        settings, key=settings.scope.evaluation_key, engine=engine, spec=spec, runs_for_s=evaluation.limit_s
    )
    fitting = _OneRank(hook, places, checkpoint, key=settings.scope.evaluation_key, slices=evaluation.slices)

    def make_gang(key: AttemptKey) -> GangSpec:
        limit_s = time.time() + evaluation.limit_s
        _hold(settings, checkpoint, until_s=min(limit_s, settings.deadline_s or limit_s) + spec.launcher.grace_s)
        placement = fitting.place(engine.topology()) if claims is None else claims.hold(fitting, key=key)
        seen = places.of_cluster(cluster_of(placement.nodes[0])).as_nodes_see(checkpoint)
        gang = _gang(settings, spec, evaluation, key=key, checkpoint=seen, placement=placement)
        return replace(gang, accelerator_vendor=fitting.vendor)

    return open_side_gang(
        settings,
        spec,
        key=settings.scope.evaluation_key,
        engine=engine,
        intents=evaluation_intents(settings.scope.store(), settings.scope.run_key),
        make_gang=make_gang,
        limit_s=evaluation.limit_s,
        holding=claims,
    )


def stop_evaluation(settings: GangSettings, *, through_generation: int | None = None) -> tuple[str, ...]:
    """Stop the run's live evaluation gangs, or those up to a generation, and give back what they held. Idempotent.

    Returns their names. Needs neither checkpoint nor data. Raises ``CouldNotLookError``, ``StoreError``.
    """
    engine, key = open_run_engine(settings.engine, settings.engine_options), settings.scope.evaluation_key
    intents = evaluation_intents(settings.scope.store(), settings.scope.run_key)
    stopped = stop_all(engine, key, intents, grace_s=STOP_GRACE_S, through_generation=through_generation)
    claims = open_claims(settings, key=key, engine=engine)
    if claims is not None:
        give_back(engine, intents, claims, through_generation=through_generation)
    return stopped


def read_evaluation(settings: GangSettings, *, checkpoint: str, attempt: int, now_s: float) -> EvaluationResult:
    """Read what the evaluator of this launch wrote and apply the spec's gate; a loss that is not finite never passes.

    Raises ``DataError`` naming the file when it is no result.
    """
    evaluation = run_files.read_spec(settings.scope).evaluation or EvaluationSpec()
    with contextlib.suppress(OSError):  # it ends by itself
        holds.release(checkpoint, name=_hold_name(settings))
    path = _output(settings, attempt)
    try:
        written: dict[str, Any] = codec.parse_json(path.read_text(encoding="utf-8"))
        loss, step = float(written["loss"]), int(written["checkpoint_step"])
        num_tokens = None if written.get("num_tokens") is None else int(written["num_tokens"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
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


class _OneRank:
    """Where the evaluation fits: where its checkpoint can be read. A fleet's other clusters do not see every storage.

    ``vendor`` is who made the accelerators of the node that was chosen last; empty: not known.
    """

    def __init__(
        self, hook: PlacementHook, places: CheckpointPlaces, checkpoint: str, *, key: RunKey, slices: SliceAsk | None
    ) -> None:
        self.vendor = ""
        self._slices = slices
        self._hook = hook
        self._places = places
        self._checkpoint = checkpoint
        self._key = key

    def place(self, tree: TopologyTree) -> Placement:
        """Return the place of its rank. Raises ``CapacityError``."""
        reaching = self._reaching(tree)
        nodes = tuple(node for node in tree.nodes if node.id in reaching)
        placement = self._whole(replace(tree, nodes=nodes)) if self._slices is None else self._slice(nodes)
        shape = node_shapes().get(next(node.shape for node in nodes if node.id == placement.nodes[0]))
        self.vendor = shape.accelerator.vendor if shape else ""
        return placement

    def asks(self, tree: TopologyTree) -> QueuedGang:
        """Return one accelerator, or slice, of any node that reaches the checkpoint."""
        excluded = frozenset(node.id for node in tree.nodes) - self._reaching(tree)
        gang = QueuedGang(key=self._key, team=DEFAULT_TEAM, priority_class=DEFAULT_PRIORITY, excluded=excluded)
        if self._slices is not None:
            _refuse_undivided(tree.nodes, self._slices)
        return replace(gang, slices=self._slices)

    def _whole(self, tree: TopologyTree) -> Placement:
        result = self._hook.place(PlacementProblem(layout=ParallelLayout(dp=1), tree=tree))
        if isinstance(result, NotPlaced):
            raise CapacityError(f"no slot for the evaluation: {result.summary}")
        return result.placement

    def _slice(self, nodes: Sequence[TopologyNode]) -> Placement:
        """Place it on a slice of the accelerator that has the fewest left."""
        _refuse_undivided(nodes, self._slices)
        found = [
            (len(each.free), node.id, each.free[0])
            for node in nodes
            if not node.unusable_reason
            for each in node.divisions
            if each.free and _is_of(each, self._slices)
        ]
        if not found:
            raise CapacityError("no slot for the evaluation: no slice of an accelerator is free")
        _, node, slot = min(found)
        return Placement(slots=(RankSlot(rank=0, node=node, slot=slot, local_rank=0),))

    def _reaching(self, tree: TopologyTree) -> frozenset[NodeId]:
        holder = self._places.holding(self._checkpoint)
        if holder is None or len(self._places.all) == 1:
            return frozenset(node.id for node in tree.nodes)
        return frozenset(
            node.id for node in tree.nodes if self._places.of_cluster(cluster_of(node.id)).root == holder.root
        )


def _refuse_undivided(nodes: Sequence[TopologyNode], ask: SliceAsk | None) -> None:
    if not any(_is_of(each, ask) for node in nodes for each in node.divisions):
        kind = "" if ask is None or ask.kind is None else f" by {ask.kind.value}"
        raise RelaxError(f"evaluation.slice: no accelerator of the engine is divided{kind}: leave it out")


def _is_of(division: Division, ask: SliceAsk | None) -> bool:
    """Whether an accelerator is divided as was asked for."""
    return ask is None or ask.kind is None or ask.kind.value == division.kind
