"""Measured steps out of a table (CSV): what was timed elsewhere, or before there were runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from airflow_llmsched import codec
from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.layout import MAX_ZERO_STAGE, Offload, ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.domain.workload import BatchPhase, ParallelismWish, WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_rules import DEGREE_RULES, SCHEDULE_RULES, SHARDING_RULES, LayoutRule, Question
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.job import TransformerJob, job_of
from airflow_llmsched.planner.perf.measured import MeasuredStep
from airflow_llmsched.planner.perf.memory_offload import has_room_outside
from airflow_llmsched.specs import presets
from airflow_llmsched.units import MIB

SUFFIX = ".csv"
MAX_BYTES = 16 * MIB

_DEGREES = ("dp", "tp", "pp", "cp", "ep", "vp", "expert_tp", "shard_size", "micro_batch_size", "zero_stage")
_WORDS: Mapping[str, type[StrEnum]] = {"recompute": Recompute, "schedule": PipelineSchedule, "offload": Offload}
_NEEDED = ("shape", "step_s", "dp")
COLUMNS = (*_NEEDED, "model", "sequence_length", "global_batch", "ranks_per_node", *_DEGREES[1:], *_WORDS)
"""What a table may have. ``sequence_length`` is in tokens, ``global_batch`` in sequences."""

_COLUMN_OF: Mapping[LayoutRule, str] = {
    LayoutRule.CP_DIVIDES_SEQUENCE: "cp",
    LayoutRule.EP_NEEDS_EXPERTS: "ep",
    LayoutRule.EP_DIVIDES_EXPERTS: "ep",
    LayoutRule.EXPERT_TP_DIVIDES_FFN: "expert_tp",
    LayoutRule.EP_DIVIDES_RANKS: "ep",
    LayoutRule.SCHEDULE_NEEDS_PIPELINE: "schedule",
    LayoutRule.CHUNKS_INTERLEAVE: "schedule",
    LayoutRule.SHARD_NEEDS_ZERO: "shard_size",
    LayoutRule.SHARD_DIVIDES: "shard_size",
    LayoutRule.EXPERTS_INSIDE_SHARD: "shard_size",
    LayoutRule.OFFLOAD_NEEDS_ZERO_3: "offload",
}
"""Rules without which a prediction means nothing. Others say what is wise, or what some trainer can: a measured step
need not be wise."""


def read_rows(file: Path, workload: WorkloadSpec) -> list[MeasuredStep]:
    """Return the measurements of a table. What a row leaves out of model and batch is the workload's.

    Raises:
        SpecError: the file cannot be read, or has a column that is not known or a row that makes no sense.
    """
    job = job_of(workload)
    if job is None:
        raise SpecError(path="model", hint="a workload that states its traffic has no step that could be calibrated")
    try:
        if file.stat().st_size > MAX_BYTES:
            raise SpecError(path=str(file), hint=f"has more than {MAX_BYTES // MIB} MiB")
        with file.open(encoding="utf-8-sig", newline="") as opened:
            return list(_rows(csv.DictReader(opened, strict=True), workload, job, file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(path=str(file), hint=f"cannot be read: {error}") from error


def _rows(
    table: csv.DictReader[str], workload: WorkloadSpec, job: TransformerJob, file: Path
) -> Iterator[MeasuredStep]:
    named = table.fieldnames or ()
    for name in named:
        if name not in COLUMNS:
            raise SpecError(path=f"{file}.{name}", hint=f"is no column here; there are {', '.join(COLUMNS)}")
    for name in _NEEDED:
        if name not in named:
            raise SpecError(path=f"{file}.{name}", hint="is missing: every table has this column")
    for told in table:
        row = _Row(told, f"{file}, line {table.line_num}")
        step = row.measured(job, source=file.name, row=table.line_num)
        row.check(step, workload)
        yield step


class _Row:
    """One line. An empty cell is one that is left out."""

    def __init__(self, told: Mapping[str, str | None], where: str) -> None:
        self._told, self._where = told, where
        if None in told or None in told.values():
            raise SpecError(path=where, hint="has not as many cells as there are columns")

    def measured(self, job: TransformerJob, *, source: str, row: int) -> MeasuredStep:
        job = self._job(job)
        shape = self._shape()
        layout = self._layout(job)
        return MeasuredStep(
            source=source,
            row=row,
            job=job,
            layout=layout,
            shape=shape,
            ranks_per_node=self._count("ranks_per_node") or min(layout.world_size, shape.num_accelerators),
            step_s=self._seconds("step_s"),
        )

    def check(self, step: MeasuredStep, workload: WorkloadSpec) -> None:
        """Raise ``SpecError`` where a prediction would mean nothing: it would be fitted all the same."""
        job, shape, table = step.job, step.shape, LayoutTable.of([step.layout])
        if job.precision.compute not in shape.accelerator.peak_flop_per_s:
            hint = f"its {shape.accelerator.name} has no {job.precision.compute.value}, in which the spec computes"
            raise self._error("shape", shape.name, hint)
        if not step.layout.world_size >= step.ranks_per_node <= shape.num_accelerators:
            raise self._error("ranks_per_node", step.ranks_per_node, f"is more than the {shape.name} or the gang has")
        question = Question(
            workload=replace(
                workload,
                model=job.model,
                batch=(
                    BatchPhase(
                        from_tokens=0, sequence_length_tokens=job.sequence_length_tokens,
                        num_sequences=job.num_sequences,
                    ),
                ),
                parallelism=ParallelismWish(shard_size=step.layout.shard_size),
            ),
            slots_per_node=shape.num_accelerators,
            slots_per_domain=shape.scale_up_size,
        )  # fmt: skip
        for rule, passes in (*DEGREE_RULES, *SCHEDULE_RULES, *SHARDING_RULES):
            column = _COLUMN_OF.get(rule)
            if column is not None and not passes(question, table).all():
                raise self._error(column, self._text(column), rule.value)
        if not has_room_outside(job, table, shape).all():
            hint = f"{shape.name} has no room for that in host memory or on disks"
            raise self._error("offload", self._text("offload"), hint)

    def _shape(self) -> NodeShape:
        name = self._text("shape") or ""
        try:
            return node_shape(name)
        except SpecError as error:
            raise self._error("shape", name, error.hint) from error

    def _job(self, job: TransformerJob) -> TransformerJob:
        name = self._text("model")
        if name is not None and name not in presets.names():
            raise self._error("model", name, "is no preset: leave it out for the model of the spec")
        return replace(
            job,
            model=job.model if name is None else presets.get(name).shape,
            sequence_length_tokens=self._count("sequence_length") or job.sequence_length_tokens,
            num_sequences=self._count("global_batch") or job.num_sequences,
        )

    def _layout(self, job: TransformerJob) -> ParallelLayout:
        degrees = {name: number for name in _DEGREES if (number := self._count(name)) is not None}
        words = {name: word for name, kind in _WORDS.items() if (word := self._word(name, kind)) is not None}
        layout = codec.from_plain(ParallelLayout, {"dp": 1, **degrees, **words})
        if layout.vp > 1 and layout.schedule is PipelineSchedule.ONE_F_ONE_B:
            layout = replace(layout, schedule=PipelineSchedule.INTERLEAVED)
        if job.model.num_heads % layout.tp:
            raise self._error("tp", layout.tp, f"does not divide the {job.model.num_heads} attention heads")
        if layout.pp * layout.vp > job.model.num_layers:
            raise self._error(
                "pp", layout.pp, f"leaves parts of the pipeline without one of the {job.model.num_layers} layers"
            )
        passes, left = divmod(job.num_sequences, layout.dp * layout.micro_batch_size)
        if left or not passes:
            hint = f"does not divide into {layout.dp} replicas x micro-batches of {layout.micro_batch_size}"
            raise self._error("global_batch", job.num_sequences, hint)
        return replace(layout, num_micro_batches=passes)

    def _text(self, name: str) -> str | None:
        return (self._told.get(name) or "").strip() or None

    def _count(self, name: str) -> int | None:
        least = 0 if name == "zero_stage" else 1
        number = self._number(name, int)
        if number is not None and not least <= number < 2**31:
            raise self._error(name, number, f"must be a whole number, {least} or more")
        if name == "zero_stage" and number is not None and number > MAX_ZERO_STAGE:
            raise self._error(name, number, f"must be at most {MAX_ZERO_STAGE}")
        return None if number is None else int(number)

    def _seconds(self, name: str) -> float:
        number = self._number(name, float)
        if number is None or not 0 < number < math.inf:
            raise self._error(name, self._text(name), "must be seconds, above 0")
        return number

    def _number(self, name: str, read: Callable[[str], float]) -> float | None:
        text = self._text(name)
        try:
            return None if text is None else read(text)
        except ValueError:
            raise self._error(name, text, "must be a number") from None

    def _word(self, name: str, kind: type[StrEnum]) -> StrEnum | None:
        text = self._text(name)
        known = [word for word in kind if word is not Recompute.MODULES]  # of which modules, no column says
        if text is not None and text not in known:
            raise self._error(name, text, f"must be one of {', '.join(known)}")
        return None if text is None else kind(text)

    def _error(self, name: str, value: object, hint: str) -> SpecError:
        return SpecError(path=f"{self._where}: {name}", value=value, hint=hint)
