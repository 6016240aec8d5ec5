"""Tables of the Megatron-LM papers and read-me files, of Korthikanti et al. (2022) and of the Llama 3 report.

What the file does not say, and how it was filled:

- Micro-batch and interleaving of Narayanan et al. (2021), table 1: from NVIDIA's scripts for that table (Megatron-LM,
  examples/sc21/run_table_1.sh). The read-me of January 2021 has the same runs "without interleaving". Table 2 says
  neither; how its rates fall with fewer micro-batches (175 B: 153 to 141 TFLOP/s from 384 to 96 of them on 12 stages)
  is what 1F1B without interleaving gives.
- Megatron-Core's table of 2024 gives no micro-batch either: 1, and stages interleaved layer by layer, as its text
  says that all overlaps are on.
- Korthikanti et al.: 175 B and 530 B interleave 3 chunks (their table 4); their selective runs use sequence
  parallelism.
- Llama 3's stages have one layer in each chunk: without one layer, the first chunk is only the embedding and the last
  one only the head (section 3.3.2).
- Llama 3 (Dubey et al. 2024, table 4) gives TFLOP/s per GPU: seconds follow from model operations by Chowdhery et
  al.'s count, which that report names. Its row of context parallelism prints 4 replicas where 16,384 GPUs leave 8,
  and 16 M tokens a batch are 16 sequences for each of those 8. Gradients are sharded and reduced for each micro-batch
  (its section 3.3.2), parameters are not: ZeRO 2.
- Vocabulary and formats are columns. Before 2024 there is no FlashAttention, and gradients are reduced in FP16; the
  set of September 2020 ran on DGX A100 (40 GB) and DGX-2 (V100) with eight HDR and eight EDR cards.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_llmsched.domain.layout import ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.perf.flops import flops_per_token
from airflow_llmsched.planner.perf.job import TransformerJob
from tests.bench.perf_rows.megatron import TUNED
from tests.bench.perf_rows.models import NAMED, gpt
from tests.bench.perf_rows.reading import (
    ADAM,
    MEGATRON_BF16,
    MEGATRON_FP16,
    STEP_TIMES,
    LeftOutError,
    Reading,
    Row,
    Setup,
    machine,
    passes,
    read_file,
)

_EARLY = Software(
    fused_attention=False,
    has_dropout=True,
    num_heads_per_softmax=4,
    fused_elementwise=True,
    overlaps_data_parallel=False,
)
_MACHINES = {
    "A100-80GB": "dgx-a100",
    "A100-40GB(DGX-A100)": "dgx-a100-40gb",
    "V100-32GB(DGX-2)": "dgx-2",
    "H100": "dgx-h100",
    "H100-SXM": "dgx-h100",
}
_MICRO_BATCHES = {2304: 16, 3072: 16, 6144: 8, 8192: 4, 12288: 2, 16384: 1, 20480: 1}
"""By hidden size, table 1 of Narayanan et al. (2021)."""
_LAYERS_PER_CHUNK = {12288: 5, 16384: 3, 20480: 1}


def read(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "megatron_llama_tables.csv", _setup)


def _setup(row: Row) -> Setup:
    sequence, batch, micro = int(row["seq"]), int(row["gbs"]), _micro_batch(row)
    tp, pp, dp = (int(row[name]) for name in ("tp", "pp", "dp"))
    cp = 16 if row["notes"].startswith("CP=16") else 1
    if cp > 1:
        batch, dp = 2 * batch, 2 * dp
    if dp * tp * pp * cp != int(row["gpus"]):
        raise LeftOutError("degrees contradict the number of accelerators")
    vp = _chunks(row, pp)
    layout = ParallelLayout(
        dp=dp, tp=tp, pp=pp, cp=cp, vp=vp, micro_batch_size=micro,
        num_micro_batches=passes(batch, dp=dp, micro_batch_size=micro), zero_stage=_zero_stage(row),
        recompute=_recompute(row["recompute"]), sequence_parallel=not _is_early(row) or "SP" in row["recompute"],
        schedule=PipelineSchedule.INTERLEAVED if vp > 1 else PipelineSchedule.ONE_F_ONE_B,
    )  # fmt: skip
    model = _shape(row, sequence)
    job = TransformerJob(
        model=model, optimizer=ADAM, precision=MEGATRON_FP16 if row["precision"] == "fp16" else MEGATRON_BF16,
        sequence_length_tokens=sequence, num_sequences=batch, software=_EARLY if _is_early(row) else TUNED,
    )  # fmt: skip
    return Setup(job=job, layout=layout, shape=machine(_MACHINES[row["gpu"]]), step_s=_step_s(row, job))


def _is_early(row: Row) -> bool:
    return row["precision"] == "fp16"


def _micro_batch(row: Row) -> int:
    if row["mbs"]:
        return int(row["mbs"])
    return _MICRO_BATCHES[int(row["hidden"])] if _is_early(row) else 1


def _chunks(row: Row, pp: int) -> int:
    """Chunks of layers on each stage."""
    layers, hidden = int(row["layers"]), int(row["hidden"])
    if row["source"].startswith("SC21 Table1"):
        return layers // pp // _LAYERS_PER_CHUNK.get(hidden, layers // pp)
    if row["source"].startswith("Korthikanti"):
        return 3 if hidden in {12288, 20480} else 1
    if row["source"].startswith("Llama 3"):
        return -(-layers // pp)
    if "Megatron-Core" in row["source"] and pp > 1:
        return layers // pp
    return 1


def _zero_stage(row: Row) -> int:
    if row["source"].startswith("Llama 3"):
        return 2
    return 0 if _is_early(row) else 1


def _recompute(word: str) -> Recompute:
    if word == "full":
        return Recompute.FULL
    return Recompute.SELECTIVE if word.startswith("selective") else Recompute.NONE


def _shape(row: Row, sequence: int) -> ModelShape:
    if row["source"].startswith("Llama 3"):
        return NAMED["llama-3.1-405b"]
    shape = gpt(
        hidden_size=int(row["hidden"]), num_layers=int(row["layers"]), num_heads=int(row["heads"]),
        max_positions=sequence, vocab_size=int(row["vocab"]),
    )  # fmt: skip
    return shape if _is_early(row) else replace(shape, tied_embeddings=False)


def _step_s(row: Row, job: TransformerJob) -> float:
    if row["iter_time_s"]:
        return float(row["iter_time_s"])
    per_token = flops_per_token(job.model, sequence_length_tokens=job.sequence_length_tokens)
    rate_flop_per_s = float(row["tflops_per_gpu"]) * 1e12 * int(row["gpus"])
    return job.tokens_per_step * per_token.training_flop / rate_flop_per_s
