"""NVIDIA's Megatron-Bridge performance summary (docs.nvidia.com/nemo/megatron-bridge, releases 25.11 to 26.06).

The same set-up recurs in several releases and each figure is kept. Left out: LoRA rows, and Nemotron 3 Super, whose
layers are mostly state-space layers and not Transformer ones. Fine-tuning rows train all parameters on packed
sequences, as in pre-training.

What the tables do not say is in the recipes (github.com/NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs,
read 2026-11-30): tokens are dealt out evenly (moe_router_force_load_balancing), and DeepSeek-V3's layers by their cost
(its pp_layout leaves the last stage one layer besides prediction and head); which modules GPT-OSS computes again.
FSDP on GB200 and GB300 keeps the activations of a part of the layers on the host, over the chips' own link; that is
read as if they stayed. An FSDP column of 8 or more is Megatron-FSDP over that many replicas; ``w/ MTP`` and
DeepSeek-V3's name alone mean one multi-token-prediction layer more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_llmsched.domain.layout import RecomputeModule
from airflow_llmsched.domain.workload import ModelShape
from tests.bench.perf_rows.formats import number_format
from tests.bench.perf_rows.megatron import TUNED, Degrees, setup, step_s_of
from tests.bench.perf_rows.models import NAMED
from tests.bench.perf_rows.reading import STEP_TIMES, LeftOutError, Reading, Row, Setup, machine, read_file, whole

_MACHINES = {
    "DGX-H100": "dgx-h100",
    "DGX-B200": "dgx-b200",
    "DGX-B300": "dgx-b300",
    "DGX-GB200": "gb200-nvl72",
    "DGX-GB300": "gb300-nvl72",
}
_NAMES = {
    "LLAMA3_8B": "llama-3-8b",
    "LLAMA3_70B": "llama-3-70b",
    "LLAMA3.1_405B": "llama-3.1-405b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "GPT OSS 120B": "gpt-oss-120b",
    "DeepSeekV3": "deepseek-v3-mtp",
    "DeepSeekV3 (w/ MTP)": "deepseek-v3-mtp",
    "DeepSeekV3 (w/o MTP)": "deepseek-v3",
}
_RECOMPUTED = {
    ("gpt-oss-120b", "DGX-H100"): (RecomputeModule.NORMS, RecomputeModule.MLP_ACTIVATION),
    ("gpt-oss-120b", "DGX-GB200"): (RecomputeModule.NORMS, RecomputeModule.MLP_ACTIVATION),
    ("gpt-oss-120b", "DGX-B200"): (RecomputeModule.NORMS, RecomputeModule.MLP_ACTIVATION),
}


def read(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "megatron_bridge_perf.csv", _setup)


def _setup(row: Row) -> Setup:
    if row["kind"] == "LoRA Performance":
        raise LeftOutError("LoRA")
    if row["model"] == "Nemotron_3_Super":
        raise LeftOutError("state-space layers")
    name, fsdp = _NAMES[row["model"]], whole(row["fsdp"], otherwise=0)
    degrees = Degrees(
        num_accelerators=int(row["gpus"]), num_sequences=int(row["gbs"]), sequence_length_tokens=int(row["seq_len"]),
        micro_batch_size=int(row["mbs"]), tp=int(row["tp"]), pp=int(row["pp"]), cp=int(row["cp"]),
        vp=whole(row["vp"]), ep=whole(row["ep"]), fsdp=fsdp,
        recompute_modules=_RECOMPUTED.get((name, row["system"]), ()),
    )  # fmt: skip
    tokens_per_s = float(row["tokens_per_s_per_gpu"].split(" ", maxsplit=1)[0])
    return setup(
        degrees, model=_shape(name), compute=number_format(row["precision"]), shape=machine(_MACHINES[row["system"]]),
        step_s=step_s_of(degrees, tokens_per_s=tokens_per_s),
        software=replace(
            TUNED,
            expert_load_ratio=1.0,
            balances_stages=name.startswith("deepseek"),
            recorded_launches=row["precision"] == "NVFP4" or "GPT" in row["model"],
        ),
    )  # fmt: skip


def _shape(name: str) -> ModelShape:
    if name not in NAMED:
        raise LeftOutError(f"shape not described: {name}")
    return NAMED[name]
