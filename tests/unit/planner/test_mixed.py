from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.codec import from_json, to_json
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute
from airflow_llmsched.domain.workload import CapacityWish, ParallelismWish
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.mixed import (
    RECOMPUTED,
    REPLICA_ZERO_STAGES,
    LikeNodes,
    MixedSearch,
    Unevenness,
    explain_mixed,
    plan_mixed,
)
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory import memory_totals
from airflow_llmsched.planner.perf.step import step_terms
from airflow_llmsched.units import GIB
from tests.support.fleets import job, workload
from tests.support.models import GPT2, LLAMA2_70B, LLAMA31_8B

H100, A100 = node_shape("p5.48xlarge"), node_shape("p4de.24xlarge")
BOTH = [LikeNodes(shape=H100, num_nodes=1), LikeNodes(shape=A100, num_nodes=1)]


NUM_SEQUENCES = 48


def priced_s(layouts: list[ParallelLayout], kind: LikeNodes) -> np.ndarray:
    """Price a step with 1, 2, 3 and so on micro-batches, each by itself (layout, number)."""
    rows = [replace(each, num_micro_batches=num) for each in layouts for num in range(1, NUM_SEQUENCES)]
    machine = Machine(shape=kind.shape, ranks_per_node_C=np.full(len(rows), 8))
    terms = step_terms(job(GPT2, num_sequences=NUM_SEQUENCES), LayoutTable.of(rows), machine)
    return np.sum(list(terms.values()), axis=0).reshape(len(layouts), -1)


def best_by_brute_force_s() -> float:
    """Try every layout, and every pair of most micro-batches on the two kinds with which all can be dealt out."""
    layouts = [
        ParallelLayout(
            dp=16 // (tp * pp), tp=tp, pp=pp, zero_stage=stage, micro_batch_size=size, recompute=recompute,
        )
        for tp in (1, 2, 4) for pp in (1, 2, 4, 8) if tp * pp <= 8 for size in (1, 2, 4, 8, 16)
        for stage in REPLICA_ZERO_STAGES for recompute in RECOMPUTED
    ]  # fmt: skip
    best_s = np.inf
    for layout, fast_s, slow_s in zip(layouts, *(priced_s(layouts, kind) for kind in BOTH), strict=True):
        items, each = NUM_SEQUENCES // layout.micro_batch_size, layout.dp // 2
        for fast in range(1, items):
            slow = max(1, -(-(items - each * fast) // each))
            if slow < NUM_SEQUENCES and layout.dp <= items:
                best_s = min(best_s, max(fast_s[fast - 1], slow_s[slow - 1]))
    return best_s


def test_uneven_replicas_are_within_one_percent_of_brute_force() -> None:
    found = plan_mixed(workload(GPT2, num_sequences=NUM_SEQUENCES), BOTH)
    plan = next(each for each in found.plans if each.by is Unevenness.REPLICAS)
    assert plan.step_s == pytest.approx(best_by_brute_force_s(), rel=0.01)


def test_two_kinds_together_are_faster_than_each_alone_and_than_equal_shares() -> None:
    found = plan_mixed(workload(LLAMA31_8B), BOTH)
    best = found.plans[0]
    assert all(alone_s is not None and best.step_s < alone_s for _, alone_s in found.alone_s)
    assert best.step_s < 0.8 * best.even_step_s
    assert best.usd_per_hour == H100.usd_per_hour + A100.usd_per_hour


def test_all_of_the_batch_is_dealt_and_the_faster_kind_gets_more() -> None:
    found = plan_mixed(workload(LLAMA31_8B), BOTH)
    plan = next(each for each in found.plans if each.by is Unevenness.REPLICAS)
    fast, slow = plan.shares
    assert (fast.node_shape, slow.node_shape) == ("p5.48xlarge", "p4de.24xlarge")
    assert sum((*fast.amounts, *slow.amounts)) * plan.layout.micro_batch_size == 256
    assert min(fast.amounts) > max(slow.amounts)
    assert len(fast.amounts) + len(slow.amounts) == plan.layout.dp


def test_all_layers_are_dealt_and_the_faster_kind_gets_more() -> None:
    found = plan_mixed(workload(LLAMA31_8B), BOTH)
    plan = next(each for each in found.plans if each.by is Unevenness.STAGES)
    amounts = {share.node_shape: share.amounts for share in plan.shares}
    assert sum(sum(each) for each in amounts.values()) == LLAMA31_8B.num_layers
    assert min(amounts["p5.48xlarge"]) >= max(amounts["p4de.24xlarge"])
    assert plan.step_s <= plan.even_step_s


def test_like_kinds_get_like_shares() -> None:
    found = plan_mixed(workload(LLAMA31_8B), [LikeNodes(shape=H100, num_nodes=1)] * 2)
    plan = next(each for each in found.plans if each.by is Unevenness.REPLICAS)
    assert plan.step_s == pytest.approx(plan.even_step_s)


def test_what_fits_on_neither_kind_alone_may_fit_on_both() -> None:
    found = plan_mixed(workload(LLAMA2_70B), [BOTH[0], LikeNodes(shape=A100, num_nodes=2)])
    assert found.plans
    assert [alone_s for _, alone_s in found.alone_s] == [None, None]
    words = explain_mixed(found)
    assert "p5.48xlarge alone: it does not fit." in words


def test_no_plan_is_said_in_words_and_a_job_without_a_model_is_refused() -> None:
    small = replace(A100, accelerator=replace(A100.accelerator, memory_bytes=2**30))
    none = plan_mixed(workload(LLAMA31_8B), [LikeNodes(shape=small, num_nodes=1)] * 2)
    assert explain_mixed(none) == "No plan: no layout that the spec allows fits all kinds at once."
    with pytest.raises(ValueError, match="without a model"):
        plan_mixed(workload(None), BOTH)


def test_pinned_degrees_are_kept_in_both_ways() -> None:
    free = plan_mixed(workload(LLAMA31_8B), BOTH)
    wish = ParallelismWish(tp=4, dp=2, micro_batch_size=2, zero_stage=1, recompute=Recompute.FULL)
    pinned = plan_mixed(workload(LLAMA31_8B, parallelism=wish), BOTH)
    assert {plan.by for plan in pinned.plans} == set(Unevenness)
    for plan in pinned.plans:
        kept = plan.layout
        assert (kept.dp, kept.tp, kept.pp) == (2, 4, 2)
        assert (kept.micro_batch_size, kept.zero_stage, kept.recompute) == (2, 1, Recompute.FULL)
        assert plan.step_s > free.plans[0].step_s
    assert all(alone_s is not None for _, alone_s in pinned.alone_s)


@pytest.mark.parametrize("number", [2, 3])
def test_a_pin_that_no_doubling_comes_to_is_tried(number: int) -> None:
    """ZeRO 2, and three sequences at once, are not among what is tried unasked."""
    wish = ParallelismWish(zero_stage=2) if number == 2 else ParallelismWish(micro_batch_size=3)
    found = plan_mixed(workload(GPT2, num_sequences=NUM_SEQUENCES, parallelism=wish), BOTH)
    layout = found.plans[0].layout
    assert (layout.zero_stage if number == 2 else layout.micro_batch_size) == number


@pytest.mark.parametrize(
    "wish",
    [
        ParallelismWish(cp=2), ParallelismWish(ep=2), ParallelismWish(vp=2), ParallelismWish(expert_tp=1),
        ParallelismWish(shard_size=8), ParallelismWish(recompute=Recompute.MODULES),
        ParallelismWish(schedule=PipelineSchedule.ZERO_BUBBLE), ParallelismWish(offload=Offload.OPTIMIZER_HOST),
    ],
)  # fmt: skip
def test_a_pin_that_is_never_tried_here_is_an_error_and_not_ignored(wish: ParallelismWish) -> None:
    with pytest.raises(SpecError, match="several kinds") as caught:
        plan_mixed(workload(LLAMA31_8B, parallelism=wish), BOTH)
    assert getattr(wish, caught.value.path.removeprefix("parallelism.")) is not None


def test_a_gang_has_no_more_and_no_fewer_ranks_than_it_may() -> None:
    with pytest.raises(SpecError, match=r"capacity\.max_ranks.*16 accelerators"):
        plan_mixed(workload(LLAMA31_8B, capacity=CapacityWish(max_ranks=8)), BOTH)
    with pytest.raises(SpecError, match=r"capacity\.min_ranks.*16 accelerators"):
        plan_mixed(workload(LLAMA31_8B, capacity=CapacityWish(min_ranks=17)), BOTH)
    assert plan_mixed(workload(LLAMA31_8B, capacity=CapacityWish(min_ranks=16, max_ranks=16)), BOTH).plans


@pytest.mark.parametrize(("memory_gib", "num_plans"), [(44, 0), (50, 1)])
def test_a_replica_has_room_for_the_micro_batches_that_it_gets_and_not_for_the_mean(
    memory_gib: int, num_plans: int
) -> None:
    """Of ten micro-batches the faster replica gets nine, which fill its pipeline: 45 GiB. The mean would need 37."""
    wish = ParallelismWish(tp=1, pp=8, micro_batch_size=1, zero_stage=0, recompute=Recompute.NONE)
    kinds = [
        replace(
            kind, shape=replace(kind.shape, accelerator=replace(kind.shape.accelerator, memory_bytes=memory_gib * GIB))
        )
        for kind in BOTH
    ]
    found = plan_mixed(workload(LLAMA31_8B, num_sequences=10, parallelism=wish), kinds)
    plans = [each for each in found.plans if each.by is Unevenness.REPLICAS]
    assert len(plans) == num_plans
    for plan in plans:
        assert [max(share.amounts) for share in plan.shares] == [9, 1]
        total_bytes = memory_totals(job(LLAMA31_8B, num_sequences=10), LayoutTable.of([plan.layout]))[0]
        assert 44 * GIB < total_bytes < 46 * GIB


def test_a_choice_is_told_with_what_it_was_chosen_over_and_survives_json() -> None:
    found = plan_mixed(workload(LLAMA31_8B), BOTH)
    words = explain_mixed(found)
    assert words.startswith(f"Chosen: uneven {found.plans[0].by}")
    for part in ("p4de.24xlarge: 8 ranks", "With equal shares", "p5.48xlarge alone:", "instead:"):
        assert part in words
    assert from_json(MixedSearch, to_json(found)) == found
