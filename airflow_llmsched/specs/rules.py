"""What must hold between the keys of a spec. Each rule names the key to change, and runs if what it reads is sound."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from airflow_llmsched.domain.layout import Offload, PipelineSchedule
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.domain.workload import (
    BatchPhase,
    BudgetSpec,
    CompressionKind,
    DatasetKind,
    LoraTarget,
    ModelShape,
    OptimizerKind,
    Positions,
    TrainingStage,
    count_steps,
)
from airflow_llmsched.specs.problems import Problem
from airflow_llmsched.specs.quantities import format_duration_s, format_tokens
from airflow_llmsched.specs.schema import SpecModel

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = "LLMSCHED_"
_SET_BY_LAUNCHER = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A spec whose named blocks are valid. ``shape`` and ``phases`` are None when they could not be worked out."""

    spec: SpecModel
    shape: ModelShape | None
    phases: tuple[BatchPhase, ...] | None


def check(sound: Sound, *, bad: Set[str]) -> Iterator[Problem]:
    """Yield every broken rule, leaving out rules that read a block in ``bad``."""
    for blocks, rule in RULES:
        if not bad & blocks:
            yield from rule(sound)


def _job_is_stated(sound: Sound) -> Iterator[Problem]:
    spec = sound.spec
    if spec.model is not None:
        return
    for name in ("communication", "memory"):
        if getattr(spec, name) is None:
            hint = "is required when there is no model: the job must state its own; or give model"
            yield Problem(path=(name,), hint=hint)
    if not spec.launcher.command:
        hint = "is required when there is no model: the shipped trainer needs one"
        yield Problem(path=("launcher", "command"), hint=hint)


def _lora(sound: Sound) -> Iterator[Problem]:
    spec = sound.spec
    if spec.stage is TrainingStage.LORA and spec.lora is None:
        yield Problem(path=("lora",), hint="is required by stage: lora; write lora: {rank: 16}")
    if spec.stage is not TrainingStage.LORA and spec.lora is not None:
        hint = f"only goes with stage: lora, and the stage is {spec.stage.value}"
        yield Problem(path=("lora",), hint=hint)
    if spec.lora is not None and sound.shape is not None and spec.lora.rank > sound.shape.hidden_size:
        hint = f"must be at most the model's hidden_size={sound.shape.hidden_size}"
        yield Problem(path=("lora", "rank"), value=spec.lora.rank, hint=hint)
    if spec.lora is not None and sound.shape is not None:
        yield from _lora_targets(spec.lora.targets, sound.shape)
    if spec.model is not None and spec.model.freeze_encoder and sound.shape is not None and sound.shape.encoder is None:
        yield Problem(path=("model", "freeze_encoder"), value=True, hint="needs a model with an encoder of images")


def _compression(sound: Sound) -> Iterator[Problem]:
    spec = sound.spec
    if spec.compression is None:
        return
    if spec.parallelism.zero_stage:
        hint = "must be 0 with compression, which needs whole gradients on each rank; or leave compression out"
        yield Problem(path=("parallelism", "zero_stage"), value=spec.parallelism.zero_stage, hint=hint)
    if spec.compression.kind is CompressionKind.ONE_BIT and spec.optimizer.kind is not OptimizerKind.ADAMW:
        hint = f"compresses the momentum of Adam, and the optimizer is {spec.optimizer.kind.value}"
        yield Problem(path=("compression", "kind"), value=spec.compression.kind.value, hint=hint)
    if spec.model is None:
        hint = "needs a model: a job that states its own traffic states it as it is sent"
        yield Problem(path=("compression",), hint=hint)


def _lora_targets(targets: list[LoraTarget], shape: ModelShape) -> Iterator[Problem]:
    path = ("lora", "targets")
    if len(set(targets)) < len(targets):
        yield Problem(path=path, value=", ".join(targets), hint="names a layer twice")
    absent = {LoraTarget.GATE} if not shape.gated_mlp else set()
    absent |= {LoraTarget.EXPERTS} if shape.experts is None else set()
    if set(targets) <= absent:
        yield Problem(path=path, value=", ".join(targets), hint="are layers that the model does not have")


def _first_weights(sound: Sound) -> Iterator[Problem]:
    stage, init_from = sound.spec.stage, sound.spec.checkpoint.init_from
    path = ("checkpoint", "init_from")
    if stage is TrainingStage.PRETRAIN and init_from is not None:
        hint = "does not go with stage: pretrain, which starts from random weights; take it out, or write another stage"
        yield Problem(path=path, value=init_from, hint=hint)
    if stage is not TrainingStage.PRETRAIN and init_from is None:
        hint = f"is required by stage: {stage.value}; name the checkpoint whose weights to start with"
        yield Problem(path=path, hint=hint)


def _data(sound: Sound) -> Iterator[Problem]:
    data = sound.spec.data
    if data.kind is DatasetKind.FILES and data.source is None:
        yield Problem(path=("data", "source"), hint="is required by kind: files; name the folder")
    if data.kind is DatasetKind.PYTHON_STDLIB and data.source is not None:
        hint = "does not go with kind: python_stdlib; take it out, or write kind: files"
        yield Problem(path=("data", "source"), value=data.source, hint=hint)
    if data.held_out >= 1:
        yield Problem(
            path=("data", "held_out"), value="100%", hint="leaves nothing to train on; write less, such as 5%"
        )


def _budget(sound: Sound) -> Iterator[Problem]:
    budget = sound.spec.budget
    if (budget.tokens is None) == (budget.steps is None):
        found = "neither" if budget.tokens is None else "both"
        yield Problem(path=("budget",), hint=f"needs exactly one of tokens and steps, and has {found}")


def _warm_up_ends(sound: Sound) -> Iterator[Problem]:
    warmup_steps, budget = sound.spec.optimizer.warmup_steps, sound.spec.budget
    if warmup_steps is None or not sound.phases:
        return
    num_steps = count_steps(sound.phases, BudgetSpec(num_tokens=budget.tokens, num_steps=budget.steps))
    if warmup_steps >= num_steps:
        hint = f"must be below the {num_steps} steps of the budget: the peak learning rate would never be used"
        yield Problem(path=("optimizer", "warmup_steps"), value=warmup_steps, hint=hint)


def _phases_are_reached(sound: Sound) -> Iterator[Problem]:
    total = sound.spec.budget.tokens
    if total is None or not sound.phases:
        return
    for index, phase in enumerate(sound.phases):
        if phase.from_tokens >= total:
            hint = f"is never reached: budget.tokens ends at {format_tokens(total)}"
            path = ("batch", "schedule", index, "from")
            yield Problem(path=path, value=format_tokens(phase.from_tokens), hint=hint)


def _objective(sound: Sound) -> Iterator[Problem]:
    if not any(sound.spec.objective.model_dump().values()):
        yield Problem(path=("objective",), hint="has no weight above 0; give at least one, such as throughput: 1")


def _heads(sound: Sound) -> Iterator[Problem]:
    shape, tp = sound.shape, sound.spec.parallelism.tp
    if shape is None or tp is None:
        return
    if shape.num_heads % tp:
        yield Problem(path=("parallelism", "tp"), value=tp, hint=f"must divide the model's num_heads={shape.num_heads}")
    elif shape.num_kv_heads % tp and tp % shape.num_kv_heads:
        hint = f"must divide the model's num_kv_heads={shape.num_kv_heads}, or be a multiple of it"
        yield Problem(path=("parallelism", "tp"), value=tp, hint=hint)


def _pipeline(sound: Sound) -> Iterator[Problem]:
    shape, pp = sound.shape, sound.spec.parallelism.pp
    if shape is not None and pp is not None and pp > shape.num_layers:
        hint = f"must be at most the model's num_layers={shape.num_layers}"
        yield Problem(path=("parallelism", "pp"), value=pp, hint=hint)


def _experts(sound: Sound) -> Iterator[Problem]:
    pinned, path = sound.spec.parallelism, ("parallelism", "ep")
    if pinned.ep is None or pinned.ep == 1 or sound.shape is None:
        return
    experts = sound.shape.experts
    if experts is None:
        yield Problem(path=path, value=pinned.ep, hint="needs a mixture-of-experts model; this one is dense, write 1")
    elif experts.num_routed % pinned.ep:
        yield Problem(
            path=path, value=pinned.ep, hint=f"must divide the model's experts, num_routed={experts.num_routed}"
        )
    if pinned.dp and pinned.tp and pinned.cp:
        num_ranks = pinned.dp * pinned.tp * pinned.cp
        if num_ranks % (pinned.ep * (pinned.expert_tp or 1)):
            hint = f"ep * expert_tp must divide dp * tp * cp = {num_ranks}, the ranks of a pipeline stage"
            yield Problem(path=path, value=pinned.ep, hint=hint)


def _chunks(sound: Sound) -> Iterator[Problem]:
    pinned, shape = sound.spec.parallelism, sound.shape
    if pinned.vp is None:
        return
    if pinned.vp > 1 and pinned.schedule not in (None, PipelineSchedule.INTERLEAVED):
        hint = "several chunks on a stage interleave: write schedule: interleaved, or leave it out"
        yield Problem(path=("parallelism", "schedule"), value=pinned.schedule.value, hint=hint)
    if pinned.vp == 1 and pinned.schedule is PipelineSchedule.INTERLEAVED:
        yield Problem(path=("parallelism", "vp"), value=1, hint="must be above 1 to interleave")
    num_chunks = pinned.vp * (pinned.pp or 1)
    if shape is not None and num_chunks > shape.num_layers:
        hint = f"pp * vp = {num_chunks} is more than the model's num_layers={shape.num_layers}"
        yield Problem(path=("parallelism", "vp"), value=pinned.vp, hint=hint)


def _offload(sound: Sound) -> Iterator[Problem]:
    pinned = sound.spec.parallelism
    if pinned.offload in (Offload.PARAMETERS_HOST, Offload.PARAMETERS_NVME) and pinned.zero_stage not in (None, 3):
        hint = f"needs zero_stage 3, which alone shards parameters; zero_stage is {pinned.zero_stage}"
        yield Problem(path=("parallelism", "offload"), value=pinned.offload.value, hint=hint)


def _shards(sound: Sound) -> Iterator[Problem]:
    pinned = sound.spec.parallelism
    if pinned.shard_size is None or pinned.dp is None or pinned.cp is None:
        return
    num_replicas = pinned.dp * pinned.cp
    if num_replicas % pinned.shard_size or pinned.shard_size % pinned.cp:
        hint = f"must divide dp * cp = {num_replicas} and be a multiple of cp={pinned.cp}"
        yield Problem(path=("parallelism", "shard_size"), value=pinned.shard_size, hint=hint)


def _batch_splits(sound: Sound) -> Iterator[Problem]:
    pinned = sound.spec.parallelism
    share = (pinned.dp or 1) * (pinned.micro_batch_size or 1)
    name = "micro_batch_size" if pinned.micro_batch_size else "dp"
    for phase in sound.phases or ():
        if phase.num_sequences % share:
            product = f"dp={pinned.dp or 1} times micro_batch_size={pinned.micro_batch_size or 1}"
            hint = f"{product} must divide the global batch of {phase.num_sequences} sequences"
            yield Problem(path=("parallelism", name), value=getattr(pinned, name), hint=hint)
        if pinned.cp and phase.sequence_length_tokens % pinned.cp:
            hint = f"must divide the sequence length of {phase.sequence_length_tokens} tokens"
            yield Problem(path=("parallelism", "cp"), value=pinned.cp, hint=hint)


def _positions(sound: Sound) -> Iterator[Problem]:
    shape = sound.shape
    if shape is None or shape.positions is not Positions.LEARNED:
        return
    for index, phase in enumerate(sound.phases or ()):
        if phase.sequence_length_tokens > shape.max_positions:
            where = ("schedule", index, "sequence_length") if sound.spec.batch.schedule else ("sequence_length",)
            hint = f"is beyond the model's {shape.max_positions} learned positions"
            yield Problem(path=("batch", *where), value=phase.sequence_length_tokens, hint=hint)


def _ranks(sound: Sound) -> Iterator[Problem]:
    capacity, pinned = sound.spec.capacity, sound.spec.parallelism
    if capacity.max_ranks is None:
        return
    if capacity.min_ranks > capacity.max_ranks:
        hint = f"must be at most max_ranks={capacity.max_ranks}"
        yield Problem(path=("capacity", "min_ranks"), value=capacity.min_ranks, hint=hint)
    world = math.prod(degree or 1 for degree in (pinned.dp, pinned.tp, pinned.pp, pinned.cp))
    if world > capacity.max_ranks:
        hint = f"must be at least {world}, the product of the pinned degrees"
        yield Problem(path=("capacity", "max_ranks"), value=capacity.max_ranks, hint=hint)


def _placement(sound: Sound) -> Iterator[Problem]:
    for group in type(sound.spec.placement).model_fields:
        wish = getattr(sound.spec.placement, group)
        if wish is not None and wish.required is None and wish.preferred is None:
            yield Problem(path=("placement", group), hint="names no level; write required: node, or preferred: node")


def _roles(sound: Sound) -> Iterator[Problem]:
    roles = sound.spec.roles
    seen: set[RoleKind] = set()
    for index, role in enumerate(roles):
        path = ("roles", index)
        if role.kind in seen:
            yield Problem(
                path=(*path, "kind"), value=role.kind.value, hint="is there twice; put its ranks into one role"
            )
        seen.add(role.kind)
        if role.kind is RoleKind.TRAINER:
            if role.num_ranks is not None:
                hint = "is the layout's to choose; pin parallelism, or capacity.max_ranks, instead"
                yield Problem(path=(*path, "num_ranks"), value=role.num_ranks, hint=hint)
            if role.command:
                yield Problem(
                    path=(*path, "command"), hint="belongs into launcher.command: the launcher starts trainers"
                )
            continue
        if role.num_ranks is None:
            yield Problem(path=(*path, "num_ranks"), hint=f"is required for a {role.kind.value}")
        if not role.command:
            yield Problem(path=(*path, "command"), hint=f"is required for a {role.kind.value}: what shall it run?")
    if roles and RoleKind.TRAINER not in seen:
        yield Problem(path=("roles",), hint="has no trainer; add - kind: trainer")


def _checkpoint(sound: Sound) -> Iterator[Problem]:
    checkpoint = sound.spec.checkpoint
    if checkpoint.interval is not None and checkpoint.interval_steps is not None:
        hint = "does not go with interval_steps; keep one of them"
        yield Problem(path=("checkpoint", "interval"), value=format_duration_s(checkpoint.interval), hint=hint)


def _environment(sound: Sound) -> Iterator[Problem]:
    for name in sound.spec.launcher.environment:
        path = ("launcher", "environment", name)
        if not _VARIABLE.fullmatch(name):
            yield Problem(
                path=path, hint="is no name of an environment variable: letters, digits and _, no digit first"
            )
        elif name.startswith(_OURS) or name in _SET_BY_LAUNCHER:
            yield Problem(path=path, hint="is set for every rank by the launch itself; take it out")


def _commands(sound: Sound) -> Iterator[Problem]:
    spec = sound.spec
    commands: list[tuple[tuple[str | int, ...], Sequence[str]]] = [(("launcher", "command"), spec.launcher.command)]
    if spec.evaluation is not None:
        commands.append((("evaluation", "command"), spec.evaluation.command))
    commands += [(("roles", index, "command"), role.command) for index, role in enumerate(spec.roles)]
    for path, command in commands:
        if command and not command[0].strip():
            yield Problem(path=(*path, 0), value=command[0], hint="is the program to run, and is empty")
    if spec.launcher.command and spec.evaluation is not None and not spec.evaluation.command:
        hint = "is needed for a trainer of your own: the shipped evaluator reads the shipped trainer's checkpoints only"
        yield Problem(path=("evaluation", "command"), hint=hint)


def _gate(sound: Sound) -> Iterator[Problem]:
    spec, shape = sound.spec, sound.shape
    if spec.evaluation is None:
        return
    if not spec.data.held_out and not spec.evaluation.command:
        yield Problem(path=("data", "held_out"), value="0%", hint="leaves evaluation nothing to look at; write 5%")
    gate = spec.evaluation.max_loss
    if gate is not None and shape is not None and shape.vocab_size > 1:
        uniform = math.log(shape.vocab_size)
        if gate > uniform:
            hint = f"lets an untrained model pass: guessing among {shape.vocab_size} tokens has a loss of {uniform:.2f}"
            yield Problem(path=("evaluation", "max_loss"), value=gate, hint=hint)


def _tiers(sound: Sound) -> Iterator[Problem]:
    memory, communication = sound.spec.memory, sound.spec.communication
    seen: set[str] = set()
    for index, tier in enumerate(memory.tiers if memory else ()):
        if tier.tier in seen:
            yield Problem(
                path=("memory", "tiers", index, "tier"), value=tier.tier, hint="is there twice; add the bytes up"
            )
        seen.add(tier.tier)
    if memory is not None and not memory.tiers:
        yield Problem(path=("memory", "tiers"), hint="is empty; state at least the hbm tier")
    for index, traffic in enumerate(communication.traffic if communication else ()):
        if traffic.peer is not None and traffic.peer == traffic.group:
            hint = "is the group itself; leave peer out for traffic within a group"
            yield Problem(path=("communication", "traffic", index, "peer"), value=traffic.peer, hint=hint)


Rule = Callable[[Sound], Iterable[Problem]]

RULES: tuple[tuple[frozenset[str], Rule], ...] = (
    (frozenset({"model", "communication", "memory", "launcher"}), _job_is_stated),
    (frozenset({"stage", "lora", "model"}), _lora),
    (frozenset({"compression", "parallelism", "optimizer", "model"}), _compression),
    (frozenset({"stage", "checkpoint"}), _first_weights),
    (frozenset({"data"}), _data),
    (frozenset({"budget"}), _budget),
    (frozenset({"budget", "batch"}), _phases_are_reached),
    (frozenset({"optimizer", "budget", "batch"}), _warm_up_ends),
    (frozenset({"objective"}), _objective),
    (frozenset({"model", "parallelism"}), _heads),
    (frozenset({"model", "parallelism"}), _pipeline),
    (frozenset({"model", "parallelism"}), _experts),
    (frozenset({"model", "parallelism"}), _chunks),
    (frozenset({"parallelism"}), _offload),
    (frozenset({"parallelism"}), _shards),
    (frozenset({"batch", "parallelism"}), _batch_splits),
    (frozenset({"batch", "model"}), _positions),
    (frozenset({"capacity", "parallelism"}), _ranks),
    (frozenset({"placement"}), _placement),
    (frozenset({"roles"}), _roles),
    (frozenset({"checkpoint"}), _checkpoint),
    (frozenset({"launcher"}), _environment),
    (frozenset({"launcher", "evaluation", "roles"}), _commands),
    (frozenset({"data", "evaluation", "model"}), _gate),
    (frozenset({"memory", "communication"}), _tiers),
)
