"""What all of NVIDIA's own tables have in common: one trainer, one way to name degrees.

Megatron-Core of 2024 and later under NeMo or Megatron-Bridge: sequence parallelism with tensor parallelism, a
distributed optimizer (ZeRO 1) unless FSDP is on, attention by cuDNN (fused), norms and activations fused by
Transformer Engine, tensor-parallel collectives overlapped (userbuffers) in the performance recipes. Experts are split
by expert parallelism only (expert_tensor_parallel_size=1 in every recipe).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_llmsched.domain.hardware import NodeShape, NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.software import LossKernel, Software
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.perf.job import TransformerJob
from tests.bench.perf_rows.reading import ADAM, MEGATRON_BF16, LeftOutError, Setup, passes, split

TUNED = Software(
    fused_elementwise=True,
    fused_accumulation=True,
    loss=LossKernel.FUSED,
    overlaps_tensor_parallel=True,
    deduplicates_dispatch=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """One row's columns. ``fsdp`` above 1 is Megatron-FSDP, which shards everything over all replicas."""

    num_accelerators: int
    num_sequences: int
    sequence_length_tokens: int
    micro_batch_size: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    vp: int = 1
    ep: int = 1
    fsdp: int = 0
    recompute_modules: tuple[RecomputeModule, ...] = ()


def setup(
    degrees: Degrees, *, model: ModelShape, compute: NumberFormat, shape: NodeShape, step_s: float,
    software: Software = TUNED,
) -> Setup:  # fmt: skip
    """Build the set-up of one row."""
    dp = split(degrees.num_accelerators, degrees.tp, degrees.pp, degrees.cp)
    if degrees.ep > 1 and (dp * degrees.cp * degrees.tp) % degrees.ep:
        raise LeftOutError("expert parallelism does not divide the ranks of a stage")
    layout = ParallelLayout(
        dp=dp, tp=degrees.tp, pp=degrees.pp, cp=degrees.cp, vp=degrees.vp, ep=degrees.ep,
        expert_tp=1 if model.experts is not None else None,
        zero_stage=3 if degrees.fsdp > 1 else 1,
        micro_batch_size=degrees.micro_batch_size,
        num_micro_batches=passes(degrees.num_sequences, dp=dp, micro_batch_size=degrees.micro_batch_size),
        schedule=PipelineSchedule.INTERLEAVED if degrees.vp > 1 else PipelineSchedule.ONE_F_ONE_B,
        recompute=Recompute.MODULES if degrees.recompute_modules else Recompute.NONE,
        recompute_modules=degrees.recompute_modules,
    )  # fmt: skip
    job = TransformerJob(
        model=model, optimizer=ADAM, precision=replace(MEGATRON_BF16, compute=compute),
        sequence_length_tokens=degrees.sequence_length_tokens, num_sequences=degrees.num_sequences, software=software,
    )  # fmt: skip
    return Setup(job=job, layout=layout, shape=shape, step_s=step_s)


def step_s_of(degrees: Degrees, *, tokens_per_s: float) -> float:
    """Return the step's seconds from the tokens that each accelerator trains in one."""
    return degrees.num_sequences * degrees.sequence_length_tokens / degrees.num_accelerators / tokens_per_s
