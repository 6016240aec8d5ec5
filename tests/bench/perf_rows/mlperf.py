"""Steps read from MLPerf Training 4.0 to 5.1 logs: the median of each run's own steps, without evaluation.

Left out: LoRA rows, runs that log no step, and runs whose degrees the submission's files leave open. What was filled:

- Micro-batch: 1, or what the configuration's name says (``mbs2``); replicas times accumulation must then give the
  global batch.
- Formats: GPT-3 and Llama 405B say FP8. Llama 8B (round 5.1) says nothing: H100 reaches more operations per second
  than its 16-bit units could, so FP8; NVIDIA states NVFP4 for all its Blackwell submissions of that round (developer
  blog, 2025-11).
- Gradients are reduced in 16 bits, and the rest as in NVIDIA's recipes, which all of these submissions build on.
  Steps are replayed from CUDA graphs where a name says ``cg``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.workload import ModelShape
from tests.bench.perf_rows.formats import number_format
from tests.bench.perf_rows.megatron import TUNED, Degrees, setup
from tests.bench.perf_rows.models import NAMED, gpt
from tests.bench.perf_rows.reading import STEP_TIMES, LeftOutError, Reading, Row, Setup, machine, read_file, whole

_MACHINES = {
    "NVIDIA H100-SXM5-80GB": "dgx-h100",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "dgx-b200",
    "NVIDIA Blackwell GPU (GB200)": "gb200-nvl72",
    "NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)": "dgx-b300",
    "NVIDIA Blackwell Ultra GPU (GB300)": "gb300-nvl72",
}
_GPT3_175B = gpt(hidden_size=12288, num_layers=96, num_heads=96, max_positions=2048)
_MODELS: dict[str, ModelShape] = {
    "gpt3": _GPT3_175B,
    "llama31_405b": NAMED["llama-3.1-405b"],
    "llama31_8b": NAMED["llama-3-8b"],
}


def read(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "mlperf_step_times.csv", _setup)


def _setup(row: Row) -> Setup:
    if row["benchmark"] == "llama2_70b_lora":
        raise LeftOutError("LoRA")
    if not row["step_s_p50"]:
        raise LeftOutError("no step logged")
    if not row["tp"]:
        raise LeftOutError("no parallelism published")
    degrees = Degrees(
        num_accelerators=int(row["accelerators"]), num_sequences=int(row["gbs"]),
        sequence_length_tokens=int(row["seq_len"]), micro_batch_size=_micro_batch(row), tp=int(row["tp"]),
        pp=int(row["pp"]), cp=whole(row["cp"]), vp=whole(row["vp"]),
    )  # fmt: skip
    return setup(
        degrees, model=_MODELS[row["benchmark"]], compute=_format(row), shape=machine(_MACHINES[row["accelerator"]]),
        step_s=float(row["step_s_p50"]), software=replace(TUNED, recorded_launches="_cg" in row["config_files"]),
    )  # fmt: skip


def _micro_batch(row: Row) -> int:
    if row["mbs"]:
        return int(row["mbs"])
    degrees = int(row["tp"]) * int(row["pp"]) * whole(row["cp"])
    num_accumulated = float(row["grad_accum"] or 1)
    per_replica = int(row["gbs"]) * degrees / int(row["accelerators"]) / num_accumulated
    if not re.fullmatch(r"\d+\.0", str(per_replica)) or not per_replica:
        raise LeftOutError("accumulation contradicts the global batch")
    return int(per_replica)


def _format(row: Row) -> NumberFormat:
    if row["benchmark"] == "llama31_8b" and "Blackwell" in row["accelerator"]:
        return number_format("NVFP4")
    return NumberFormat.FP8
