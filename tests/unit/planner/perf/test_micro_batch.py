"""One micro-batch on the slowest stage: sums, what is computed again, waiting for the host, hiding traffic."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout, Recompute, RecomputeModule
from airflow_llmsched.domain.software import Software
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.micro_batch import MicroBatch, exposed_s, slowest_micro_batch
from airflow_llmsched.planner.perf.rates import Rates
from tests.support.fleets import job
from tests.support.models import GPT2, LLAMA2_7B, LLAMA31_8B, MIXTRAL_8X7B

H100 = node_shape("p5.48xlarge")


def machine(*, ranks: int = 8, rates: Rates | None = None) -> Machine:
    return Machine(shape=H100, ranks_per_node_C=np.array([ranks]), rates=rates)


def price(task: TransformerJob, layout: ParallelLayout, *, rates: Rates | None = None) -> MicroBatch:
    return slowest_micro_batch(task, LayoutTable.of([layout]), machine(rates=rates))


@pytest.mark.parametrize("model", [GPT2, LLAMA2_7B, MIXTRAL_8X7B])
@pytest.mark.parametrize("recompute", list(Recompute))
def test_terms_add_up_to_both_passes(model, recompute: Recompute) -> None:  # type: ignore[no-untyped-def]
    layout = ParallelLayout(
        dp=4, tp=2, pp=2, ep=2, recompute=recompute, recompute_modules=(RecomputeModule.MLP, RecomputeModule.QKV)
    )
    found = price(job(model), layout)
    assert sum(float(term[0]) for term in found.terms_s.values()) == pytest.approx(float(found.total_s_C[0]))
    assert 0 < found.weight_gradient_s_C[0] < found.backward_s_C[0]
    assert found.whole_model_s_C[0] > found.total_s_C[0]


def test_full_recomputation_is_a_second_forward_pass_without_the_head() -> None:
    found = price(job(LLAMA2_7B), ParallelLayout(dp=1, recompute=Recompute.FULL))
    assert 0.9 * found.forward_s_C[0] < found.terms_s["recompute"][0] < found.forward_s_C[0]


def test_selective_recomputation_costs_nothing_where_scores_are_never_kept() -> None:
    fused = price(job(LLAMA2_7B), ParallelLayout(dp=1, recompute=Recompute.SELECTIVE))
    kept = replace(job(LLAMA2_7B), software=Software(fused_attention=False))
    assert fused.terms_s["recompute"][0] == 0
    assert price(kept, ParallelLayout(dp=1, recompute=Recompute.SELECTIVE)).terms_s["recompute"][0] > 0


def test_recomputed_modules_cost_their_own_passes() -> None:
    def again_s(*modules: RecomputeModule) -> float:
        layout = ParallelLayout(dp=1, recompute=Recompute.MODULES, recompute_modules=modules)
        return float(price(job(LLAMA2_7B), layout).terms_s["recompute"][0])

    norms, mlp = again_s(RecomputeModule.NORMS), again_s(RecomputeModule.MLP)
    assert 0 < norms < mlp
    assert again_s(RecomputeModule.NORMS, RecomputeModule.MLP) == pytest.approx(norms + mlp)
    assert again_s(RecomputeModule.MLP, RecomputeModule.MLP_ACTIVATION) == pytest.approx(mlp)


def test_every_second_product_again_costs_more_than_what_lies_between_products_and_less_than_all() -> None:
    def again_s(*modules: RecomputeModule) -> float:
        layout = ParallelLayout(dp=1, recompute=Recompute.MODULES, recompute_modules=modules)
        return float(price(job(LLAMA2_7B), layout).terms_s["recompute"][0])

    between = again_s(RecomputeModule.NORMS, RecomputeModule.MLP_ACTIVATION)
    everything = float(price(job(LLAMA2_7B), ParallelLayout(dp=1, recompute=Recompute.FULL)).terms_s["recompute"][0])
    assert between < again_s(RecomputeModule.EVERY_SECOND_PRODUCT) < 0.7 * everything


def test_tokens_travel_again_to_experts_that_are_computed_again() -> None:
    def sent_s(*modules: RecomputeModule) -> float:
        layout = ParallelLayout(dp=8, ep=8, recompute=Recompute.MODULES, recompute_modules=modules)
        return float(price(job(MIXTRAL_8X7B), layout).terms_s["expert_parallel"][0])

    assert sent_s(RecomputeModule.MLP) == pytest.approx(1.5 * sent_s(RecomputeModule.NORMS))


def test_small_models_wait_for_the_host_unless_launches_are_recorded() -> None:
    task = job(GPT2, sequence_length_tokens=128)
    layout = ParallelLayout(dp=1)
    slow_host = Rates(host_kernel_s=5e-5)
    waiting = price(task, layout, rates=slow_host)
    recorded = price(replace(task, software=Software(recorded_launches=True)), layout, rates=slow_host)
    assert waiting.terms_s["launch"][0] > recorded.terms_s["launch"][0] == 0


def test_traffic_is_hidden_piece_by_piece_and_at_a_price() -> None:
    rates = Rates(hidden_ratio=1.0, contention_ratio=0.1)
    one = np.array([1.0])
    assert exposed_s(one, 10.0, machine(rates=rates)) == pytest.approx(0.1)
    assert exposed_s(one, 10.0, machine(rates=rates), num_pieces=4) == pytest.approx(0.25 + 0.075)
    assert exposed_s(one, 0.0, machine(rates=rates)) == 1


def test_where_collectives_take_the_processor_nothing_is_hidden() -> None:
    local = Machine(shape=node_shape("local-cpu"), ranks_per_node_C=np.array([1]))
    assert exposed_s(np.array([1.0]), math.inf, local) == 1


def test_overlapped_tensor_parallelism_exposes_less() -> None:
    layout = ParallelLayout(dp=1, tp=8)
    apart = price(job(LLAMA2_7B), layout)
    beside = price(replace(job(LLAMA2_7B), software=Software(overlaps_tensor_parallel=True)), layout)
    assert beside.terms_s["tensor_parallel"][0] < apart.terms_s["tensor_parallel"][0]
    assert beside.terms_s["matmul"][0] == apart.terms_s["matmul"][0]


def test_experts_of_other_ranks_cost_an_all_to_all() -> None:
    alone, spread = (price(job(MIXTRAL_8X7B), ParallelLayout(dp=8, ep=ep)) for ep in (1, 8))
    assert spread.terms_s["expert_parallel"][0] > alone.terms_s["expert_parallel"][0] == 0


def test_a_parallel_block_sums_attention_and_mlp_before_it_sends_them() -> None:
    layout = ParallelLayout(dp=1, tp=8)
    one, two = (
        price(job(replace(LLAMA2_7B, parallel_block=is_parallel)), layout).terms_s["tensor_parallel"][0]
        for is_parallel in (True, False)
    )
    assert one == pytest.approx(two / 2, rel=0.05)


def test_predicting_ahead_costs_the_last_stage_one_more_layer() -> None:
    ahead = replace(LLAMA2_7B, num_predict_ahead_layers=1)
    seconds = [float(price(job(model), ParallelLayout(dp=1, pp=4)).total_s_C[0]) for model in (LLAMA2_7B, ahead)]
    assert 1 + 1 / 8 < seconds[1] / seconds[0] < 1 + 2 / 8


def test_balanced_stages_take_the_mean_and_never_less() -> None:
    """A head of 128,256 words is worth several layers of an 8 B model; dealt out, it leaves its stage fewer of them."""
    layout = ParallelLayout(dp=1, pp=8)
    even = price(job(LLAMA31_8B), layout)
    dealt = price(replace(job(LLAMA31_8B), software=Software(balances_stages=True)), layout)
    assert dealt.total_s_C[0] == pytest.approx(dealt.whole_model_s_C[0] / 8)
    assert dealt.total_s_C[0] < even.total_s_C[0]
    assert sum(float(term[0]) for term in dealt.terms_s.values()) == pytest.approx(float(dealt.total_s_C[0]))
    flat = ParallelLayout(dp=1)
    assert (
        price(job(LLAMA31_8B), flat).total_s_C
        == price(replace(job(LLAMA31_8B), software=Software(balances_stages=True)), flat).total_s_C
    )


STEP_IN_A_PROCESS = """
from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.micro_batch import slowest_micro_batch
from tests.support.fleets import job
from tests.support.models import MIXTRAL_8X7B
import numpy as np
table = LayoutTable.of([ParallelLayout(dp=2, tp=tp, pp=pp, cp=cp, ep=2, micro_batch_size=b, recompute=Recompute.FULL)
    for tp in (2, 4, 8) for pp in (1, 2, 4, 8) for cp in (1, 2, 4) for b in (1, 2, 4)])
machine = Machine(shape=node_shape("p5.48xlarge"), ranks_per_node_C=np.full(len(table), 8))
found = slowest_micro_batch(job(MIXTRAL_8X7B), table, machine)
print([value.hex() for value in (found.total_s_C + 0.0).tolist()])
print([value.hex() for value in (found.whole_model_s_C + 0.0).tolist()])
"""


def test_every_process_gets_the_same_seconds_to_the_last_digit() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", STEP_IN_A_PROCESS],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=True, capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }  # fmt: skip
    assert len(told) == 1
