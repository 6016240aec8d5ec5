"""vTrain's measurements (Bang et al., MICRO 2024): GPTs in Megatron-DeepSpeed on A100 80 GB.

What the files do not say, and how it was filled:

- Software: PyTorch 2.0.1, CUDA 11.8, Microsoft's Megatron-DeepSpeed in FP16 (paper, section 5). Its attention is the
  fused softmax kernel, not FlashAttention, which that fork has only behind an option; its 1F1B is not interleaved; it
  is of before sequence parallelism; no ZeRO is mentioned, and every model fits without.
- Vocabulary: 51,200, GPT-2's padded as Megatron-LM does, and tied embeddings.
- Recomputation: the set of many nodes must recompute whole layers, since its 3.6 B model with tensor parallelism 1
  and micro-batch 8 would keep 200 GiB otherwise, and then has the rates of Narayanan et al. (2021) for the same
  models. The set of one node cannot: it reaches 144 TFLOP/s of model operations in layers of 2,048, which with a
  second forward pass would be 192 of 312.
- Network: four HDR InfiniBand cards a node (paper, section 5), 200 Gb/s each, so 12.5 GB/s per GPU.
"""

from __future__ import annotations

from pathlib import Path

from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.software import Software
from airflow_llmsched.planner.perf.job import TransformerJob
from tests.bench.perf_rows.models import gpt
from tests.bench.perf_rows.reading import (
    ADAM,
    MEGATRON_FP16,
    STEP_TIMES,
    Reading,
    Row,
    Setup,
    machine,
    passes,
    read_file,
)

_SOFTWARE = Software(
    fused_attention=False,
    has_dropout=True,
    num_heads_per_softmax=4,
    fused_elementwise=True,
    overlaps_data_parallel=False,
)
_HDR_BYTES_PER_S = 4 * 25e9 / 8


def single(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "vtrain_ground_truth_single.csv", lambda row: _setup(row, recompute=Recompute.NONE))


def multi(folder: Path = STEP_TIMES) -> Reading:
    return read_file(folder / "vtrain_ground_truth_multi.csv", lambda row: _setup(row, recompute=Recompute.FULL))


def _setup(row: Row, *, recompute: Recompute) -> Setup:
    sequence, batch, micro = (int(row[name]) for name in ("sequence length", "global batch", "micro batch"))
    dp = int(row["data parallelism"])
    shape = gpt(
        hidden_size=int(row["hidden size"]), num_layers=int(row["# layers"]), num_heads=int(row["attention heads"]),
        max_positions=sequence,
    )  # fmt: skip
    layout = ParallelLayout(
        dp=dp, tp=int(row["tensor parallelism"]), pp=int(row["pipeline parallelism"]), micro_batch_size=micro,
        num_micro_batches=passes(batch, dp=dp, micro_batch_size=micro), recompute=recompute, sequence_parallel=False,
    )  # fmt: skip
    return Setup(
        job=TransformerJob(
            model=shape, optimizer=ADAM, precision=MEGATRON_FP16, sequence_length_tokens=sequence, num_sequences=batch,
            software=_SOFTWARE,
        ),
        layout=layout,
        shape=machine("dgx-a100", network_bytes_per_s=_HDR_BYTES_PER_S),
        step_s=float(row["iteration time (ms)"]) / 1000,
    )  # fmt: skip
