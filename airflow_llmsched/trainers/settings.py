"""Settings of the shipped trainer, as they travel in ``LLMSCHED_TRAIN``. Standard library only: no torch, no domain."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from airflow_llmsched.errors import SpecError

TRAIN_VARIABLE = "LLMSCHED_TRAIN"
"""Environment variable that carries :meth:`TrainSettings.to_json`."""

DATASET_VARIABLE = "LLMSCHED_DATASET"
"""Environment variable with the path of the staged dataset's ``manifest.json``."""

NUM_BYTE_VALUES = 256

_T = TypeVar("_T", bound="TrainSettings | TrainPhase")


class LearningRateSchedule(StrEnum):
    """How the learning rate goes on after its linear warmup."""

    COSINE = "cosine"
    """Falls along half a cosine to ``final_learning_rate_ratio`` of its peak at the last step."""
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPhase:
    """Batch and sequence length from ``from_tokens`` seen onwards."""

    from_tokens: int
    sequence_length_tokens: int
    num_sequences: int

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, over all ranks."""
        return self.sequence_length_tokens * self.num_sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Everything the trainer needs besides its dataset and its place in the gang.

    The model is a decoder-only Transformer over bytes: rotary positions, RMS norms, no biases. ``num_sequences`` is the
    global batch, which any number of ranks that divides it keeps; each rank works through its share in micro-batches of
    at most ``micro_batch_size`` sequences. ``later_phases`` change batch and sequence length once their ``from_tokens``
    have been seen. With neither checkpoint interval the only save is at the last step.

    Raises:
        SpecError: a value is out of range or two of them contradict each other; names the field.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_hidden_size: int
    sequence_length_tokens: int
    num_sequences: int
    num_steps: int
    vocab_size: int = NUM_BYTE_VALUES
    num_kv_heads: int | None = None
    gated_mlp: bool = True
    tied_embeddings: bool = False
    micro_batch_size: int = 8
    later_phases: tuple[TrainPhase, ...] = ()
    learning_rate: float = 3e-3
    schedule: LearningRateSchedule = LearningRateSchedule.COSINE
    final_learning_rate_ratio: float = 0.1
    warmup_steps: int = 20
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    checkpoint_interval_steps: int | None = None
    checkpoint_interval_s: float | None = None
    keep_last: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        _check_types(self)
        _check_ranges(self)
        _check_shape(self)
        _check_phases(self)

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values; fewer than ``num_heads`` when queries share them."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def window_tokens(self) -> int:
        """Longest sequence of any phase: the unit in which the data is shuffled."""
        return max(phase.sequence_length_tokens for phase in self.phases)

    @property
    def phases(self) -> tuple[TrainPhase, ...]:
        """All phases in order; the first starts at token 0."""
        first = TrainPhase(
            from_tokens=0,
            sequence_length_tokens=self.sequence_length_tokens,
            num_sequences=self.num_sequences,
        )
        return (first, *self.later_phases)

    def phase_at(self, num_tokens_seen: int) -> TrainPhase:
        """Return the phase of a step that starts after ``num_tokens_seen`` tokens."""
        return [phase for phase in self.phases if phase.from_tokens <= num_tokens_seen][-1]

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of 1-based ``step``: linear warmup, then the schedule."""
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if self.schedule is LearningRateSchedule.CONSTANT:
            return self.learning_rate
        done_ratio = min(1.0, (step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps))
        floor = self.final_learning_rate_ratio
        return self.learning_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done_ratio)))

    def to_json(self) -> str:
        """Return one line of JSON with every field."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TrainSettings:
        """Rebuild settings. Raises ``SpecError`` for text that is no JSON, and for unknown, missing or bad fields."""
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise SpecError(path=TRAIN_VARIABLE, value=text, hint=f"must be JSON: {error}") from None
        if not isinstance(plain, dict):
            raise SpecError(path=TRAIN_VARIABLE, value=text, hint="must be a JSON object of trainer settings")
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> TrainSettings:
        """Rebuild settings from decoded JSON. Raises ``SpecError`` for unknown, missing or bad fields."""
        values = dict(plain)
        if "schedule" in values:
            values["schedule"] = _schedule(values["schedule"])
        if "later_phases" in values:
            values["later_phases"] = _phases(values["later_phases"])
        return _build(cls, values, path=TRAIN_VARIABLE)


def _schedule(value: object) -> LearningRateSchedule:
    try:
        return LearningRateSchedule(str(value))
    except ValueError:
        known = ", ".join(LearningRateSchedule)
        raise SpecError(path="schedule", value=value, hint=f"must be one of: {known}") from None


def _phases(value: object) -> tuple[TrainPhase, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, dict) for each in value):
        raise SpecError(path="later_phases", value=value, hint="must be a list of objects")
    return tuple(_build(TrainPhase, each, path=f"later_phases[{index}]") for index, each in enumerate(value))


def _build(type_: type[_T], values: Mapping[str, Any], *, path: str) -> _T:
    names = {field.name for field in fields(type_)}
    unknown = sorted(set(values) - names)
    if unknown:
        raise SpecError(path=f"{path}.{unknown[0]}", hint=f"unknown setting; known: {', '.join(sorted(names))}")
    try:
        return type_(**values)
    except TypeError as error:
        raise SpecError(path=path, hint=str(error).partition(" ")[2]) from None


_INTEGERS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "ffn_hidden_size",
    "sequence_length_tokens",
    "num_sequences",
    "num_steps",
    "vocab_size",
    "micro_batch_size",
    "warmup_steps",
    "keep_last",
    "seed",
)
_OPTIONAL_INTEGERS = ("num_kv_heads", "checkpoint_interval_steps")
_NUMBERS = ("learning_rate", "final_learning_rate_ratio", "weight_decay", "clip_norm")
_FLAGS = ("gated_mlp", "tied_embeddings")
_MAY_BE_ZERO = ("warmup_steps", "seed", "final_learning_rate_ratio", "weight_decay")


def _check_types(settings: TrainSettings) -> None:
    for name in _INTEGERS:
        _expect(settings, name, _is_integer, "must be a whole number")
    for name in _OPTIONAL_INTEGERS:
        _expect(settings, name, lambda value: value is None or _is_integer(value), "must be a whole number or null")
    for name in _NUMBERS:
        _expect(settings, name, _is_number, "must be a finite number")
    for name in _FLAGS:
        _expect(settings, name, lambda value: isinstance(value, bool), "must be true or false")
    _expect(
        settings,
        "checkpoint_interval_s",
        lambda value: value is None or _is_number(value),
        "must be a number of seconds or null",
    )
    for phase in settings.later_phases:
        for field in fields(TrainPhase):
            _expect(phase, field.name, _is_integer, "must be a whole number")


def _check_ranges(settings: TrainSettings) -> None:
    for name in (*_INTEGERS, *_NUMBERS, *_OPTIONAL_INTEGERS, "checkpoint_interval_s"):
        if name in _MAY_BE_ZERO:
            _expect(settings, name, lambda value: value >= 0, "must be zero or more")
        else:
            _expect(settings, name, lambda value: value is None or value > 0, "must be above zero")
    _expect(settings, "final_learning_rate_ratio", lambda value: value <= 1, "must be at most 1")


def _check_shape(settings: TrainSettings) -> None:
    heads, shared = settings.num_heads, settings.key_value_heads
    _expect(
        settings, "vocab_size", lambda value: value >= NUM_BYTE_VALUES, "must be at least 256: one byte is one token"
    )
    if settings.hidden_size % (2 * heads):
        hint = f"must be a multiple of 2 * num_heads={heads}: rotary positions turn pairs of a head's elements"
        raise SpecError(path="hidden_size", value=settings.hidden_size, hint=hint)
    if heads % shared:
        raise SpecError(path="num_kv_heads", value=shared, hint=f"must divide num_heads={heads}")


def _check_phases(settings: TrainSettings) -> None:
    last_from_tokens = 0
    for index, phase in enumerate(settings.later_phases):
        path = f"later_phases[{index}]"
        if phase.from_tokens <= last_from_tokens:
            hint = f"must be above {last_from_tokens}, where the phase before it starts"
            raise SpecError(path=f"{path}.from_tokens", value=phase.from_tokens, hint=hint)
        for name in ("sequence_length_tokens", "num_sequences"):
            _expect(phase, name, lambda value: value > 0, "must be above zero")
        last_from_tokens = phase.from_tokens


def _expect(holder: object, name: str, good: Any, hint: str) -> None:
    value = getattr(holder, name)
    if not good(value):
        raise SpecError(path=name, value=value, hint=hint)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
