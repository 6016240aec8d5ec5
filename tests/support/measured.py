"""Measured steps for tests of what predicts, fits and scores them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.measured import MeasuredStep
from tests.support.fleets import job
from tests.support.models import GPT2

STEP = MeasuredStep(
    source="a table",
    row=7,
    job=job(GPT2, sequence_length_tokens=1024, num_sequences=16),
    layout=ParallelLayout(dp=4, tp=2, micro_batch_size=4),
    shape=node_shape("p5.48xlarge"),
    ranks_per_node=8,
    step_s=0.5,
)


def measured(**others: Any) -> MeasuredStep:
    return replace(STEP, **others)
