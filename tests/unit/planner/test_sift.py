from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.layout import Recompute
from airflow_llmsched.domain.workload import ModelShape, ParallelismWish, WorkloadSpec
from airflow_llmsched.planner import sift as sift_module
from airflow_llmsched.planner.evaluate import evaluate, usable_bytes
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.layouts import LayoutSpace, legal_layouts
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.sift import Contenders, Sift
from tests.support.fleets import workload
from tests.support.models import LLAMA31_8B, MIXTRAL_8X7B

H100 = node_shape("p5.48xlarge")


def with_memory(gib: int) -> NodeShape:
    return replace(H100, accelerator=replace(H100.accelerator, memory_bytes=gib * 2**30))


def sifted(run: WorkloadSpec, space: LayoutSpace, shape: NodeShape, *, num_groups: int = 1) -> tuple[Sift, Contenders]:
    num_stems = len(space.stems)
    sift = Sift(
        workload=run, space=space, machine=Machine(shape=shape, ranks_per_node_C=np.full(num_stems, 8)),
        group_S=np.arange(num_stems) % num_groups,
    )  # fmt: skip
    found = sift.run(np.arange(len(space.stems)))
    assert found is not None
    return sift, found


def exhaustive(run: WorkloadSpec, space: LayoutSpace, shape: NodeShape) -> list[tuple[float, int]]:
    """Return seconds and bytes of all legal layouts that fit; some are evaluated alone too, to see that all is well."""
    table = space.table
    everything = evaluate(run, table, Machine(shape=shape, ranks_per_node_C=np.full(len(table), 8)))
    for index in range(0, len(table), 1 + len(table) // 50):
        alone = evaluate(run, LayoutTable.of([table.at(index)]), Machine(shape=shape, ranks_per_node_C=np.array([8])))
        assert alone.memory_bytes_C[0] == everything.memory_bytes_C[index]
        assert alone.step_s_C[0] == pytest.approx(everything.step_s_C[index])
    fits_C = everything.memory_bytes_C <= usable_bytes(shape.accelerator)
    return list(zip(everything.step_s_C[fits_C].tolist(), everything.memory_bytes_C[fits_C].tolist(), strict=True))


def front_of(costs: list[tuple[float, int]]) -> list[tuple[float, int]]:
    distinct = sorted(set(costs))
    return [
        (step_s, num_bytes)
        for number, (step_s, num_bytes) in enumerate(distinct)
        if not any(other <= num_bytes for _, other in distinct[:number])
    ]


@pytest.mark.parametrize(("model", "gib"), [(LLAMA31_8B, 80), (LLAMA31_8B, 24), (MIXTRAL_8X7B, 141)])
def test_the_front_is_that_of_every_layout_evaluated(model: ModelShape, gib: int) -> None:
    run = workload(model, sequence_length_tokens=1024, num_sequences=16)
    space = legal_layouts(run, world_sizes=[8], slots_per_node=8)
    shape = with_memory(gib)
    sift, found = sifted(run, space, shape)
    expected = front_of(exhaustive(run, space, shape))
    assert len(expected) > 2
    assert found.step_s_C.tolist() == pytest.approx([step_s for step_s, _ in expected])
    assert found.memory_bytes_C.tolist() == [num_bytes for _, num_bytes in expected]
    assert len(space) == len(found) + sift.num_too_large + sift.num_beaten


def test_blocks_of_any_size_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run = workload(LLAMA31_8B, sequence_length_tokens=1024, num_sequences=16)
    space = legal_layouts(run, world_sizes=[8, 16], slots_per_node=8)
    sift, whole = sifted(run, space, H100)
    monkeypatch.setattr(sift_module, "BLOCK_SIZE", 700)
    in_parts, parts = sifted(run, space, H100)
    assert [parts.table.at(index) for index in range(len(parts))] == [
        whole.table.at(index) for index in range(len(whole))
    ]
    assert parts.step_s_C.tolist() == pytest.approx(whole.step_s_C.tolist())
    assert in_parts.num_too_large == sift.num_too_large
    assert in_parts.num_beaten == sift.num_beaten


def test_more_memory_never_removes_a_layout() -> None:
    run = workload(LLAMA31_8B, sequence_length_tokens=1024, num_sequences=16)
    space = legal_layouts(run, world_sizes=[8], slots_per_node=8)
    fronts = [sifted(run, space, with_memory(gib))[1] for gib in (24, 28, 40, 80)]
    for tight, roomy in itertools.pairwise(fronts):
        costs = list(zip(roomy.step_s_C.tolist(), roomy.memory_bytes_C.tolist(), strict=True))
        for step_s, num_bytes in zip(tight.step_s_C.tolist(), tight.memory_bytes_C.tolist(), strict=True):
            assert [1 for other_s, other_bytes in costs if other_s <= step_s and other_bytes <= num_bytes]


def test_groups_do_not_compete_with_each_other() -> None:
    run = workload(LLAMA31_8B, sequence_length_tokens=1024, num_sequences=16)
    space = legal_layouts(run, world_sizes=[8], slots_per_node=8)
    sift, found = sifted(run, space, H100, num_groups=2)
    group_C = space.stem_of(found.row_C) % 2
    assert set(group_C.tolist()) == {0, 1}
    for group in (0, 1):
        own = found.take(group_C == group)
        assert (np.diff(own.step_s_C) > 0).all()
        assert (np.diff(own.memory_bytes_C) < 0).all()
    assert len(space) == len(found) + sift.num_too_large + sift.num_beaten


def test_what_is_too_large_is_counted_and_the_least_of_it_is_told() -> None:
    run = workload(LLAMA31_8B, parallelism=ParallelismWish(dp=1))
    space = legal_layouts(run, world_sizes=[1], slots_per_node=8)
    sift = Sift(
        workload=run, space=space,
        machine=Machine(shape=with_memory(16), ranks_per_node_C=np.full(len(space.stems), 1)),
        group_S=np.zeros(len(space.stems), dtype=np.int64),
    )  # fmt: skip
    assert sift.run(np.arange(len(space.stems))) is None
    assert sift.num_too_large == len(space)
    assert sift.leanest_bytes is not None
    assert sift.leanest_bytes > usable_bytes(with_memory(16).accelerator)


def test_pinned_modules_are_all_looked_at() -> None:
    pins = ParallelismWish(dp=8, recompute=Recompute.MODULES)
    run = workload(LLAMA31_8B, sequence_length_tokens=1024, num_sequences=16, parallelism=pins)
    space = legal_layouts(run, world_sizes=[8], slots_per_node=8)
    _, found = sifted(run, space, H100)
    assert {found.table.at(index).recompute for index in range(len(found))} == {Recompute.MODULES}
