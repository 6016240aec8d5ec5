"""What the cost model needs to know of a Transformer training job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import (
    ALL_LINEAR,
    BatchPhase,
    GradientCompression,
    LoraTarget,
    ModelShape,
    OptimizerKind,
    OptimizerSpec,
    PrecisionSpec,
    TrainingStage,
    WorkloadSpec,
)
from airflow_llmsched.planner.perf.parameters import count_lora_parameters, count_trained_parameters

FORMAT_BYTES = {
    NumberFormat.FP32: 4,
    NumberFormat.TF32: 4,
    NumberFormat.BF16: 2,
    NumberFormat.FP16: 2,
    NumberFormat.FP8: 1,
    NumberFormat.FP4: 1,
}
"""Bytes of one stored value; TF32 is stored as FP32, and FP4 takes 4.5 bits with its scales: a byte is the bound."""

OPTIMIZER_STATES = {OptimizerKind.ADAMW: 2, OptimizerKind.SGD_MOMENTUM: 1, OptimizerKind.SGD: 0}
"""State values per trained parameter, besides a master copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerJob:
    """One batch phase of a training run. ``lora_rank`` is None when the model's own parameters are trained.

    ``num_loaders`` processes of the gang read input; None: each rank has one of its own.
    """

    model: ModelShape
    optimizer: OptimizerSpec
    precision: PrecisionSpec
    sequence_length_tokens: int
    num_sequences: int
    lora_rank: int | None = None
    lora_targets: tuple[LoraTarget, ...] = ALL_LINEAR
    freezes_encoder: bool = False
    compression: GradientCompression | None = None
    num_loaders: int | None = None
    software: Software = field(default_factory=Software)

    @property
    def compute_bytes(self) -> int:
        """Bytes of an activation or of a weight as the matrix units read it; FP8 keeps activations in 16 bits."""
        return max(2, FORMAT_BYTES[self.precision.compute])

    @property
    def num_adapter_parameters(self) -> int:
        """Parameters of LoRA's factors; 0 without."""
        if self.lora_rank is None:
            return 0
        return count_lora_parameters(self.model, rank=self.lora_rank, targets=self.lora_targets)

    @property
    def num_trained_parameters(self) -> int:
        """Parameters with gradients and optimizer state, over all ranks."""
        if self.lora_rank is not None:
            return self.num_adapter_parameters
        return count_trained_parameters(self.model, freezes_encoder=self.freezes_encoder)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequence_length_tokens * self.num_sequences


def job_of(workload: WorkloadSpec, phase: BatchPhase | None = None) -> TransformerJob | None:
    """Return the job of one batch phase (None: the heaviest), or None for a workload without a model."""
    if workload.model is None:
        return None
    phase = phase or heaviest_phase(workload)
    return TransformerJob(
        model=workload.model,
        optimizer=workload.optimizer,
        precision=workload.precision,
        sequence_length_tokens=phase.sequence_length_tokens,
        num_sequences=phase.num_sequences,
        lora_rank=(workload.lora_rank or 16) if workload.stage is TrainingStage.LORA else None,
        lora_targets=workload.lora_targets,
        freezes_encoder=workload.freezes_encoder,
        compression=workload.compression,
        software=workload.software,
        num_loaders=sum(role.num_ranks or 0 for role in workload.roles if role.kind is RoleKind.DATA_LOADER) or None,
    )


def filling_phases(workload: WorkloadSpec) -> Sequence[BatchPhase]:
    """Return the phases that memory must hold, the heaviest first: no other has sequences as long, and as many.

    Shorter sequences may need more where there are more of them: so many that a pipeline fills.
    """
    found: list[BatchPhase] = []
    for phase in sorted(workload.batch, key=_weight, reverse=True):
        if not found or phase.num_sequences > max(each.num_sequences for each in found):
            found.append(phase)
    return found


def heaviest_phase(workload: WorkloadSpec) -> BatchPhase:
    """Return the phase with the longest sequences, then the most of them: the one that step times are stated for."""
    return max(workload.batch, key=_weight)


def _weight(phase: BatchPhase) -> tuple[int, int]:
    return phase.sequence_length_tokens, phase.num_sequences
