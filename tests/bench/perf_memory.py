"""Rows of ``make bench-perf`` about memory: measured activations, weights and optimizer, and torchtitan's peaks."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import PrecisionSpec
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.memory import memory_breakdown, memory_totals
from airflow_llmsched.units import GIB
from tests.bench.perf_rows.every import READERS
from tests.bench.perf_rows.reading import ADAM, STEP_TIMES
from tests.bench.perf_rows.torchtitan import read_memory
from tests.bench.rows import Row
from tests.support.models import megatron_gpt

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "memory" / "korthikanti2022_gib.csv"

STATES = ("weights", "gradients", "optimizer")
SEQUENCE_TOKENS = 2048
SAYS_ALL = frozenset({
    "vtrain_ground_truth_multi", "vtrain_ground_truth_single", "mosaicml_llmfoundry", "megatron_llama_tables",
    "torchtitan_bench",
})  # fmt: skip
"""Files of step times that leave nothing open that decides memory."""

SETUPS = {
    "megatron-22B": (64, 6144, 48, 1, 4, 1),
    "gpt3-175B": (96, 12288, 96, 8, 1, 3),
    "turing-530B": (128, 20480, 105, 35, 1, 3),
    "megatron-1T": (160, 25600, 128, 64, 1, 1),
}
"""Heads, hidden size, layers, pipeline degree, micro-batch, chunks a stage (the paper's table 3); tensor degree 8."""


def rows(measured: Path = MEASURED, step_times: Path = STEP_TIMES) -> Sequence[Row]:
    by_quantity: dict[str, list[float]] = {"activations": [], "weights_and_optimizer": []}
    with measured.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            by_quantity[row["quantity"]].append(_gib(row) / float(row["measured_gib"]) - 1)
    peaks = [predicted / measured_gib - 1 for predicted, measured_gib in _torchtitan(step_times)]
    return [
        *_errors("activations, Korthikanti et al. 2022", by_quantity["activations"], below=2, calculon=2.08),
        *_errors("weights and optimizer, same", by_quantity["weights_and_optimizer"], below=5, calculon=8.49),
        *_errors("torchtitan peak GiB", peaks, below=10),
        *_runs_that_took_place(step_times),
    ]


def _runs_that_took_place(step_times: Path) -> Iterator[Row]:
    """Compare with the accelerator's memory what ran on it, in files that say all that decides memory."""
    readings = [read(step_times) for read in READERS]
    steps = [step for reading in readings if reading.file in SAYS_ALL for step in reading.steps]
    shares = [
        memory_totals(step.job, LayoutTable.of([step.layout]), reserved_bytes=step.shape.accelerator.reserved_bytes)[0]
        / step.shape.accelerator.memory_bytes
        for step in steps
    ]
    yield Row(name=f"share of {len(shares)} runs that took place but are said not to fit",
              value=100 * sum(share > 1 for share in shares) / len(shares), unit="%", below=1)  # fmt: skip


def _errors(name: str, errors: Sequence[float], *, below: float, **reference: float) -> Iterator[Row]:
    sizes = [100 * abs(error) for error in errors]
    yield Row(name=f"{name}: mean error of {len(sizes)}", value=sum(sizes) / len(sizes), unit="%", below=below,
              reference=reference)  # fmt: skip
    yield Row(name=f"{name}: largest error", value=max(sizes), unit="%")


def _gib(row: Mapping[str, str]) -> float:
    """Predict what the paper measured: layers alone, without embeddings and what belongs to them."""
    job, layout = _setup(row["model"], row["policy"])
    terms = memory_breakdown(job, layout)
    if row["quantity"] == "activations":
        return (terms["activations"] - _embedding_masks(job, layout)) / GIB
    layers = sum(terms[name] for name in STATES) - _embedding_states(job, layout)
    return layers / GIB


def _setup(model: str, policy: str) -> tuple[TransformerJob, ParallelLayout]:
    heads, hidden, layers, pp, micro, vp = SETUPS[model]
    job = TransformerJob(
        model=megatron_gpt(name=model, num_heads=heads, hidden_size=hidden, num_layers=layers), optimizer=ADAM,
        precision=PrecisionSpec(compute=NumberFormat.FP16, parameters=NumberFormat.FP16),
        sequence_length_tokens=SEQUENCE_TOKENS, num_sequences=4 * pp * micro,
        software=Software(fused_attention=False, has_dropout=True),
    )  # fmt: skip
    layout = ParallelLayout(
        dp=1, tp=8, pp=pp, vp=vp, micro_batch_size=micro, num_micro_batches=4 * pp,
        schedule=PipelineSchedule.INTERLEAVED if vp > 1 else PipelineSchedule.ONE_F_ONE_B,
        recompute=Recompute.SELECTIVE if policy.startswith("selective") else Recompute.NONE,
        sequence_parallel=policy.endswith("sequence"),
    )  # fmt: skip
    return job, layout


def _embedding_masks(job: TransformerJob, layout: ParallelLayout) -> float:
    num_in_flight = layout.pp + (layout.pp - 1) / layout.vp if layout.vp > 1 else layout.pp
    split = layout.tp if layout.sequence_parallel else 1
    return num_in_flight * layout.micro_batch_size * SEQUENCE_TOKENS * job.model.hidden_size / split


def _embedding_states(job: TransformerJob, layout: ParallelLayout) -> float:
    """Weights, gradients, master copy and two states: 18 bytes of each parameter."""
    model = job.model
    return 18 * (model.vocab_size // layout.tp + model.max_positions) * model.hidden_size


def _torchtitan(step_times: Path) -> Iterator[tuple[float, float]]:
    for job, layout, measured_gib in read_memory(step_times):
        yield sum(memory_breakdown(job, layout).values()) / GIB, measured_gib
