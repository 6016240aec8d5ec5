from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.planner.pareto import pareto_front, weighted_score

rows = st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=25)


@given(costs=rows)
def test_the_front_is_what_brute_force_finds(costs: list[tuple[int, int, int]]) -> None:
    def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return all(a <= b for a, b in zip(one, other, strict=True)) and one != other

    expected = {cost for cost in costs if not any(beats(other, cost) for other in costs)}
    front = pareto_front(np.array(costs, dtype=np.float64))
    assert sorted(costs[index] for index in front) == sorted(expected)


@given(costs=rows, seed=st.integers(0, 99))
def test_the_order_of_candidates_does_not_matter(costs: list[tuple[int, int, int]], seed: int) -> None:
    array = np.array(costs, dtype=np.float64)
    order = np.random.default_rng(seed).permutation(len(costs))
    assert array[pareto_front(array)].tolist() == array[order][pareto_front(array[order])].tolist()


def test_of_equal_candidates_the_one_with_the_smaller_tie_break_stays() -> None:
    costs = np.array([[1.0, 1.0], [1.0, 1.0], [2.0, 0.5]])
    assert pareto_front(costs, tie_breaks=[np.array([9, 3, 1])]).tolist() == [1, 2]


def test_scores_weigh_costs_as_multiples_of_the_best() -> None:
    score = weighted_score([(3.0, np.array([1.0, 2.0])), (1.0, np.array([20.0, 10.0]))])
    assert score.tolist() == pytest.approx([0.75 + 0.5, 1.5 + 0.25])


def test_a_cost_that_can_be_zero_still_orders() -> None:
    assert weighted_score([(1.0, np.array([0.0, 4.0]))]).tolist() == [1.0, 5.0]
