from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.software import Software
from airflow_llmsched.planner.perf.hardware import node_shape
from tests.support.measured import STEP, measured


def test_what_another_release_published_of_the_same_set_up_is_the_same_set_up():
    assert measured(source="a later table", row=8, step_s=0.4).setup == STEP.setup


def test_other_software_or_another_machine_is_another_set_up():
    tuned = replace(STEP.job, software=Software(fused_elementwise=True))
    assert measured(job=tuned).setup != STEP.setup
    assert measured(shape=node_shape("p4d.24xlarge")).setup != STEP.setup


def test_a_measurement_counts_all_ranks_of_its_layout():
    assert STEP.num_ranks == 8
