from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import Offload, ParallelLayout, Recompute, RecomputeModule
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import PhasePrediction, Plan, PlanSearch, Prediction
from airflow_llmsched.domain.workload import CapacityWish, ParallelismWish
from airflow_llmsched.planner.explain import FIELDS, STEP_TERMS, explain, explain_plan
from airflow_llmsched.planner.neighbours import Neighbour, neighbours
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, local_workload, machine_of, node, tree_of, workload
from tests.support.models import LLAMA2_70B


def plan(layout: ParallelLayout, *, step_s: float, memory_bytes: int = 2**30, usd_per_hour: float = 3600.0) -> Plan:
    breakdown = {"matmul": step_s * 0.75, "tensor_parallel": step_s * 0.25} if step_s else {}
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
        "split over 8 accelerators (tp)",
        "4 stages",
        "over 2 ranks (cp)",
        "experts are spread over 2",
        "optimizer state and gradients (ZeRO 2)",
        "Every layer is computed again",
    ):
        assert part in words


def test_what_binds_comes_first_with_its_share_and_the_band_is_stated() -> None:
    words = explain(PlanSearch(plans=(plan(WIDE, step_s=2.0),)))
    assert f"What binds it: {STEP_TERMS['matmul']} 75%; then {STEP_TERMS['tensor_parallel']} 25%." in words
    assert "2 s, or 1.33 to 3" in words


def test_a_run_is_told_as_a_whole_and_by_its_phases() -> None:
    best = plan(WIDE, step_s=2.0)
    phases = tuple(
        PhasePrediction(
            from_tokens=start, sequence_length_tokens=length, num_sequences=16, num_steps=1500, step_s=seconds,
            memory_bytes_per_rank=length * 2**20,
        )
        for start, length, seconds in ((0, 2048, 1.0), (49_152_000, 4096, 2.0))
    )  # fmt: skip
    whole = replace(
        best, prediction=replace(best.prediction, phases=phases, run_s=9000.0, run_usd=9000.0, run_energy_j=7.2e6)
    )
    words = explain(PlanSearch(plans=(whole,)))
    assert "The whole run takes 2.5 hours, $9,000.00 and 2 kWh, nothing going wrong. Its phases:" in words
    assert "from 0 tokens: 16 x 2048 tokens a step, 1,500 steps of 1 s, 2.00 GiB\n" in words
    assert "from 49,152,000 tokens: 16 x 4096 tokens a step, 1,500 steps of 2 s, 4.00 GiB, the most" in words


def test_energy_that_is_not_known_is_said_to_be_unknown_with_the_reason() -> None:
    best = plan(WIDE, step_s=2.0)
    silent = replace(best.prediction, run_s=9000.0, run_usd=9.0, energy_unknown="nobody states what a tpu-v5e draws")
    words = explain(PlanSearch(plans=(replace(best, prediction=silent),), notes=("Joules were not weighed.",)))
    assert "nothing going wrong. Its energy is not known: nobody states what a tpu-v5e draws." in words
    assert "kWh" not in words
    assert "Joules were not weighed." in words


def test_a_run_that_breaks_its_budget_is_said_to() -> None:
    kept = workload(LLAMA2_70B)
    broken = replace(kept, budget=replace(kept.budget, deadline_s=1.0, max_usd=5.0))
    found = search(kept, fleet(8), node_shapes(), solver=BestFitSolver())
    assert "does not keep" not in explain_plan(kept, found, fleet(8), node_shapes())
    words = explain_plan(broken, found, fleet(8), node_shapes())
    assert "The run does not keep its budget: it takes " in words
    assert "where budget.deadline is 1 s and $" in words
    assert "where budget.max_usd is $5.00." in words


def test_plans_that_are_better_in_one_respect_are_named() -> None:
    best = plan(ParallelLayout(dp=8), step_s=2.0, memory_bytes=4 * 2**30)
    lean = plan(ParallelLayout(dp=4, tp=2), step_s=3.0, memory_bytes=2**30)
    cheap = plan(ParallelLayout(dp=1), step_s=4.0, memory_bytes=4 * 2**30, usd_per_hour=100.0)
    words = explain(PlanSearch(plans=(best, lean, cheap)))
    assert "Leanest: dp=4 tp=2" in words
    assert "1 against 4 GiB/rank" in words
    assert "Cheapest: dp=1" in words
    assert "Fastest" not in words


def neighbour(
    field: str, layout: ParallelLayout, *, step_s: float, memory_bytes: int, missing_bytes: int = 0
) -> Neighbour:
    prediction = plan(layout, step_s=step_s, memory_bytes=memory_bytes).prediction
    return Neighbour(field=field, layout=layout, prediction=prediction, missing_bytes=missing_bytes)


def test_a_choice_is_explained_by_what_its_neighbours_cost_or_break() -> None:
    best = plan(ParallelLayout(dp=8, tp=2), step_s=2.0, memory_bytes=4 * 2**30)
    around = (
        Neighbour(field="tp", layout=ParallelLayout(dp=4, tp=4), obstacle="tp does not fit into a node"),
        neighbour("tp", ParallelLayout(dp=16), step_s=3.0, memory_bytes=6 * 2**30),
        neighbour("micro_batch_size", ParallelLayout(dp=8, tp=2, micro_batch_size=2), step_s=1.9,
                  memory_bytes=9 * 2**30, missing_bytes=3 * 2**29),
        neighbour("recompute", ParallelLayout(dp=8, tp=2, recompute=Recompute.FULL), step_s=2.001,
                  memory_bytes=2**30),
    )  # fmt: skip
    words = explain(PlanSearch(plans=(best,)), around)
    assert "Tensor parallelism (tp) stays at 2. At 4 (dp=4): tp does not fit into a node. At 1 (dp=16) a step" in words
    assert f"takes 50% longer, with 2.0 GiB more a rank: {STEP_TERMS['matmul']} +0.75 s" in words
    assert "The micro-batch stays at 1. At 2 a rank needs 1.5 GiB more than it may use." in words
    assert "Recomputation stays at none. At full a step takes as long, with 3.0 GiB less a rank." in words


def test_a_neighbour_that_is_a_plan_is_named_by_its_number_and_a_faster_one_is_not_hidden() -> None:
    best = plan(ParallelLayout(dp=8, tp=2), step_s=2.0)
    faster = ParallelLayout(dp=16)
    found = PlanSearch(plans=(best, plan(faster, step_s=1.0)))
    words = explain(found, (neighbour("tp", faster, step_s=1.0, memory_bytes=2**30),))
    assert "At 1 (dp=16) (plan 2) a step takes 50% less, with as much memory" in words


def test_the_next_plan_is_compared_by_the_terms_that_make_the_difference() -> None:
    best = plan(ParallelLayout(dp=8), step_s=2.0)
    after = plan(ParallelLayout(dp=4), step_s=4.0)
    slower = {"matmul": 1.5, "tensor_parallel": 2.45, "optimizer": 0.05}
    after = replace(after, prediction=replace(after.prediction, step_breakdown_s=slower))
    words = explain(PlanSearch(plans=(best, after)))
    assert "The next by the objective is dp=4 zero=0 micro=1x1 on 4 ranks: a step takes 100% longer" in words
    assert f"as much memory: {STEP_TERMS['tensor_parallel']} +1.95 s." in words
    assert STEP_TERMS["optimizer"] not in words


def test_chunks_offload_and_split_experts_are_put_into_words() -> None:
    layout = ParallelLayout(
        dp=8, tp=2, pp=2, vp=4, ep=4, expert_tp=1, zero_stage=3, shard_size=4, offload=Offload.OPTIMIZER_HOST,
        recompute=Recompute.MODULES, recompute_modules=(RecomputeModule.NORMS,),
    )  # fmt: skip
    words = explain(PlanSearch(plans=(plan(layout, step_s=2.0),)))
    for part in (
        "2 stages (pp), each of 4 chunks that take turns",
        "over 4 ranks (ep), each whole",
        "(ZeRO 3), in groups of 4",
        "host memory, where the optimizer runs",
        "computed again instead of kept: layernorm",
    ):
        assert part in words


def test_the_whole_explanation_compares_with_neighbours() -> None:
    run = workload(LLAMA2_70B, parallelism=ParallelismWish(pp=4))
    found = search(run, fleet(4), node_shapes(), solver=BestFitSolver())
    words = explain_plan(run, found, fleet(4), node_shapes())
    around = neighbours(run, found.plans[0], machine_of(found.plans[0], fleet(4), node_shapes()["p5.48xlarge"]))
    assert words == explain(found, around) != explain(found)


def test_without_a_plan_or_a_model_there_is_less_to_say() -> None:
    nothing = PlanSearch(plans=(), num_candidates=3)
    assert explain_plan(workload(), nothing, fleet(1), {}) == explain(nothing)
    stated = replace(workload(), model=None)
    alone = PlanSearch(plans=(plan(ParallelLayout(dp=1), step_s=0.0),))
    assert explain_plan(stated, alone, tree_of(node("n")), node_shapes()) == explain(alone)


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


def test_a_real_search_names_only_terms_and_fields_that_have_words() -> None:
    run = workload(LLAMA2_70B)
    found = search(run, fleet(4), node_shapes(), solver=BestFitSolver())
    around = neighbours(run, found.plans[0], machine_of(found.plans[0], fleet(4), node_shapes()["p5.48xlarge"]))
    assert {each.field for each in around} <= set(FIELDS)
    assert explain(found, around).count("stays at") == len({each.field for each in around})
    for each in found.plans:
        assert set(each.prediction.step_breakdown_s) <= set(STEP_TERMS)
