"""MosaicML's throughput tables (github.com/mosaicml/llm-foundry, scripts/train/benchmarking): MPT under FSDP.

What the file does not say, and how it was filled:

- Shapes: scripts/train/yamls/pretrain/mpt-*.yaml; each row's ``n_params`` must come out exactly, or the row is left
  out.
- Software: attention ``flash`` or ``triton``, both fused, of FlashAttention's first version (the tables are of
  mid-2023, flash-attn 1.0.9 in setup.py); no compiler; the loss is flash-attn's fused kernel
  (``loss_fn`` is ``fused_crossentropy`` unless said otherwise); FSDP prefetches gathers and overlaps reductions.
- Formats: ``amp_bf16`` with ``DEFAULT`` keeps FP32 shards, computes and gathers in BF16 and reduces in FP32; ``PURE``
  reduces in BF16 too (composer's fsdp_config). ``amp_fp8`` is Transformer Engine's.
- Activation checkpointing, where on, is of whole blocks.
- Network: the section titles say 1,600 Gb/s a node for A100; 3,200 Gb/s for H100 (MosaicML's clusters of 2023).
"""

from __future__ import annotations

from pathlib import Path

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.software import AttentionKernel, LossKernel, Software
from airflow_llmsched.domain.workload import ModelShape, PrecisionSpec
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.parameters import count_parameters
from tests.bench.perf_rows.models import gpt
from tests.bench.perf_rows.reading import (
    ADAM_ON_FP32_SHARDS,
    STEP_TIMES,
    LeftOutError,
    Reading,
    Row,
    Setup,
    machine,
    passes,
    read_file,
)

_SOFTWARE = Software(attention_kernel=AttentionKernel.FLASH_1, loss=LossKernel.FUSED)

_SIZES = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
"""Layers, hidden size and heads."""

_MACHINES = {"a100_40gb": "dgx-a100-40gb", "a100_80gb": "dgx-a100", "h100_80gb": "dgx-h100"}
_SHARDING = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
_COMPUTE = {"amp_bf16": NumberFormat.BF16, "bf16": NumberFormat.BF16, "amp_fp8": NumberFormat.FP8}
_REDUCED = {"DEFAULT": NumberFormat.FP32, "PURE": NumberFormat.BF16}


def read(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "mosaicml_llmfoundry.csv", _setup)


def _setup(row: Row) -> Setup:
    dp, batch, micro = int(row["gpus"]), int(row["global_batch_seqs"]), int(row["micro_batch"])
    sequence = int(row["seq_len"])
    layout = ParallelLayout(
        dp=dp, micro_batch_size=micro, num_micro_batches=passes(batch, dp=dp, micro_batch_size=micro),
        zero_stage=_SHARDING[row["sharding"]],
        recompute=Recompute.FULL if row["act_ckpt"] == "True" else Recompute.NONE,
    )  # fmt: skip
    return Setup(
        job=TransformerJob(
            model=_shape(row, sequence), optimizer=ADAM_ON_FP32_SHARDS,
            precision=PrecisionSpec(
                compute=_COMPUTE[row["precision"]], parameters=NumberFormat.FP32, gradients=_REDUCED[row["mp_mode"]]
            ),
            sequence_length_tokens=sequence, num_sequences=batch, software=_SOFTWARE,
        ),
        layout=layout,
        shape=machine(_MACHINES[row["gpu"]]),
        step_s=int(row["global_batch_tokens"]) / int(row["tokens_per_s"]),
    )  # fmt: skip


def _shape(row: Row, sequence: int) -> ModelShape:
    num_layers, hidden_size, num_heads = _SIZES[row["model"]]
    shape = gpt(
        hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, max_positions=sequence, vocab_size=50368
    )
    if count_parameters(shape).total != int(row["n_params"]):
        raise LeftOutError("parameters differ from the published count")
    return shape
