from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.planner.uneven import Parts, pipeline_s, split_replicas, split_stages

seconds = st.floats(0.01, 10)
part = st.tuples(seconds, st.floats(0, 5), st.integers(0, 2), st.integers(0, 8))


def parts_of(rows: list[tuple[float, float, int, int]]) -> Parts:
    each, fixed, least, more = zip(*rows, strict=True)
    return Parts(
        each_s_P=np.array(each), fixed_s_P=np.array(fixed), least_P=np.array(least),
        most_P=np.array(least) + np.array(more),
    )  # fmt: skip


def every_split(parts: Parts, num_items: int) -> list[np.ndarray]:
    ranges = [range(least, most + 1) for least, most in zip(parts.least_P, parts.most_P, strict=True)]
    return [np.array(shares) for shares in product(*ranges) if sum(shares) == num_items]


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(part, min_size=1, max_size=4), num_items=st.integers(0, 14))
def test_shares_of_replicas_are_as_good_as_the_best_of_all(
    rows: list[tuple[float, float, int, int]], num_items: int
) -> None:
    parts = parts_of(rows)
    found, all_of_them = split_replicas(parts, num_items), every_split(parts, num_items)
    if not all_of_them:
        assert found is None
        return
    assert found is not None
    assert found.sum() == num_items
    assert (found >= parts.least_P).all()
    assert (found <= parts.most_P).all()
    best_s = min(parts.taken_s(shares).max() for shares in all_of_them)
    assert parts.taken_s(found).max() == pytest.approx(best_s, rel=1e-6)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(part, min_size=1, max_size=4), num_layers=st.integers(1, 14), num_micro_batches=st.integers(1, 64))
def test_layers_of_stages_are_as_good_as_the_best_of_all(
    rows: list[tuple[float, float, int, int]], num_layers: int, num_micro_batches: int
) -> None:
    parts = parts_of(rows)
    found = split_stages(parts, num_layers, num_micro_batches=num_micro_batches)
    all_of_them = every_split(parts, num_layers)
    if not all_of_them:
        assert found is None
        return
    assert found is not None
    assert found.sum() == num_layers
    best_s = min(pipeline_s(parts.taken_s(shares), num_micro_batches=num_micro_batches) for shares in all_of_them)
    assert pipeline_s(parts.taken_s(found), num_micro_batches=num_micro_batches) == pytest.approx(best_s, rel=1e-6)


def test_a_part_that_is_twice_as_fast_gets_twice_as_many() -> None:
    parts = parts_of([(1.0, 0.0, 0, 99), (2.0, 0.0, 0, 99)])
    for split in (split_replicas(parts, 30), split_stages(parts, 30, num_micro_batches=1000)):
        assert split is not None
        assert split.tolist() == [20, 10]


def test_equal_parts_get_equal_shares_and_the_rest_is_spread() -> None:
    split = split_replicas(parts_of([(1.0, 0.0, 0, 99)] * 4), 14)
    assert split is not None
    assert sorted(split.tolist()) == [3, 3, 4, 4]


def test_a_pipeline_takes_its_slowest_stage_for_each_micro_batch_and_the_others_once() -> None:
    assert pipeline_s(np.array([1.0, 3.0, 2.0]), num_micro_batches=5) == 4 * 3 + 6


def test_an_item_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="takes time"):
        parts_of([(0.0, 1.0, 0, 1)])
