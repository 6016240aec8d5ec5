"""What the cost model needs to know of a Transformer training job, and how its layers fall to pipeline stages. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.workload import (
    BatchPhase,
    ModelShape,
    OptimizerKind,
    OptimizerSpec,
    PrecisionSpec,
    TrainingStage,
    WorkloadSpec,
)
from airflow_llmsched.planner.layout_table import BoolArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.parameters import num_dense_layers

FORMAT_BYTES = {
    NumberFormat.FP32: 4,
    NumberFormat.TF32: 4,
    NumberFormat.BF16: 2,
    NumberFormat.FP16: 2,
    NumberFormat.FP8: 1,
}
"""Bytes of one stored value; TF32 is stored as FP32."""

OPTIMIZER_STATES = {OptimizerKind.ADAMW: 2, OptimizerKind.SGD_MOMENTUM: 1, OptimizerKind.SGD: 0}
"""State values per trained parameter, besides a master copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerJob:
    """One batch phase of a training run. ``lora_rank`` is None when every parameter is trained."""

    model: ModelShape
    optimizer: OptimizerSpec
    precision: PrecisionSpec
    sequence_length_tokens: int
    num_sequences: int
    lora_rank: int | None = None

    @property
    def compute_bytes(self) -> int:
        """Bytes of an activation or of a weight as the matrix units read it; FP8 keeps activations in 16 bits."""
        return max(2, FORMAT_BYTES[self.precision.compute])

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequence_length_tokens * self.num_sequences


def job_of(workload: WorkloadSpec) -> TransformerJob | None:
    """Return the job of the heaviest batch phase, or None for a workload without a model."""
    if workload.model is None:
        return None
    phase = heaviest_phase(workload)
    return TransformerJob(
        model=workload.model,
        optimizer=workload.optimizer,
        precision=workload.precision,
        sequence_length_tokens=phase.sequence_length_tokens,
        num_sequences=phase.num_sequences,
        lora_rank=(workload.lora_rank or 16) if workload.stage is TrainingStage.LORA else None,
    )


def heaviest_phase(workload: WorkloadSpec) -> BatchPhase:
    """Return the phase with the longest sequences, then the most of them: the one that memory must hold."""
    return max(workload.batch, key=lambda phase: (phase.sequence_length_tokens, phase.num_sequences))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageLayers:
    """One pipeline stage of each candidate. Axis: C = candidate layout."""

    stage_C: IntArray
    num_dense_C: IntArray
    num_moe_C: IntArray
    is_first_C: BoolArray
    is_last_C: BoolArray
    num_in_flight_C: IntArray


def telling_stages(model: ModelShape, table: LayoutTable) -> Iterator[StageLayers]:
    """Yield, for each candidate, the stages among which the heaviest must be.

    Stages hold equally many layers and in-flight micro-batches fall from first to last (1F1B: min(m, pp - i),
    Narayanan et al. 2021). So of the all-dense stages the first is heaviest, of the all-expert ones the first too, one
    stage may be mixed, and the last has the output head.
    """
    layers_C = model.num_layers // table.pp_C
    num_dense = num_dense_layers(model)
    last_C = table.pp_C - 1
    mixed_C = np.minimum(num_dense // np.maximum(layers_C, 1), last_C)
    all_moe_C = np.minimum(-(-num_dense // np.maximum(layers_C, 1)), last_C)
    stages = [np.zeros_like(last_C), last_C]
    if model.experts is not None and num_dense:
        stages[1:1] = [mixed_C, all_moe_C]
    for stage_C in stages:
        num_dense_C = np.clip(num_dense - stage_C * layers_C, 0, layers_C)
        yield StageLayers(
            stage_C=stage_C,
            num_dense_C=num_dense_C,
            num_moe_C=layers_C - num_dense_C,
            is_first_C=stage_C == 0,
            is_last_C=stage_C == last_C,
            num_in_flight_C=np.minimum(table.num_micro_batches_C, table.pp_C - stage_C),
        )
