"""NVIDIA's DGX Cloud benchmarking recipes (github.com/NVIDIA/dgxc-benchmarking): Llama 3.1 and Grok-1 under NeMo 25.

Rows whose configuration the recipes of the same release do not list (or list with another batch than the tokens per
second imply) are left out. Their Grok-1 trains experts in groups of 8 with tensor parallelism in the rest of the
layer.
"""

from __future__ import annotations

from pathlib import Path

from airflow_llmsched.domain.hardware import NumberFormat
from tests.bench.perf_rows.megatron import Degrees, setup
from tests.bench.perf_rows.models import NAMED
from tests.bench.perf_rows.reading import STEP_TIMES, LeftOutError, Reading, Row, Setup, machine, read_file, whole

_MACHINES = {"H100": "dgx-h100", "GB200": "gb200-nvl72"}


def read(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "dgxc_step_times.csv", _setup)


def _setup(row: Row) -> Setup:
    if not row["tp"]:
        raise LeftOutError("no parallelism published")
    degrees = Degrees(
        num_accelerators=int(row["gpus"]), num_sequences=int(row["gbs"]), sequence_length_tokens=int(row["seqlen"]),
        micro_batch_size=int(row["mbs"]), tp=int(row["tp"]), pp=int(row["pp"]), cp=int(row["cp"]),
        vp=whole(row["vp"]), ep=whole(row["ep"]),
    )  # fmt: skip
    return setup(
        degrees, model=NAMED[_name(row["model_dtype_label"])], compute=NumberFormat(row["precision"].lower()),
        shape=machine(_MACHINES[row["accelerator"]]), step_s=float(row["step_time_s"]),
    )  # fmt: skip


def _name(label: str) -> str:
    if label.startswith("Grok1"):
        return "grok-1"
    size = next(word for word in label.split() if word.endswith("b"))
    return f"llama-3.1-{size}" if size == "405b" else f"llama-3-{size}"
