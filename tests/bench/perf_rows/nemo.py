"""NVIDIA's NeMo and Megatron-LM figures for H100 in FP8 (NeMo user guide; Megatron-LM examples/llama).

The file gives degrees, batch and tokens per second and GPU. Fine-tuning rows train all parameters on packed sequences
of 4,096 tokens, so their steps are those of pre-training; LoRA rows are left out as in the other files. An empty
``vp`` is 1.
"""

from __future__ import annotations

from pathlib import Path

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.workload import ModelShape
from tests.bench.perf_rows.megatron import Degrees, setup, step_s_of
from tests.bench.perf_rows.models import NAMED, gpt
from tests.bench.perf_rows.reading import STEP_TIMES, LeftOutError, Reading, Row, Setup, machine, read_file, whole

_GPT3 = {"GPT3-5B": (24, 4096, 32), "GPT3-20B": (44, 6144, 48), "GPT3-175B": (96, 12288, 96)}
"""Layers, hidden size and heads (NeMo-Framework-Launcher, conf/training/gpt3)."""
_NAMES = {"LLAMA3-405B": "llama-3.1-405b"}


def read(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "nemo_megatron_h100_fp8.csv", _setup)


def _setup(row: Row) -> Setup:
    if row["kind"] == "LoRA":
        raise LeftOutError("LoRA")
    degrees = Degrees(
        num_accelerators=int(row["gpus"]), num_sequences=int(row["gbs"]), sequence_length_tokens=int(row["seq"]),
        micro_batch_size=int(row["mbs"]), tp=int(row["tp"]), pp=int(row["pp"]), cp=whole(row["cp"]),
        vp=whole(row["vp"]),
    )  # fmt: skip
    return setup(
        degrees, model=_shape(row["model"], degrees.sequence_length_tokens), compute=NumberFormat.FP8,
        shape=machine("dgx-h100"), step_s=step_s_of(degrees, tokens_per_s=float(row["tokens_per_s_per_gpu"])),
    )  # fmt: skip


def _shape(model: str, sequence: int) -> ModelShape:
    if model in _GPT3:
        num_layers, hidden_size, num_heads = _GPT3[model]
        return gpt(hidden_size=hidden_size, num_layers=num_layers, num_heads=num_heads, max_positions=sequence)
    name = _NAMES.get(model, model.lower().replace("llama2", "llama-2").replace("llama3", "llama-3"))
    return NAMED[name]
