from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.workload import BatchPhase, CapacityWish, ParallelismWish
from airflow_llmsched.planner.layouts import legal_layouts
from airflow_llmsched.planner.ranks import nearest_rank_counts, rank_counts, reserved_slots
from tests.support.fleets import local_workload, workload
from tests.support.models import LLAMA31_8B, MIXTRAL_8X7B


@settings(max_examples=20, deadline=None)
@given(
    model=st.sampled_from([LLAMA31_8B, MIXTRAL_8X7B]), num_sequences=st.sampled_from([24, 100, 256]),
    max_ranks=st.integers(1, 40), tp=st.sampled_from([None, 2, 4]), pp=st.sampled_from([None, 2]),
)  # fmt: skip
def test_no_workable_rank_count_is_missed(model, num_sequences: int, max_ranks: int, tp, pp) -> None:  # type: ignore[no-untyped-def]
    run = workload(model, num_sequences=num_sequences, parallelism=ParallelismWish(tp=tp, pp=pp))
    counts = rank_counts(run, max_ranks=max_ranks)
    workable = [
        count for count in range(1, max_ranks + 1) if len(legal_layouts(run, world_sizes=[count], slots_per_node=8))
    ]
    assert set(workable) <= set(counts)


def test_the_shipped_trainer_runs_on_divisors_of_the_batch() -> None:
    assert rank_counts(local_workload(), max_ranks=20) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(("least", "most", "counts"), [(2, 8, [2, 4, 8]), (3, 3, []), (5, None, [8, 16, 32])])
def test_the_capacity_wish_bounds_the_counts(least: int, most: int | None, counts: list[int]) -> None:
    run = local_workload(capacity=CapacityWish(min_ranks=least, max_ranks=most))
    assert rank_counts(run, max_ranks=40) == counts


def test_a_pinned_dp_leaves_its_multiples() -> None:
    assert rank_counts(local_workload(parallelism=ParallelismWish(dp=4)), max_ranks=40) == [4]


def test_a_schedule_allows_only_what_divides_every_phase() -> None:
    phases = tuple(
        BatchPhase(from_tokens=index, sequence_length_tokens=256, num_sequences=number)
        for index, number in enumerate((24, 32))
    )
    assert rank_counts(local_workload(batch=phases), max_ranks=40) == [1, 2, 4, 8]


def test_without_a_batch_any_number_will_do() -> None:
    assert rank_counts(workload(None, batch=()), max_ranks=3) == [1, 2, 3]
    assert rank_counts(workload(None, batch=()), max_ranks=0) == []


def test_the_nearest_counts_lie_on_both_sides() -> None:
    run = local_workload(capacity=CapacityWish(min_ranks=5, max_ranks=7))
    assert nearest_rank_counts(run, ranks=5) == [4, 8]
    assert nearest_rank_counts(run, ranks=1) == [2]


def test_other_roles_have_slots_kept_for_them() -> None:
    roles = (
        RoleSpec(kind=RoleKind.TRAINER),
        RoleSpec(kind=RoleKind.EVALUATOR, num_ranks=2),
        RoleSpec(kind=RoleKind.DATA_LOADER, num_ranks=4, accelerators_per_rank=0),
    )
    assert reserved_slots(workload(roles=roles)) == 2
