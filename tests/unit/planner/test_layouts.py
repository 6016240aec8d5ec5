from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.workload import BatchPhase, ModelShape, ParallelismWish, WorkloadSpec
from airflow_llmsched.planner.layouts import WHOLE_POLICIES, LayoutSpace, divisors, legal_layouts, module_policies
from tests.support.fleets import local_workload, workload
from tests.support.models import LLAMA2_70B, LLAMA31_8B, MIXTRAL_8X7B

WHOLE = ParallelismWish(recompute=Recompute.FULL)


def layouts_of(run: WorkloadSpec, *world_sizes: int, slots_per_node: int = 8) -> list[ParallelLayout]:
    table = legal_layouts(run, world_sizes=world_sizes, slots_per_node=slots_per_node).table
    return [table.at(index) for index in range(len(table))]


def pinned(**degrees: object) -> WorkloadSpec:
    return workload(LLAMA31_8B, parallelism=ParallelismWish(**degrees))  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from([LLAMA31_8B, LLAMA2_70B, MIXTRAL_8X7B]), world_size=st.integers(1, 96),
    num_sequences=st.sampled_from([48, 256, 1000]),
)  # fmt: skip
def test_every_layout_covers_the_world_and_keeps_the_global_batch(
    model: ModelShape, world_size: int, num_sequences: int
) -> None:
    run = workload(model, num_sequences=num_sequences, parallelism=WHOLE)
    space = legal_layouts(run, world_sizes=[world_size], slots_per_node=8)
    table = space.table
    assert space.num_candidates == len(space) + sum(space.rejections.values())
    assert len(space) == len(table)
    assert (table.dp_C * table.tp_C * table.pp_C * table.cp_C == world_size).all()
    assert (table.dp_C * table.micro_batch_C * table.num_micro_batches_C == num_sequences).all()
    for index in range(0, len(table), 17):
        assert table.at(index).world_size == world_size
        assert table.at(index).global_batch_size == num_sequences


def slow_degrees(world: int, *, slots: int, sequence: int) -> Iterator[tuple[int, ...]]:
    """Yield (dp, tp, pp, cp, ep, expert-tp) of Mixtral, one by one."""
    for tp, pp, cp, ep in product(range(1, world + 1), range(1, 33), range(1, world + 1), (1, 2, 4, 8)):
        dp = world // (tp * pp * cp)
        room = -(-32 // pp) * pp
        splits = world == dp * tp * pp * cp and tp <= slots and 32 % tp == 0 and (8 % tp == 0 or tp % 8 == 0)
        is_full = 8 * (room - 32) <= room
        is_long = sequence % (tp * cp) == 0 and (cp == 1 or (sequence % (2 * cp) == 0 and sequence // (2 * cp) >= 128))
        if splits and is_full and is_long:
            yield from ((dp, tp, pp, cp, ep, etp) for etp in {1, tp} if (dp * tp * cp) % (ep * etp) == 0)


def slow_schedules(pp: int, num_micro_batches: int) -> Iterator[tuple[PipelineSchedule, int]]:
    yield PipelineSchedule.ONE_F_ONE_B, 1
    if pp > 1:
        yield PipelineSchedule.ZERO_BUBBLE, 1
    for vp in range(2, 33):
        if pp > 1 and -(-32 // pp) % vp == 0 and pp * vp <= 32 and num_micro_batches % pp == 0:
            yield PipelineSchedule.INTERLEAVED, vp


def slow_shardings(dp: int, tp: int, cp: int, num_expert_ranks: int, *, slots: int) -> Iterator[tuple[int, int]]:
    yield 0, dp * cp
    last = 0
    for shard in (cp * replicas for replicas in range(1, dp + 1) if dp % replicas == 0):
        fills_node = shard * tp >= slots and (not last or shard >= 4 * last)
        if shard == 1 or not (fills_node or shard == dp * cp):
            continue
        last = shard
        if shard == dp * cp or shard * tp % num_expert_ranks == 0:
            yield from ((zero, shard) for zero in (1, 2, 3))


def slowly_read_rules(world: int, *, slots: int, sequence: int, batch: int) -> Iterator[ParallelLayout]:
    """Yield the layouts of Mixtral with full recomputation that the rules allow, one by one."""
    for dp, tp, pp, cp, ep, etp in slow_degrees(world, slots=slots, sequence=sequence):
        for micro in (each for each in range(1, batch + 1) if batch % (dp * each) == 0):
            num_micro_batches = batch // dp // micro
            pairs = product(slow_schedules(pp, num_micro_batches), slow_shardings(dp, tp, cp, ep * etp, slots=slots))
            for (schedule, vp), (zero, shard) in pairs:
                yield ParallelLayout(
                    dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, expert_tp=None if etp == tp else etp, zero_stage=zero,
                    micro_batch_size=micro, num_micro_batches=num_micro_batches, recompute=Recompute.FULL, vp=vp,
                    schedule=schedule, shard_size=None if shard == dp * cp else shard,
                )  # fmt: skip


def test_the_legal_layouts_are_those_that_a_slow_reading_of_the_rules_finds() -> None:
    run = workload(MIXTRAL_8X7B, sequence_length_tokens=1024, num_sequences=24, parallelism=WHOLE)
    found = layouts_of(run, 24, 16, slots_per_node=4)
    expected = [layout for world in (24, 16) for layout in slowly_read_rules(world, slots=4, sequence=1024, batch=24)]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)
    assert len(expected) > 1000


def test_world_sizes_are_looked_at_together_as_they_are_one_by_one() -> None:
    run = workload(MIXTRAL_8X7B, num_sequences=48, parallelism=WHOLE)
    sizes = (6, 8, 12)
    together = legal_layouts(run, world_sizes=sizes, slots_per_node=8)
    alone = [legal_layouts(run, world_sizes=[size], slots_per_node=8) for size in sizes]
    assert layouts_of(run, *sizes) == [layout for size in sizes for layout in layouts_of(run, size)]
    assert together.num_candidates == sum(space.num_candidates for space in alone)
    assert sum(together.rejections.values()) == sum(sum(space.rejections.values()) for space in alone)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_rows_can_be_written_out_each_with_a_policy(data: st.DataObject) -> None:
    run = workload(MIXTRAL_8X7B, num_sequences=24)
    space = legal_layouts(run, world_sizes=[8], slots_per_node=8)
    num_policies = len(space.policies)
    drawn = data.draw(
        st.lists(st.tuples(st.integers(0, space.num_rows - 1), st.integers(0, num_policies - 1)), max_size=9)
    )
    row_C, policy_C = np.array(drawn, dtype=np.int64).reshape(-1, 2).T
    some, everything = space.expand(row_C, policy_C), space.table
    chosen = (row_C * num_policies + policy_C).tolist()
    assert [some.at(index) for index in range(len(some))] == [everything.at(index) for index in chosen]
    assert (space.stems.dp_C[space.stem_of(row_C)] == some.dp_C).all()


def test_the_rows_of_stems_are_theirs_and_none_is_left_out() -> None:
    space = legal_layouts(workload(MIXTRAL_8X7B, num_sequences=24), world_sizes=[8], slots_per_node=8)
    stems = np.arange(len(space.stems))
    assert space.rows_of(stems).tolist() == list(range(space.num_rows))
    assert (space.stem_of(space.rows_of(stems[::-3])) == np.repeat(stems[::-3], space.num_S[::-3])).all()


def test_the_leanest_sharding_is_over_all_replicas() -> None:
    space = legal_layouts(workload(MIXTRAL_8X7B, num_sequences=24), world_sizes=[8], slots_per_node=8)
    stems = np.arange(len(space.stems))
    table = space.most_sharded(stems, np.full(len(stems), 2))
    assert (table.shard_C == table.dp_C * table.cp_C).all()
    assert set(table.zero_C.tolist()) == {3}
    assert table.at(7).recompute is Recompute.FULL


def test_pinned_degrees_are_the_only_ones_tried() -> None:
    layouts = layouts_of(pinned(dp=2, tp=4, pp=1, cp=1, zero_stage=1, micro_batch_size=2, recompute=Recompute.FULL), 8)
    assert layouts == [
        ParallelLayout(dp=2, tp=4, zero_stage=1, micro_batch_size=2, num_micro_batches=64, recompute=Recompute.FULL)
    ]
    layouts = layouts_of(
        pinned(
            dp=4, tp=1, pp=2, cp=1, vp=4, schedule=PipelineSchedule.INTERLEAVED, zero_stage=3, shard_size=2,
            micro_batch_size=2, recompute=Recompute.NONE, offload=Offload.PARAMETERS_HOST,
        ),
        8,
    )  # fmt: skip
    assert layouts == [
        ParallelLayout(
            dp=4, pp=2, vp=4, schedule=PipelineSchedule.INTERLEAVED, zero_stage=3, shard_size=2, micro_batch_size=2,
            num_micro_batches=32, offload=Offload.PARAMETERS_HOST,
        )
    ]  # fmt: skip


def test_a_pinned_split_of_experts_is_the_only_one_tried() -> None:
    run = workload(MIXTRAL_8X7B, parallelism=ParallelismWish(expert_tp=2, recompute=Recompute.FULL))
    assert {layout.expert_tp if layout.tp != 2 else 2 for layout in layouts_of(run, 8)} == {2}


def test_a_single_replica_has_nothing_to_shard_unless_a_stage_is_pinned() -> None:
    assert {layout.zero_stage for layout in layouts_of(workload(LLAMA31_8B, parallelism=WHOLE), 1)} == {0}
    assert {layout.zero_stage for layout in layouts_of(pinned(zero_stage=3), 1)} == {3}


def test_nothing_leaves_the_accelerator_unless_asked_for() -> None:
    run = workload(LLAMA31_8B, parallelism=WHOLE)
    assert {layout.offload for layout in layouts_of(run, 2)} == {Offload.NONE}
    space = legal_layouts(run, world_sizes=[1], slots_per_node=8, offloads=tuple(Offload))
    table = space.table
    found = {(table.at(index).offload, table.at(index).zero_stage) for index in range(len(table))}
    assert {offload for offload, _ in found} == set(Offload)
    away = {Offload.PARAMETERS_HOST, Offload.PARAMETERS_NVME}
    assert {stage for offload, stage in found if offload in away} == {3}
    assert {stage for offload, stage in found if offload not in away} == {0}


def test_sets_of_modules_are_tried_once_for_what_they_recompute() -> None:
    table = legal_layouts(pinned(dp=1, micro_batch_size=1), world_sizes=[1], slots_per_node=8).table
    layouts = [table.at(index) for index in range(len(table))]
    assert [layout.recompute for layout in layouts[:3]] == [Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]
    sets = [frozenset(layout.recompute_modules) for layout in layouts[3:]]
    assert len(set(sets)) == len(sets) == len(module_policies())
    by_megatron = {RecomputeModule.CORE_ATTENTION, RecomputeModule.NORMS, RecomputeModule.MLP}
    megatron = {frozenset(each) for size in (1, 2, 3) for each in combinations(by_megatron, size)}
    assert megatron - set(sets) == {frozenset({RecomputeModule.CORE_ATTENTION})}
    assert {each - {RecomputeModule.CORE_ATTENTION} for each in sets if each not in megatron} == {
        frozenset({RecomputeModule.EVERY_SECOND_PRODUCT})
    }


def test_the_shipped_trainer_gets_data_parallelism_only() -> None:
    space: LayoutSpace = legal_layouts(local_workload(), world_sizes=[4], slots_per_node=2)
    table = space.table
    assert space.policies == list(WHOLE_POLICIES)
    assert set(table.dp_C.tolist()) == {4}
    assert set((table.tp_C * table.pp_C * table.cp_C * table.vp_C).tolist()) == {1}
    assert set(table.shard_C.tolist()) == {4}


def test_a_job_without_a_model_takes_its_share_of_the_batch_at_once() -> None:
    assert layouts_of(workload(None, num_sequences=64), 16) == [ParallelLayout(dp=16, micro_batch_size=4)]
    assert layouts_of(workload(None, batch=()), 3, 5) == [ParallelLayout(dp=3), ParallelLayout(dp=5)]


def test_a_batch_schedule_binds_in_every_phase() -> None:
    phases = tuple(
        BatchPhase(from_tokens=index, sequence_length_tokens=4096, num_sequences=number)
        for index, number in enumerate((96, 256))
    )
    run = workload(LLAMA31_8B, batch=phases, parallelism=WHOLE)
    layouts = layouts_of(run, 64)
    assert not [layout for layout in layouts if layout.dp * layout.micro_batch_size > 32]
    interleaved = [layout for layout in layouts if layout.vp > 1]
    assert interleaved
    assert not [each for each in interleaved if 96 // each.dp // each.micro_batch_size % each.pp]
    assert all(layout.global_batch_size == 256 for layout in layouts_of(run, 32))


def test_no_world_size_has_no_layouts_and_impossible_ones_are_refused() -> None:
    assert len(legal_layouts(workload(), world_sizes=[], slots_per_node=8)) == 0
    with pytest.raises(ValueError, match="at least 1"):
        legal_layouts(workload(), world_sizes=[0], slots_per_node=8)


@given(number=st.integers(1, 5000))
def test_divisors_are_all_of_them_in_order(number: int) -> None:
    assert divisors(number).tolist() == [each for each in range(1, number + 1) if number % each == 0]
