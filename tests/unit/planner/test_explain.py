from __future__ import annotations

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import Plan, PlanSearch, Prediction
from airflow_llmsched.domain.workload import CapacityWish
from airflow_llmsched.planner.explain import STEP_TERMS, explain
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, local_workload, workload
from tests.support.models import LLAMA2_70B


def plan(layout: ParallelLayout, *, step_s: float, memory_bytes: int = 2**30, usd_per_hour: float = 3600.0) -> Plan:
    breakdown = {"compute": step_s * 0.75, "tensor_parallel": step_s * 0.25} if step_s else {}
    return Plan(
        layout=layout,
        placement=Placement(slots=(RankSlot(rank=0, node=NodeId("n"), slot=0, local_rank=0),)),
        prediction=Prediction(
            step_s=step_s, step_breakdown_s=breakdown, memory_bytes_per_rank=memory_bytes,
            memory_breakdown_bytes={"weights": memory_bytes}, mfu_ratio=0.4 if step_s else 0.0, tokens_per_s=1.0,
            usd_per_hour=usd_per_hour, error_ratio=0.5,
        ),
        node_shape="p5.48xlarge",
        num_domains=1,
    )  # fmt: skip


WIDE = ParallelLayout(
    dp=2, tp=8, pp=4, cp=2, ep=2, zero_stage=2, micro_batch_size=1, num_micro_batches=8, recompute=Recompute.FULL
)


def test_each_degree_is_put_into_words() -> None:
    words = explain(PlanSearch(plans=(plan(WIDE, step_s=2.0),)))
    for part in (
        "2 x 8 micro-batches of 1, 16 sequences",
        "8 accelerators of one node",
        "4 stages",
        "over 2 ranks (cp)",
        "experts are spread over 2",
        "optimizer state and gradients (ZeRO 2)",
        "Every layer is computed again",
    ):
        assert part in words


def test_what_binds_comes_first_with_its_share_and_the_band_is_stated() -> None:
    words = explain(PlanSearch(plans=(plan(WIDE, step_s=2.0),)))
    assert f"{STEP_TERMS['compute']} 75%, {STEP_TERMS['tensor_parallel']} 25%" in words
    assert "2 s, or 1 to 3" in words


def test_plans_that_are_better_in_one_respect_are_named() -> None:
    best = plan(ParallelLayout(dp=8), step_s=2.0, memory_bytes=4 * 2**30)
    lean = plan(ParallelLayout(dp=4, tp=2), step_s=3.0, memory_bytes=2**30)
    cheap = plan(ParallelLayout(dp=1), step_s=4.0, memory_bytes=4 * 2**30, usd_per_hour=100.0)
    words = explain(PlanSearch(plans=(best, lean, cheap)))
    assert "Leanest: dp=4 tp=2" in words
    assert "1 against 4 GiB/rank" in words
    assert "Cheapest: dp=1" in words
    assert "Fastest" not in words


def test_a_job_of_unknown_time_says_so() -> None:
    assert "Nothing is known of the time" in explain(PlanSearch(plans=(plan(ParallelLayout(dp=1), step_s=0.0),)))


def test_rejections_are_listed_by_count_and_long_lists_are_summed_up() -> None:
    rejections = {f"reason {number}": 100 - number for number in range(10)}
    words = explain(PlanSearch(plans=(), rejections=rejections, num_candidates=955, relaxation="ask for less"))
    assert words.startswith("No plan: none of 955 candidates can run.\n\nWhat would help: ask for less.")
    assert "100  reason 0" in words
    assert "reason 8" not in words
    assert f"{92 + 91}  other reasons" in words


@pytest.mark.parametrize("least", [1, 99])
def test_the_same_search_reads_the_same(least: int) -> None:
    run = local_workload(capacity=CapacityWish(min_ranks=least))
    tree = fleet(2, slots=2, shape="local-cpu")
    one, other = (explain(search(run, tree, node_shapes(), solver=BestFitSolver())) for _ in range(2))
    assert one == other


def test_a_real_search_names_only_terms_that_have_words() -> None:
    found = search(workload(LLAMA2_70B), fleet(4), node_shapes(), solver=BestFitSolver())
    for each in found.plans:
        assert set(each.prediction.step_breakdown_s) <= set(STEP_TERMS)
