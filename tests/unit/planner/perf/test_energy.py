from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.energy import (
    ACTIVITY_RATIO,
    WAITING_RATIO,
    node_power_w,
    step_energy_j,
    unknown_power,
)
from airflow_llmsched.planner.perf.hardware import node_shape, node_shapes
from airflow_llmsched.planner.perf.step import step_breakdown
from tests.support.fleets import job
from tests.support.models import LLAMA2_7B

DGX_H100 = node_shape("dgx-h100")
ONE_NODE = LayoutTable.of([ParallelLayout(dp=8)])


def test_a_node_at_full_use_draws_its_boards_limits_and_the_rest_of_it() -> None:
    drawn_w = node_power_w(DGX_H100)
    assert drawn_w is not None
    assert drawn_w == 8 * 700 + DGX_H100.host.power_w
    assert node_power_w(node_shape("trn2.48xlarge")) is None


def joules(table: LayoutTable = ONE_NODE, shape: str = "dgx-h100", **terms_s: float) -> float:
    arrays = {name: np.array([seconds]) for name, seconds in terms_s.items()}
    drawn_j = step_energy_j(arrays, table, node_shape(shape))
    assert drawn_j is not None
    return float(drawn_j[0])


def test_a_node_that_only_multiplies_draws_the_most_that_was_measured_of_one() -> None:
    """Latif et al. (2025): 8.4 kW at most of an HGX H100 node whose rating is 10.2 kW."""
    assert joules(matmul=1.0) == pytest.approx(8400, rel=0.02)


def test_training_draws_about_three_quarters_of_the_rating() -> None:
    """Newkirk et al. (2025): nodes of eight H100 trained at 76% of their rated 10.2 kW."""
    terms = step_breakdown(job(LLAMA2_7B), ParallelLayout(dp=8, zero_stage=3, num_micro_batches=32), shape=DGX_H100,
                           ranks_per_node=8)  # fmt: skip
    power_w = joules(**terms) / sum(terms.values())
    assert power_w == pytest.approx(0.76 * 10_200, rel=0.08)


def test_each_second_costs_what_is_done_in_it() -> None:
    rest_w = 8 * DGX_H100.accelerator.idle_w + DGX_H100.host.power_w
    above_w = 8 * (DGX_H100.accelerator.power_limit_w - DGX_H100.accelerator.idle_w)
    expected = 3 * rest_w + (1 + ACTIVITY_RATIO["optimizer"] + WAITING_RATIO) * above_w
    assert joules(matmul=1.0, optimizer=1.0, data_parallel=1.0) == pytest.approx(expected)


def test_a_part_of_a_node_draws_its_share() -> None:
    half = LayoutTable.of([ParallelLayout(dp=4)])
    assert joules(half, matmul=1.0) == pytest.approx(joules(matmul=1.0) / 2)


def test_where_nobody_states_the_power_there_are_no_joules_and_not_none_of_them() -> None:
    silent = replace(DGX_H100, accelerator=replace(DGX_H100.accelerator, power_limit_w=0.0))
    assert step_energy_j({"matmul": np.array([1.0])}, ONE_NODE, silent) is None
    assert unknown_power(silent) == "nobody states what a h100-sxm draws"
    assert unknown_power(DGX_H100) == ""


def test_a_step_of_unknown_length_has_no_joules() -> None:
    assert step_energy_j({}, ONE_NODE, DGX_H100) is None


@pytest.mark.parametrize("name", sorted(node_shapes()))
def test_at_work_every_machine_draws_more_than_at_rest(name: str) -> None:
    if unknown_power(node_shape(name)):
        assert step_energy_j({"matmul": np.array([1.0])}, ONE_NODE, node_shape(name)) is None
        return
    assert joules(shape=name, matmul=1.0) > joules(shape=name, data_parallel=1.0) > 0


@given(seconds=st.lists(st.floats(0, 100), min_size=3, max_size=3))
def test_joules_lie_between_rest_and_full_use(seconds: list[float]) -> None:
    matmul_s, optimizer_s, sent_s = seconds
    drawn = joules(matmul=matmul_s, optimizer=optimizer_s, data_parallel=sent_s)
    full_w = 8 * DGX_H100.accelerator.power_limit_w + DGX_H100.host.power_w
    rest_w = 8 * DGX_H100.accelerator.idle_w + DGX_H100.host.power_w
    assert rest_w * sum(seconds) * (1 - 1e-9) <= drawn <= full_w * sum(seconds) * (1 + 1e-9)
