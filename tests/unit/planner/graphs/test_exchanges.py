from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.workload import TrafficDemand
from airflow_llmsched.planner.graphs.exchanges import Exchange, Pattern, exchanges
from airflow_llmsched.planner.perf.hardware import node_shapes
from tests.support.fleets import workload
from tests.support.models import LLAMA31_8B, QWEN3_30B_A3B

H100 = node_shapes()["p5.48xlarge"]
HIDDEN, LAYERS, PARAMETERS = 4096, 32, 8_030_261_248


def sent(layout: ParallelLayout, model=LLAMA31_8B) -> dict[str, Exchange]:
    run = workload(model, num_sequences=layout.global_batch_size, sequence_length_tokens=4096)
    return {each.group: each for each in exchanges(run, layout, H100)}


def test_replicas_pass_the_ring_volume_of_their_gradients() -> None:
    found = sent(ParallelLayout(dp=8, num_micro_batches=2))
    assert set(found) == {"dp"}
    gradient_bytes = 4  # FP32, as the workload keeps them
    assert found["dp"].bytes_per_rank == pytest.approx(2 * 7 / 8 * PARAMETERS * gradient_bytes, rel=1e-3)
    assert (found["dp"].pattern, found["dp"].stride, found["dp"].size) == (Pattern.RING, 1, 8)


def test_shards_reduce_once_and_gather_for_every_pass() -> None:
    once = sent(ParallelLayout(dp=8, zero_stage=1))["dp"].bytes_per_rank
    assert once == pytest.approx(7 / 8 * PARAMETERS * (4 + 2), rel=1e-3)
    for num in (1, 4):
        found = sent(ParallelLayout(dp=8, zero_stage=3, num_micro_batches=num))["dp"].bytes_per_rank
        assert found == pytest.approx(num * 7 / 8 * PARAMETERS * (4 + 2 + 2), rel=1e-3)


def test_tensor_ranks_gather_and_scatter_the_hidden_state_four_times_a_layer() -> None:
    found = sent(ParallelLayout(dp=1, tp=8, num_micro_batches=3))["tp"]
    once = 2 * 7 / 8 * 4096 * HIDDEN * 2  # an all-gather and a reduce-scatter of 16-bit values
    assert found.bytes_per_rank == pytest.approx(3 * (4 * LAYERS + 2) * once, rel=1e-6)


def test_stages_send_activations_forward_and_gradients_backward_and_waits_are_no_bytes() -> None:
    for num in (1, 8):
        found = sent(ParallelLayout(dp=1, pp=4, num_micro_batches=num))["pp"]
        assert found.bytes_per_rank == pytest.approx(2 * num * 4096 * HIDDEN * 2, rel=1e-6)
        assert found.pattern is Pattern.LINE
    chunks = sent(ParallelLayout(dp=1, pp=4, vp=2, num_micro_batches=8))["pp"]
    assert chunks.bytes_per_rank == pytest.approx(2 * 8 * 2 * 4096 * HIDDEN * 2, rel=1e-6)


def test_tokens_go_to_their_experts_and_back_in_both_passes() -> None:
    found = sent(ParallelLayout(dp=8, ep=8), QWEN3_30B_A3B)["ep"]
    assert found.pattern is Pattern.ALL_TO_ALL
    model = QWEN3_30B_A3B
    copies = 4096 * model.experts.num_active
    even = 4 * model.num_layers * 7 / 8 * copies * model.hidden_size * 2
    assert even <= found.bytes_per_rank <= 1.5 * even  # the fullest rank has more than its share


def test_a_job_without_a_model_sends_what_its_spec_says() -> None:
    demand = TrafficDemand(group="halo", collective="all_to_all", bytes_per_step=700, group_size=8)
    run = replace(workload(LLAMA31_8B), model=None, communication=(demand,))
    (found,) = exchanges(run, ParallelLayout(dp=16), H100)
    assert (found.group, found.pattern, found.size) == ("halo all_to_all", Pattern.ALL_TO_ALL, 8)
    assert found.bytes_per_rank == pytest.approx(700 * 7 / 8)


def test_one_rank_sends_nothing() -> None:
    assert sent(ParallelLayout(dp=1)) == {}
