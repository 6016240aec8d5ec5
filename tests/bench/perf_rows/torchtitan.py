"""torchtitan's published benchmarks (github.com/pytorch/torchtitan, benchmarks/): Llama 3.1 under FSDP2.

Meta's H100 of 96 GB with HBM2e at 500 W, 400 Gb/s of RoCE each (reports of December 2024 and June 2025). FSDP2 keeps
FP32 shards, gathers in BF16 and reduces in FP32. ``selective`` is checkpointing by operator: attention and every
second matrix product are kept, and what lies between them is computed again. The loss of 2024 is not compiled and
works in FP32; logits are split with tensor parallelism, whose inputs stay gathered. Row-wise scaled FP8 quantises
along each row, which costs passes over memory that the file does not split out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout, Recompute, RecomputeModule
from airflow_llmsched.domain.software import AttentionKernel, LossKernel, Software
from airflow_llmsched.domain.workload import PrecisionSpec
from airflow_llmsched.planner.perf.job import TransformerJob
from tests.bench.perf_rows.models import NAMED
from tests.bench.perf_rows.reading import (
    ADAM_ON_FP32_SHARDS,
    STEP_TIMES,
    Reading,
    Row,
    Setup,
    machine,
    passes,
    read_file,
)

_MODELS = {"llama3.1-8B": "llama-3-8b", "llama3.1-70B": "llama-3-70b"}


def read(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "torchtitan_bench.csv", _setup)


def read_memory(folder: Path = STEP_TIMES) -> Iterator[tuple[TransformerJob, ParallelLayout, float]]:
    """Yield rows that say the GiB that the fullest rank's allocator reserved at most."""
    with (folder / "torchtitan_bench.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["memory_gib"]:
                setup = _setup(row)
                yield setup.job, setup.layout, float(row["memory_gib"])


def _setup(row: Row) -> Setup:
    dp, tp, pp, cp = (int(row[name]) for name in ("fsdp", "tp", "pp", "cp"))
    sequence, batch, micro = int(row["seq"]), int(row["global_batch"]), int(row["local_batch"])
    technique = row["technique"]
    recomputes_all = row["ac"] == "full"
    layout = ParallelLayout(
        dp=dp, tp=tp, pp=pp, cp=cp, zero_stage=3, micro_batch_size=micro,
        num_micro_batches=passes(batch, dp=dp, micro_batch_size=micro),
        recompute=Recompute.FULL if recomputes_all else Recompute.MODULES,
        recompute_modules=() if recomputes_all else (RecomputeModule.EVERY_SECOND_PRODUCT,),
    )  # fmt: skip
    job = TransformerJob(
        model=NAMED[_MODELS[row["model"]]], optimizer=ADAM_ON_FP32_SHARDS,
        precision=PrecisionSpec(
            compute=NumberFormat.FP8 if "fp8" in technique else NumberFormat.BF16, parameters=NumberFormat.FP32,
            gradients=NumberFormat.FP32,
        ),
        sequence_length_tokens=sequence, num_sequences=batch,
        software=Software(
            attention_kernel=AttentionKernel.FLASH_2,
            fused_elementwise="compile" in technique or "TP" in technique,
            overlaps_tensor_parallel="async" in technique,
            loss=LossKernel.EAGER if "llama3_h100_202412" in row["source"] else LossKernel.FUSED,
            keeps_gathered_weights=pp > 1,
            keeps_narrow_inputs=False,
            regathers_inputs=False,
        ),
    )  # fmt: skip
    per_accelerator_tokens = batch * sequence / int(row["gpus"])
    return Setup(
        job=job, layout=layout, shape=machine("hgx-h100-96gb"),
        step_s=per_accelerator_tokens / float(row["tps_per_gpu"]),
    )  # fmt: skip
