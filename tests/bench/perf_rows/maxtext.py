"""MaxText's utilisation on Cloud TPU (github.com/AI-Hypercomputer/maxtext, configs/v4, v5e, v5p): FSDP and tensor axes.

Shapes follow MaxText's ``global_parameter_scale``: powers of two of a base of 16 layers, 2,048 wide, 16 heads of 128,
gated MLP of 7,168 and 32,000 words (configs/base.yml and pyconfig.py: each third doubling goes to all dimensions, the
first of a remainder to heads and MLP, the second to the width). Seconds follow from TFLOP/s per chip by Chowdhery et
al.'s count, as MaxText's. Rows without a batch, and those on several slices (their gradients cross data-centre
networks at a rate nobody states), are left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import ModelShape, PrecisionSpec
from airflow_llmsched.planner.perf.flops import flops_per_token
from airflow_llmsched.planner.perf.job import TransformerJob
from tests.bench.perf_rows.reading import (
    ADAM_ON_FP32_SHARDS,
    STEP_TIMES,
    LeftOutError,
    Reading,
    Row,
    Setup,
    machine,
    read_file,
    split,
)

_BASE = ModelShape(
    name="maxtext-1b", num_layers=16, hidden_size=2048, num_heads=16, num_kv_heads=16, head_size=128,
    ffn_hidden_size=7168, vocab_size=32000,
)  # fmt: skip
_TENSOR = {"fsdp auto tp4": 4, "fsdp auto tp8": 8, "fsdp auto tp16": 16, "ici fsdp16 tp16": 16}
_RECOMPUTE = {"full": Recompute.FULL, "minimal": Recompute.SELECTIVE, "qkv_proj_offloaded": Recompute.FULL}
_MACHINES = {"v4": "ct4p-hightpu-4t", "v5e": "ct5lp-hightpu-4t", "v5p": "ct5p-hightpu-4t"}


def read(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "maxtext_tpu.csv", _setup)


def _setup(row: Row) -> Setup:
    if not row["per_device_batch"] or not row["tflops_per_chip"]:
        raise LeftOutError("no batch published")
    if int(row["slices"]) > 1:
        raise LeftOutError("several slices")
    chips, sequence = int(row["chips"]), int(row["seq_len"] or 2048)
    batch, tp = int(row["per_device_batch"]) * chips, _TENSOR.get(row["sharding"], 1)
    dp = split(chips, tp)
    model = _shape(row)
    job = TransformerJob(
        model=model, optimizer=ADAM_ON_FP32_SHARDS,
        precision=PrecisionSpec(
            compute=NumberFormat.BF16, parameters=NumberFormat.FP32, gradients=NumberFormat.FP32
        ),
        sequence_length_tokens=sequence, num_sequences=batch,
        software=Software(fused_elementwise=True, has_sharding_buffers=False),
    )  # fmt: skip
    layout = ParallelLayout(
        dp=dp, tp=tp, zero_stage=3, micro_batch_size=batch // dp, num_micro_batches=1,
        recompute=_RECOMPUTE[row["remat_policy"]],
    )  # fmt: skip
    per_token = flops_per_token(model, sequence_length_tokens=sequence).training_flop
    step_s = batch * sequence * per_token / (float(row["tflops_per_chip"]) * 1e12 * chips)
    return Setup(job=job, layout=layout, shape=machine(_MACHINES[row["tpu"]]), step_s=step_s)


def _shape(row: Row) -> ModelShape:
    if row["notes"].startswith("emb"):
        width, heads, mlp, layers = (
            int(word.strip(";").lstrip("abcdefghijklmnopqrstuvwxyz")) for word in row["notes"].split()[:4]
        )
        return replace(
            _BASE, name=f"maxtext-{row['model']}", hidden_size=width, num_heads=heads, num_kv_heads=heads,
            head_size=256, ffn_hidden_size=mlp, num_layers=layers, gated_mlp=False,
        )  # fmt: skip
    thirds, rest = divmod(int(math.log2(int(row["model"].removesuffix("B")))), 3)
    heads_and_mlp = 2 ** (thirds + (rest > 0))
    return replace(
        _BASE, name=f"maxtext-{row['model']}", num_layers=16 * 2**thirds, hidden_size=2048 * 2 ** (thirds + (rest > 1)),
        num_heads=16 * heads_and_mlp, num_kv_heads=16 * heads_and_mlp, ffn_hidden_size=7168 * heads_and_mlp,
    )  # fmt: skip
