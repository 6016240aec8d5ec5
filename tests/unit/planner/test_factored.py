from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.factored import code, factor, factored
from airflow_llmsched.planner.layout_table import LayoutTable

layouts = st.builds(
    ParallelLayout,
    dp=st.sampled_from([1, 2, 2**40]), tp=st.integers(1, 3), pp=st.integers(1, 3), micro_batch_size=st.integers(1, 2),
)  # fmt: skip
tables = st.lists(layouts, max_size=30).map(LayoutTable.of)


@given(table=tables)
def test_a_formula_of_some_columns_gives_what_it_gives_on_the_whole_table(table: LayoutTable) -> None:
    def formula(each: LayoutTable) -> np.ndarray:
        return 10 * each.tp_C - each.dp_C

    assert factored(table, ("dp_C", "tp_C"), formula).tolist() == formula(table).tolist()


@given(table=tables)
def test_each_combination_comes_once_and_in_order(table: LayoutTable) -> None:
    found = factor(table, ("tp_C", "dp_C"))
    pairs = list(zip(table.tp_C.tolist(), table.dp_C.tolist(), strict=True))
    rows = list(zip(found.table.tp_C.tolist(), found.table.dp_C.tolist(), strict=True))
    assert rows == sorted(set(pairs))
    assert len(found.table) == len(rows)
    assert found.first_U.tolist() == [pairs.index(pair) for pair in rows]


@given(table=tables, data=st.data())
def test_columns_beside_the_table_tell_combinations_apart(table: LayoutTable, data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(1, 8), min_size=len(table), max_size=len(table)))
    ranks_C = np.array(ranks, dtype=np.int64)
    found = factor(table, ("tp_C",), beside=(ranks_C,))
    assert found.spread(ranks_C[found.first_U]).tolist() == ranks
    assert found.spread(table.tp_C[found.first_U]).tolist() == table.tp_C.tolist()


@given(values=st.lists(st.one_of(st.integers(-3, 9), st.integers(-(2**62), 2**61))))
def test_codes_are_those_of_a_sort(values: list[int]) -> None:
    distinct, index = code(np.array(values, dtype=np.int64))
    assert distinct.tolist() == sorted(set(values))
    assert distinct[index].tolist() == values


def test_more_combinations_than_a_number_has_room_for_are_still_told_apart() -> None:
    rng = np.random.default_rng(5)
    table = LayoutTable.of([ParallelLayout(dp=1)] * 4096)
    wide = [rng.permutation(4096).astype(np.int64) for _ in range(7)]
    found = factor(table, ("dp_C",), beside=wide)
    assert len(found.first_U) == 4096
    assert found.spread(wide[6][found.first_U]).tolist() == wide[6].tolist()


def test_a_formula_that_reads_what_it_did_not_name_fails() -> None:
    table = LayoutTable.of([ParallelLayout(dp=dp, tp=tp) for dp in (1, 2) for tp in (1, 2, 4)])
    with pytest.raises(ValueError, match="broadcast"):
        factored(table, ("tp_C",), lambda each: each.tp_C * each.dp_C)
    alone = LayoutTable.of([ParallelLayout(dp=3, tp=4)])
    with pytest.raises(IndexError):
        factored(alone, ("tp_C",), lambda each: each.tp_C * each.dp_C)


def test_values_with_more_axes_are_spread_along_the_last() -> None:
    table = LayoutTable.of([ParallelLayout(dp=1, tp=tp) for tp in (4, 2, 4)])
    assert factored(table, ("tp_C",), lambda each: np.stack([each.tp_C, -each.tp_C])).tolist() == [
        [4, 2, 4], [-4, -2, -4],
    ]  # fmt: skip


def test_combinations_are_found_once_for_a_table_and_forgotten_with_it() -> None:
    table = LayoutTable.of([ParallelLayout(dp=1), ParallelLayout(dp=2)])
    found = factor(table, ("dp_C",))
    assert factor(table, ["dp_C"]) is found
    assert factor(table, ("dp_C", "tp_C")) is not found
    watched = weakref.ref(table)
    del table, found
    gc.collect()
    assert watched() is None
