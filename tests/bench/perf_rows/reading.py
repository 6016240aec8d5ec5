"""Reads measured steps row by row: each becomes a measurement or is left out under a reason, none vanishes."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_llmsched.domain.hardware import NodeShape, NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.workload import OptimizerSpec, PrecisionSpec
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.measured import MeasuredStep

STEP_TIMES = Path(__file__).parents[4] / "shared" / "data" / "step_time"

Row = Mapping[str, str]

MEGATRON_FP16 = PrecisionSpec(
    compute=NumberFormat.FP16, parameters=NumberFormat.FP16, gradients=NumberFormat.FP16
)  # reduced in the format of the weights unless asked otherwise (Megatron-LM 2.x, DeepSpeed fp16)
MEGATRON_BF16 = PrecisionSpec(
    compute=NumberFormat.BF16, parameters=NumberFormat.BF16, gradients=NumberFormat.BF16
)  # NVIDIA's performance recipes set grad_reduce_in_fp32=False
ADAM = OptimizerSpec()
ADAM_ON_FP32_SHARDS = OptimizerSpec(master_weights=False)


class LeftOutError(Exception):
    """Why a row is no measurement that can be compared; a short phrase that recurs, so that it can be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a file holds. ``left_out`` counts rows by reason; with ``steps`` they are all rows of the file."""

    file: str
    steps: tuple[MeasuredStep, ...]
    left_out: Mapping[str, int]

    @property
    def num_rows(self) -> int:
        return len(self.steps) + sum(self.left_out.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a row says, before it has a place in a file."""

    job: TransformerJob
    layout: ParallelLayout
    shape: NodeShape
    step_s: float


def read_file(path: Path, setup_of: Callable[[Row], Setup]) -> Reading:
    """Read a file whose first line names its columns. Lines count from 2."""
    steps, left_out = [], Counter[str]()
    with path.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                setup = setup_of(row)
            except LeftOutError as why:
                left_out[str(why)] += 1
                continue
            steps.append(
                MeasuredStep(
                    source=path.stem, row=number, job=setup.job, layout=setup.layout, shape=setup.shape,
                    ranks_per_node=min(setup.shape.num_accelerators, setup.layout.world_size), step_s=setup.step_s,
                )
            )  # fmt: skip
    return Reading(file=path.stem, steps=tuple(steps), left_out=dict(left_out))


def machine(name: str, *, network_bytes_per_s: float | None = None) -> NodeShape:
    """Return a node shape, its network's rate per accelerator replaced where a cluster's own is known."""
    shape = node_shapes().get(name)
    if shape is None:
        raise LeftOutError(f"hardware not described: {name}")
    if network_bytes_per_s is None:
        return shape
    return replace(shape, inter_node_bandwidth_bytes_per_s=network_bytes_per_s)


def split(num_accelerators: int, *degrees: int) -> int:
    """Return how many replicas ``degrees`` leave of the accelerators."""
    replicas, rest = divmod(num_accelerators, _product(degrees))
    if rest or not replicas:
        raise LeftOutError("degrees do not divide the accelerators")
    return replicas


def passes(num_sequences: int, *, dp: int, micro_batch_size: int) -> int:
    """Return how many micro-batches each replica runs."""
    num, rest = divmod(num_sequences, dp * micro_batch_size)
    if rest or not num:
        raise LeftOutError("global batch is no multiple of replicas and micro-batch")
    return num


def whole(text: str, *, otherwise: int = 1) -> int:
    """Read a count; empty, ``n/a`` and the like mean ``otherwise``."""
    return int(float(text)) if text.strip() and text.strip().lower() not in {"n/a", "na"} else otherwise


def _product(numbers: tuple[int, ...]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product
