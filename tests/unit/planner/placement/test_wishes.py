from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, RankGroup
from airflow_llmsched.domain.placement import Placed, PlacementProblem
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.wishes import domain_of_rank_R, group_of_rank_R, num_split_groups
from tests.support.fleets import fleet

LAYOUT = ParallelLayout(dp=4, tp=2, pp=2, cp=2, ep=2)


def members(group: RankGroup) -> list[list[int]]:
    numbers = group_of_rank_R(LAYOUT, group).tolist()
    return [[rank for rank, number in enumerate(numbers) if number == each] for each in dict.fromkeys(numbers)]


def test_ranks_are_numbered_tensor_first_then_context_data_and_pipeline() -> None:
    assert members(RankGroup.TP)[:2] == [[0, 1], [2, 3]]
    assert members(RankGroup.CP)[:2] == [[0, 2], [1, 3]]
    assert members(RankGroup.EP)[:2] == [[0, 2], [1, 3]]
    assert members(RankGroup.DP)[0] == [0, 4, 8, 12]
    assert members(RankGroup.PP)[:2] == [[0, 16], [1, 17]]
    assert members(RankGroup.GANG) == [list(range(32))]


def test_experts_that_are_not_split_sit_on_neighbours() -> None:
    layout = replace(LAYOUT, expert_tp=1, ep=4)
    assert group_of_rank_R(layout, RankGroup.EP).tolist() == [rank // 4 for rank in range(32)]


degree = st.sampled_from([1, 2, 3])


@given(dp=degree, tp=degree, pp=degree, cp=degree)
def test_groups_of_a_kind_share_out_the_ranks_equally(dp: int, tp: int, pp: int, cp: int) -> None:
    layout = ParallelLayout(dp=dp, tp=tp, pp=pp, cp=cp, ep=dp)
    sizes = {RankGroup.TP: tp, RankGroup.CP: cp, RankGroup.EP: dp, RankGroup.DP: dp, RankGroup.PP: pp}
    for group, size in sizes.items():
        numbers = group_of_rank_R(layout, group).tolist()
        assert {numbers.count(number) for number in numbers} == {size}


def test_groups_that_span_domains_are_counted() -> None:
    tree = fleet(4, nodes_per_rack=2)
    result = BestFitSolver().place(PlacementProblem(layout=LAYOUT, tree=tree), time_limit_s=1.0, seed=0)
    assert isinstance(result, Placed)

    def split(group: RankGroup, level: str) -> int:
        domain_R = domain_of_rank_R(result.placement, tree, level=level)
        return num_split_groups(LAYOUT, domain_R, group=group)

    assert split(RankGroup.TP, "node") == 0
    assert split(RankGroup.DP, "node") == 8
    assert split(RankGroup.DP, "rack") == 0
    assert split(RankGroup.PP, "rack") == 16
    assert split(RankGroup.GANG, "block") == 0
    with pytest.raises(ValueError, match="no level"):
        split(RankGroup.TP, "pod")
