"""What the shipped byte-level trainer is told, worked out from a workload spec. Others take their own command."""

from __future__ import annotations

import sys
from typing import Any

from airflow_llmsched.domain.workload import (
    BatchPhase,
    ModelShape,
    OptimizerKind,
    OptimizerSpec,
    Positions,
    TrainingStage,
    WorkloadSpec,
)
from airflow_llmsched.errors import SpecError
from airflow_llmsched.trainers.settings import (
    DATASET_VARIABLE,
    NUM_BYTE_VALUES,
    TRAIN_VARIABLE,
    TrainPhase,
    TrainSettings,
)

TRAINER = "airflow_llmsched.trainers.byte_gpt"
EVALUATOR = "airflow_llmsched.trainers.evaluate"

_OWN_TRAINER = "give the command of your own trainer"
_STAGES = (TrainingStage.PRETRAIN, TrainingStage.CONTINUED)
_ARCHITECTURE = {
    "vocab_size": (NUM_BYTE_VALUES, f"byte-level models, vocab_size {NUM_BYTE_VALUES}"),
    "experts": (None, "dense models"),
    "positions": (Positions.ROTARY, "rotary positions"),
    "norm_has_weight": (True, "norms with a weight"),
    "norm_has_bias": (False, "norms without a bias"),
    "attention_qkv_bias": (False, "attention without biases"),
    "attention_out_bias": (False, "attention without biases"),
    "mlp_bias": (False, "MLPs without biases"),
    "qk_norm": (False, "queries and keys without norms"),
    "attention_window_tokens": (None, "attention to the start of the sequence"),
    "cross_attention_layers": ((), "attention to the text"),
    "attention_sinks": (False, "attention without sinks"),
    "latent": (None, "keys and values of their own"),
    "num_norms_per_layer": (2, "two norms per layer"),
    "embedding_norm": (False, "embeddings without a norm"),
    "final_norm": (True, "a norm before the head"),
    "parallel_block": (False, "attention before the MLP"),
    "embedding_size": (None, "embeddings of the hidden size"),
    "num_extra_embedding_rows": (0, "as many embeddings as tokens"),
    "head_bias": (False, "a head without a bias"),
    "num_predict_ahead_layers": (0, "prediction of the next token"),
    "encoder": (None, "text"),
}
"""What ``trainers.model`` builds, by field of a shape: the one value it knows, and how to say so."""


def trainer_command(spec: WorkloadSpec) -> tuple[str, ...]:
    """Return the command of one rank: the spec's own, or the shipped trainer's."""
    return spec.launcher.command or (sys.executable, "-m", TRAINER)


def trainer_environment(spec: WorkloadSpec, *, manifest: str) -> dict[str, str]:
    """Return the settings that every rank gets. With a command of the spec's own, none of the trainer's."""
    environment = dict(spec.launcher.environment)
    environment[DATASET_VARIABLE] = manifest
    if not spec.launcher.command:
        environment[TRAIN_VARIABLE] = train_settings(spec).to_json()
    return environment


def train_settings(spec: WorkloadSpec) -> TrainSettings:
    """Return the shipped trainer's settings for ``spec``. Raises ``SpecError`` for what it cannot train."""
    if spec.stage not in _STAGES:
        raise _beyond("stage", spec.stage.value, " and ".join(_STAGES))
    if spec.optimizer.kind is not OptimizerKind.ADAMW:
        raise _beyond("optimizer.kind", spec.optimizer.kind.value, OptimizerKind.ADAMW.value)
    model = _known_model(spec.model)
    first, *later = spec.batch
    return TrainSettings(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        ffn_hidden_size=model.ffn_hidden_size,
        vocab_size=model.vocab_size,
        gated_mlp=model.gated_mlp,
        tied_embeddings=model.tied_embeddings,
        sequence_length_tokens=first.sequence_length_tokens,
        num_sequences=first.num_sequences,
        micro_batch_size=spec.parallelism.micro_batch_size or first.num_sequences,
        later_phases=tuple(_phase(phase) for phase in later),
        num_steps=spec.num_steps,
        **_optimizer(spec.optimizer),
        checkpoint_interval_steps=spec.checkpoint.interval_steps,
        checkpoint_interval_s=spec.checkpoint.interval_s,
        keep_last=spec.checkpoint.keep_last,
        seed=spec.seed,
    )


def _known_model(model: ModelShape | None) -> ModelShape:
    """Return the model. Raises ``SpecError`` by the name of the field in which the trainer's would differ from it."""
    if model is None:
        raise SpecError(path="model", hint=f"is required by the shipped trainer; {_OWN_TRAINER}")
    for name, (known, words) in _ARCHITECTURE.items():
        value = getattr(model, name)
        if value != known:
            raise _beyond(f"model.{name}", str(value), words)
    if model.head_size * model.num_heads != model.hidden_size:
        raise _beyond("model.head_size", model.head_size, "heads of hidden_size / num_heads")
    return model


def _beyond(path: str, value: object, known: str) -> SpecError:
    return SpecError(path=path, value=value, hint=f"the shipped trainer knows only {known}; {_OWN_TRAINER}")


def _optimizer(optimizer: OptimizerSpec) -> dict[str, Any]:
    """What the spec leaves open stays the trainer's own."""
    given = {"learning_rate": optimizer.learning_rate, "warmup_steps": optimizer.warmup_steps}
    return {name: value for name, value in given.items() if value is not None}


def _phase(phase: BatchPhase) -> TrainPhase:
    return TrainPhase(
        from_tokens=phase.from_tokens,
        sequence_length_tokens=phase.sequence_length_tokens,
        num_sequences=phase.num_sequences,
    )
