"""Types of single values in a spec: how each is checked when read, and how an editor should see it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import Offload, PipelineSchedule, Recompute
from airflow_llmsched.domain.queue import QueueOrder, Reclaim
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.domain.software import AttentionKernel, LossKernel
from airflow_llmsched.domain.workload import (
    CapacityType,
    CompressionKind,
    DatasetKind,
    LoraTarget,
    OnOverrun,
    OptimizerKind,
    Positions,
    TrainingStage,
)
from airflow_llmsched.specs import quantities
from airflow_llmsched.specs.problems import nearest

MAX_LABEL = 1000
MAX_LAYERS = 4096
"""Far beyond any model, and few enough to look at one by one."""


def _quantity(examples: list[str], units: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": quantities.pattern(units), "examples": examples})


def _choose(choices: type[StrEnum]) -> BeforeValidator:
    """Read one word of ``choices``; the error names the nearest."""

    def choose(value: object) -> StrEnum:
        known = [member.value for member in choices]
        if isinstance(value, str) and value in known:
            return choices(value)
        near = nearest(value, known) if isinstance(value, str) else None
        guess = f"did you mean {near!r}? " if near else ""
        raise ValueError(f"{guess}must be one of {', '.join(known)}")

    return BeforeValidator(choose)


def _words(choices: type[StrEnum]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": [member.value for member in choices]})


def _refuse_control(text: str) -> str:
    """Refuse what no label or argument needs and what terminals, logs and C strings trip over."""
    for position, character in enumerate(text):
        if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
            raise ValueError(f"has the control character {character!r} at position {position}; take it out")
    return text


def _label(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; give it a name that people will recognise")
    if len(text) > MAX_LABEL:
        raise ValueError(f"has {len(text)} characters; {MAX_LABEL} is the most")
    return _refuse_control(text)


def _word(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return _refuse_control(text)


def _argument(text: str) -> str:
    if "\0" in text:
        raise ValueError("has a NUL character, which no process can be given")
    return text


def _tokens_or_count(value: object) -> object:
    """A plain whole number is fine where the key can only mean tokens."""
    return value if isinstance(value, int) else quantities.parse_tokens(value)


def _tokens_or_zero(value: object) -> int:
    return (
        0 if value == 0 and isinstance(value, int) and not isinstance(value, bool) else quantities.parse_tokens(value)
    )


def _batch_size(value: object) -> str:
    """Check a batch size and keep it as written: tokens become sequences once the sequence length is known."""
    text = value if isinstance(value, str) else ""
    if "seq" in text:
        size = quantities.parse_sequences(text)
    elif "token" in text:
        size = quantities.parse_tokens(text)
    else:
        raise ValueError("needs its unit: write 512 sequences or 4Mi tokens")
    if size == 0:
        raise ValueError("must be greater than 0")
    return text


Bytes = Annotated[
    int,
    BeforeValidator(quantities.parse_bytes),
    Field(gt=0),
    PlainSerializer(quantities.format_bytes),
    _quantity(["80GiB", "80GB"], "([kKMGTP]i?)?B"),
]
Duration = Annotated[
    float,
    BeforeValidator(quantities.parse_duration_s),
    Field(gt=0),
    PlainSerializer(quantities.format_duration_s),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": rf"{quantities.pattern('(ms|s|min|m|h|d|w)')}|^(\d+(\.\d+)?\s*(w|d|h|min|m|s)\s*)+$",
            "examples": ["90s", "10min", "36h", "1h30min"],
        }
    ),
]
Tokens = Annotated[
    int,
    BeforeValidator(quantities.parse_tokens),
    Field(gt=0),
    PlainSerializer(quantities.format_tokens),
    _quantity(["4Mi tokens", "15T tokens"], r"([kKMGTP]i?|B)?\s*tokens?"),
]
SequenceLength = Annotated[
    int,
    BeforeValidator(_tokens_or_count),
    Field(gt=0, lt=2**31),
    PlainSerializer(quantities.format_tokens),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": quantities.pattern(r"([kKMGTP]i?|B)?\s*tokens?")},
            ],
            "examples": [4096, "8Ki tokens"],
        }
    ),
]
TokensSeen = Annotated[
    int,
    BeforeValidator(_tokens_or_zero),
    PlainSerializer(quantities.format_tokens),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": 0},
                {"type": "string", "pattern": quantities.pattern(r"([kKMGTP]i?|B)?\s*tokens?")},
            ],
            "examples": ["0 tokens", "250G tokens"],
        }
    ),
]
BatchSize = Annotated[
    str,
    BeforeValidator(_batch_size),
    _quantity(["512 sequences", "4Mi tokens"], r"([kKMGTP]i?|B)?\s*(sequences?|tokens?)"),
]
Rate = Annotated[
    float,
    BeforeValidator(quantities.parse_bytes_per_s),
    Field(gt=0),
    PlainSerializer(quantities.format_bytes_per_s),
    _quantity(["400 Gbit/s", "50 GB/s"], "([kKMGTP]i?)?(B|bit)/s"),
]
Usd = Annotated[
    float,
    BeforeValidator(quantities.parse_usd),
    Field(gt=0),
    PlainSerializer(quantities.format_usd),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": rf"{quantities.pattern('USD')}|^\s*\$\s*\d*(\.\d+)?\s*$",
            "examples": ["$120", "120 USD"],
        }
    ),
]
Ratio = Annotated[
    float,
    BeforeValidator(quantities.parse_ratio),
    PlainSerializer(quantities.format_ratio),
    _quantity(["5%"], "%"),
]

Count = Annotated[int, Field(gt=0, lt=2**31)]
LayerCount = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
NormCount = Annotated[int, Field(gt=0, le=4)]
"""A whole number of at least one; its key says of what."""
CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
Weight = Annotated[float, Field(ge=0, le=1e6)]

Label = Annotated[str, AfterValidator(_label), Field(json_schema_extra={"minLength": 1, "maxLength": MAX_LABEL})]
"""Free text for people: spaces, quotes and ``$(...)`` are fine, it is never run, nor part of a path."""
Word = Annotated[str, AfterValidator(_word), Field(json_schema_extra={"minLength": 1})]
LocalPath = Annotated[str, AfterValidator(_word), Field(json_schema_extra={"minLength": 1})]
Argument = Annotated[str, AfterValidator(_argument)]

Stage = Annotated[TrainingStage, _choose(TrainingStage), _words(TrainingStage)]
Format = Annotated[NumberFormat, _choose(NumberFormat), _words(NumberFormat)]
OptimizerName = Annotated[OptimizerKind, _choose(OptimizerKind), _words(OptimizerKind)]
DatasetName = Annotated[DatasetKind, _choose(DatasetKind), _words(DatasetKind)]
LoraTargetName = Annotated[LoraTarget, _choose(LoraTarget), _words(LoraTarget)]
PositionsName = Annotated[Positions, _choose(Positions), _words(Positions)]
RecomputeName = Annotated[Recompute, _choose(Recompute), _words(Recompute)]
ScheduleName = Annotated[PipelineSchedule, _choose(PipelineSchedule), _words(PipelineSchedule)]
CompressionName = Annotated[CompressionKind, _choose(CompressionKind), _words(CompressionKind)]
OffloadName = Annotated[Offload, _choose(Offload), _words(Offload)]
OverrunName = Annotated[OnOverrun, _choose(OnOverrun), _words(OnOverrun)]
RoleName = Annotated[RoleKind, _choose(RoleKind), _words(RoleKind)]
ReclaimName = Annotated[Reclaim, _choose(Reclaim), _words(Reclaim)]
OrderName = Annotated[QueueOrder, _choose(QueueOrder), _words(QueueOrder)]
SliceName = Literal["mig", "time", "any"]
Market = Annotated[CapacityType, _choose(CapacityType), _words(CapacityType)]
AttentionKernelName = Annotated[AttentionKernel, _choose(AttentionKernel), _words(AttentionKernel)]
LossKernelName = Annotated[LossKernel, _choose(LossKernel), _words(LossKernel)]
LauncherName = Annotated[Launcher, _choose(Launcher), _words(Launcher)]


def shorthand(expand: Callable[[str], dict[str, Any]], *, words: Sequence[str] = ()) -> BeforeValidator:
    """Let a block be written as one word (of ``words``, when given), which ``expand`` turns into the block."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        if words and value not in words:
            near = nearest(value, words)
            guess = f"did you mean {near!r}? " if near else ""
            raise ValueError(f"{guess}must be a block of keys, or one of {', '.join(words)}")
        return expand(value)

    return BeforeValidator(read)
