"""How a model is split over ranks, and how near the ranks of a group are to be to one another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_ZERO_STAGE = 3
"""ZeRO shards optimizer state from stage 1 on, gradients from 2, parameters from 3 (Rajbhandari et al. 2020)."""


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    """The attention scores, as a fused attention kernel does by itself."""
    FULL = "full"
    """Every layer, from its input."""
    MODULES = "modules"
    """The parts of a layer that ``ParallelLayout.recompute_modules`` names."""


class RecomputeModule(StrEnum):
    """A part of a layer that can be computed again by itself, as Megatron-LM's ``--recompute-modules`` names parts."""

    CORE_ATTENTION = "core_attn"
    NORMS = "layernorm"
    MLP_ACTIVATION = "mlp_act"
    MLP = "mlp"
    QKV = "qkv"
    EVERY_SECOND_PRODUCT = "every_second_product"
    """Norms, activations and every second matrix product of a layer: torchtitan's selective checkpointing by op."""


class PipelineSchedule(StrEnum):
    """In which order the stages of a pipeline do their passes."""

    ONE_F_ONE_B = "1f1b"
    """One forward, one backward (Narayanan et al. 2019)."""
    INTERLEAVED = "interleaved"
    """The same over ``vp`` chunks of each stage (Narayanan et al. 2021)."""
    ZERO_BUBBLE = "zero_bubble"
    """Gradients to weights fill the bubble: ZB-H1 (Qi et al. 2023), with 1F1B's memory."""


class Offload(StrEnum):
    """What is kept outside the accelerator's memory between its uses."""

    NONE = "none"
    OPTIMIZER_HOST = "optimizer_host"
    """Optimizer state and its step on the host: ZeRO-Offload (Ren et al. 2021)."""
    OPTIMIZER_NVME = "optimizer_nvme"
    """Optimizer state on local disks: ZeRO-Infinity (Rajbhandari et al. 2021)."""
    PARAMETERS_HOST = "parameters_host"
    """Parameters too, on the host; needs ZeRO 3."""
    PARAMETERS_NVME = "parameters_nvme"
    """Parameters too, on local disks; needs ZeRO 3."""
    ACTIVATIONS_HOST = "activations_host"
    """Kept activations on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Degrees of parallelism. Experts live on ranks of the other groups and do not multiply the world size.

    Attributes:
        dp: data-parallel replicas.
        tp: ranks that split each layer.
        pp: pipeline stages.
        cp: ranks that split each sequence.
        ep: ranks over which routed experts are spread.
        zero_stage: what replicas shard: 1 optimizer state, 2 gradients too, 3 parameters too (as FSDP).
        micro_batch_size: sequences of one pass.
        num_micro_batches: passes of an optimizer step.
        recompute: what is computed again.
        vp: chunks of layers on each pipeline stage; above 1 the schedule is interleaved.
        expert_tp: ranks that split each routed expert; None: as many as ``tp``.
        schedule: order of the pipeline's passes.
        offload: what leaves the accelerator's memory.
        shard_size: over how many replicas (of dp * cp) ZeRO shards, the rest being copies (HSDP); None: over all.
        sequence_parallel: tensor-parallel ranks also split norms and dropouts along the sequence.
        recompute_modules: what ``Recompute.MODULES`` computes again.
    """

    dp: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero_stage: int = 0
    micro_batch_size: int = 1
    num_micro_batches: int = 1
    recompute: Recompute = Recompute.NONE
    vp: int = 1
    expert_tp: int | None = None
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    offload: Offload = Offload.NONE
    shard_size: int | None = None
    sequence_parallel: bool = True
    recompute_modules: tuple[RecomputeModule, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks in the gang: dp * tp * pp * cp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.dp * self.micro_batch_size * self.num_micro_batches

    def describe(self) -> str:
        """Short form for tables and messages; degrees of one, and what is as usual, are left out."""
        degrees = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "vp": self.vp, "cp": self.cp, "ep": self.ep}
        shown = [f"{name}={degree}" for name, degree in degrees.items() if degree > 1 or name == "dp"]
        if self.expert_tp not in (None, self.tp):
            shown.append(f"etp={self.expert_tp}")
        shown += [f"zero={self.zero_stage}"]
        if self.shard_size is not None:
            shown.append(f"shard={self.shard_size}")
        shown.append(f"micro={self.micro_batch_size}x{self.num_micro_batches}")
        if self.schedule is PipelineSchedule.ZERO_BUBBLE:
            shown.append(self.schedule)
        if self.offload is not Offload.NONE:
            shown.append(f"offload={self.offload}")
        return " ".join(shown)

    def describe_recompute(self) -> str:
        """What is computed again, in short: parts of layers by name, as plans may differ in nothing else."""
        parts = "+".join(part.value for part in self.recompute_modules)
        return f"recompute={parts or self.recompute.value}"


class RankGroup(StrEnum):
    """Sets of ranks that a placement wish can speak of."""

    GANG = "gang"
    TP = "tp"
    PP = "pp"
    CP = "cp"
    EP = "ep"
    DP = "dp"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementWish:
    """Keep each ``group`` inside one domain of ``level``. Required is a rule, preferred a cost."""

    group: RankGroup
    level: str
    required: bool
