from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.micro_batch import slowest_micro_batch
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.planner.perf.replicas import data_parallel_s, heaviest_rank, optimizer_s, tied_embedding_s
from tests.support.fleets import job
from tests.support.models import GPT2, LLAMA2_7B, MIXTRAL_8X7B

H100 = node_shape("p5.48xlarge")
APART = Software(overlaps_data_parallel=False)


def machine(ranks: int = 8) -> Machine:
    return Machine(shape=H100, ranks_per_node_C=np.array([ranks]))


def traffic(layout: ParallelLayout, *, model: ModelShape = LLAMA2_7B, software: Software = APART) -> float:
    task, table = replace(job(model), software=software), LayoutTable.of([layout])
    here = machine(min(8, layout.world_size))
    return float(data_parallel_s(task, table, here, slowest_micro_batch(task, table, here))[0])


def test_the_heaviest_rank_of_one_stage_holds_the_model() -> None:
    rank = heaviest_rank(job(LLAMA2_7B), LayoutTable.of([ParallelLayout(dp=1)]))
    assert rank.dense_C[0] == rank.trained_dense_C[0] == count_parameters(LLAMA2_7B).total
    assert heaviest_rank(job(LLAMA2_7B, lora_rank=8), LayoutTable.of([ParallelLayout(dp=1)])).trained_dense_C[0] < 1e8


def test_fully_sharded_traffic_is_half_as_much_again_and_for_each_micro_batch() -> None:
    """Rajbhandari et al. 2020, section 7: 3 against 2 of the model; weights move in 16 bits here, gradients in 32."""
    once = traffic(ParallelLayout(dp=8, zero_stage=3))
    assert traffic(ParallelLayout(dp=8, zero_stage=3, num_micro_batches=4)) == pytest.approx(4 * once)
    assert traffic(ParallelLayout(dp=8, zero_stage=1)) < once
    assert traffic(ParallelLayout(dp=8, zero_stage=1, num_micro_batches=4)) == traffic(
        ParallelLayout(dp=8, zero_stage=1)
    )


def test_hidden_traffic_costs_less_than_exposed_but_never_nothing() -> None:
    layout = ParallelLayout(dp=64, zero_stage=3, micro_batch_size=4)
    hidden = traffic(layout, software=Software())
    assert 0 < hidden < traffic(layout)


def test_shards_inside_a_node_spare_the_network_gathers() -> None:
    """HSDP: gathers stay on NVLink, and one all-reduce of each shard crosses the network."""
    layout = ParallelLayout(dp=64, zero_stage=3, num_micro_batches=8)
    assert traffic(replace(layout, shard_size=8)) < traffic(layout)


def test_experts_are_reduced_over_the_ranks_that_share_them() -> None:
    layout = ParallelLayout(dp=16, zero_stage=1)
    assert traffic(replace(layout, ep=8), model=MIXTRAL_8X7B) < traffic(layout, model=MIXTRAL_8X7B)


def test_a_sharded_optimizer_touches_a_share_of_the_states() -> None:
    def seconds(zero: int) -> float:
        table = LayoutTable.of([ParallelLayout(dp=8, zero_stage=zero)])
        return float(optimizer_s(job(LLAMA2_7B), table, machine())[0])

    assert seconds(0) / 8 < seconds(1) < seconds(0) / 3


def test_only_a_tied_embedding_is_added_up_between_the_ends() -> None:
    def seconds(model: ModelShape, pp: int) -> float:
        return float(tied_embedding_s(job(model), LayoutTable.of([ParallelLayout(dp=1, pp=pp)]), machine())[0])

    assert seconds(GPT2, 4) > seconds(GPT2, 1) == seconds(LLAMA2_7B, 4) == 0
