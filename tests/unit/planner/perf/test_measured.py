from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.measured import MeasuredStep
from airflow_llmsched.planner.perf.software import Software
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


def test_what_another_release_published_of_the_same_set_up_is_the_same_set_up():
    assert STEP.same_setup(replace(STEP, source="a later table", row=8, step_s=0.4))


def test_other_software_or_another_machine_is_another_set_up():
    tuned = replace(STEP.job, software=Software(fused_elementwise=True))
    assert not STEP.same_setup(replace(STEP, job=tuned))
    assert not STEP.same_setup(replace(STEP, shape=node_shape("p4d.24xlarge")))


def test_a_measurement_counts_all_ranks_of_its_layout():
    assert STEP.num_ranks == 8
