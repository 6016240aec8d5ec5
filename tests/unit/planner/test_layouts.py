from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.workload import BatchPhase, ParallelismWish, WorkloadSpec
from airflow_llmsched.planner.layouts import LayoutRule, divisors, legal_layouts
from tests.support.fleets import local_workload, workload
from tests.support.models import LLAMA2_70B, LLAMA31_8B, MIXTRAL_8X7B


def layouts_of(run: WorkloadSpec, world_size: int, *, slots_per_node: int = 8) -> list[ParallelLayout]:
    table = legal_layouts(run, world_size=world_size, slots_per_node=slots_per_node).table
    return [table.at(index) for index in range(len(table))]


def pinned(**degrees: object) -> WorkloadSpec:
    return workload(LLAMA31_8B, parallelism=ParallelismWish(**degrees))  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from([LLAMA31_8B, LLAMA2_70B, MIXTRAL_8X7B]), world_size=st.integers(1, 96),
    num_sequences=st.sampled_from([48, 256, 1000]),
)  # fmt: skip
def test_every_layout_covers_the_world_and_keeps_the_global_batch(model, world_size: int, num_sequences: int) -> None:  # type: ignore[no-untyped-def]
    run = workload(model, num_sequences=num_sequences)
    space = legal_layouts(run, world_size=world_size, slots_per_node=8)
    assert space.num_candidates == len(space.table) + sum(space.rejections.values())
    for index in range(len(space.table)):
        layout = space.table.at(index)
        assert layout.world_size == world_size
        assert layout.global_batch_size == num_sequences


def test_the_legal_layouts_are_those_that_a_slow_reading_of_the_rules_finds() -> None:
    run = workload(MIXTRAL_8X7B, sequence_length_tokens=64, num_sequences=24)
    world, model = 24, MIXTRAL_8X7B
    found = set(layouts_of(run, world, slots_per_node=4))
    expected = set()
    for tp, pp, cp, ep, micro in product(range(1, 25), range(1, 25), range(1, 25), (1, 2, 4, 8), range(1, 25)):
        if world % (tp * pp * cp):
            continue
        dp = world // (tp * pp * cp)
        legal = (
            tp <= 4 and model.num_kv_heads % tp == 0 and model.num_heads % tp == 0 and 14336 % tp == 0
            and model.num_layers % pp == 0 and (cp == 1 or 64 % (2 * cp) == 0) and 64 % (tp * cp) == 0
            and dp % ep == 0 and 24 % (dp * micro) == 0
        )  # fmt: skip
        if legal:
            expected |= {
                ParallelLayout(
                    dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero_stage=zero, micro_batch_size=micro,
                    num_micro_batches=24 // dp // micro, recompute=recompute,
                )
                for zero in range(4 if dp * cp > 1 else 1)
                for recompute in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
            }  # fmt: skip
    assert found == expected


@pytest.mark.parametrize(
    ("pins", "world_size", "rule"),
    [
        ({"dp": 3}, 8, LayoutRule.DP_IS_PINNED),
        ({"tp": 16}, 16, LayoutRule.TP_DIVIDES_KV_HEADS),
        ({"tp": 3}, 3, LayoutRule.TP_DIVIDES_HEADS),
        ({"tp": 8}, 8, LayoutRule.TP_INSIDE_NODE),
        ({"pp": 3}, 3, LayoutRule.PP_DIVIDES_LAYERS),
        ({"cp": 3}, 3, LayoutRule.CP_DIVIDES_SEQUENCE),
        ({"ep": 2}, 2, LayoutRule.EP_NEEDS_EXPERTS),
        ({"micro_batch_size": 3}, 1, LayoutRule.BATCH_DIVIDES),
    ],
)
def test_each_rule_is_counted_by_its_name(pins: dict[str, int], world_size: int, rule: LayoutRule) -> None:
    space = legal_layouts(pinned(**pins), world_size=world_size, slots_per_node=4)
    assert rule.value in space.rejections
    assert not len(space.table)


@pytest.mark.parametrize(
    ("ep", "dp", "rule"), [(3, 3, LayoutRule.EP_DIVIDES_EXPERTS), (4, 2, LayoutRule.EP_DIVIDES_DP)]
)
def test_experts_spread_over_a_divisor_of_their_number_and_of_the_replicas(ep: int, dp: int, rule: LayoutRule) -> None:
    run = workload(MIXTRAL_8X7B, parallelism=ParallelismWish(ep=ep, tp=1, pp=1, cp=1))
    space = legal_layouts(run, world_size=dp, slots_per_node=8)
    assert space.rejections == {rule.value: space.num_candidates}


def test_mlp_width_and_sequence_bound_the_tensor_degree_too() -> None:
    narrow = replace(LLAMA31_8B, ffn_hidden_size=14337)
    space = legal_layouts(workload(narrow), world_size=2, slots_per_node=8)
    assert LayoutRule.TP_DIVIDES_FFN.value in space.rejections
    odd = legal_layouts(workload(LLAMA31_8B, sequence_length_tokens=1001), world_size=2, slots_per_node=8)
    assert LayoutRule.TP_DIVIDES_SEQUENCE.value in odd.rejections


def test_pinned_degrees_are_the_only_ones_tried() -> None:
    layouts = layouts_of(pinned(dp=2, tp=4, pp=1, cp=1, zero_stage=1, micro_batch_size=2, recompute=Recompute.FULL), 8)
    assert layouts == [
        ParallelLayout(dp=2, tp=4, zero_stage=1, micro_batch_size=2, num_micro_batches=64, recompute=Recompute.FULL)
    ]


def test_a_single_replica_has_nothing_to_shard_unless_a_stage_is_pinned() -> None:
    assert {layout.zero_stage for layout in layouts_of(workload(LLAMA31_8B), 1)} == {0}
    assert {layout.zero_stage for layout in layouts_of(pinned(zero_stage=3), 1)} == {3}


def test_the_shipped_trainer_gets_data_parallelism_only() -> None:
    space = legal_layouts(local_workload(), world_size=4, slots_per_node=2)
    assert LayoutRule.SHIPPED_TRAINER.value in space.rejections
    assert set(space.table.dp_C.tolist()) == {4}
    assert set((space.table.tp_C * space.table.pp_C * space.table.cp_C).tolist()) == {1}


def test_a_job_without_a_model_takes_its_share_of_the_batch_at_once() -> None:
    assert layouts_of(workload(None, num_sequences=64), 16) == [ParallelLayout(dp=16, micro_batch_size=4)]
    assert layouts_of(workload(None, batch=()), 3) == [ParallelLayout(dp=3)]


def test_a_batch_schedule_binds_in_every_phase() -> None:
    phases = tuple(
        BatchPhase(from_tokens=index, sequence_length_tokens=4096, num_sequences=number)
        for index, number in enumerate((96, 256))
    )
    run = workload(LLAMA31_8B, batch=phases)
    assert not [layout for layout in layouts_of(run, 64) if layout.dp * layout.micro_batch_size > 32]
    assert all(layout.global_batch_size == 256 for layout in layouts_of(run, 32))


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        legal_layouts(workload(), world_size=0, slots_per_node=8)


@given(number=st.integers(1, 5000))
def test_divisors_are_all_of_them_in_order(number: int) -> None:
    assert divisors(number).tolist() == [each for each in range(1, number + 1) if number % each == 0]
