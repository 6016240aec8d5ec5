from __future__ import annotations

import pytest

from airflow_llmsched.planner.perf.groups import groups_GM


def test_members_are_a_stride_apart_and_groups_interlock() -> None:
    assert groups_GM(8, stride=2, size=2).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize(("num_ranks", "groups"), [(7, [[0, 1, 2], [3, 4, 5]]), (2, []), (3, [[0, 1, 2]])])
def test_an_incomplete_last_group_is_left_out(num_ranks, groups) -> None:
    assert groups_GM(num_ranks, stride=1, size=3).tolist() == groups
