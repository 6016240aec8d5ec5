from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.placement.cheapest import Shares
from airflow_llmsched.planner.placement.local_search import improve, num_changes
from airflow_llmsched.planner.placement.score import Scorer
from tests.support.fleets import fleet

SCATTERED = Shares(np.array([0, 4, 8, 12]), np.full(4, 8))


def scorer_of(*wishes: PlacementWish) -> Scorer:
    return Scorer(PlacementProblem(layout=ParallelLayout(dp=4, tp=4, pp=2), tree=fleet(16), wishes=wishes))


def found_from(start: Shares, *wishes: PlacementWish, within: int = 16, seed: int = 0) -> tuple[float, Shares]:
    return improve(
        scorer_of(*wishes), start, within_N=np.arange(16) < within, order_ratio=0.0, max_changes=2000, seed=seed
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_scattered_gang_comes_closer_together(seed: int) -> None:
    score_s, shares = found_from(SCATTERED, seed=seed)
    assert len({place // 4 for place in shares.nodes_P.tolist()}) <= 2
    assert score_s == pytest.approx(scorer_of().total_s(*shares))
    assert score_s < scorer_of().total_s(*SCATTERED)


def test_the_order_of_nodes_is_changed_too() -> None:
    start = Shares(np.array([0, 4, 1, 5]), np.full(4, 8))
    scorer = Scorer(PlacementProblem(layout=ParallelLayout(dp=4, tp=4, pp=2), tree=fleet(16)))
    within_N = np.isin(np.arange(16), start.nodes_P)
    score_s, shares = improve(scorer, start, within_N=within_N, order_ratio=0.01, max_changes=500, seed=0)
    assert sorted(shares.nodes_P.tolist()) == [0, 1, 4, 5]
    assert score_s < scorer.total_s(*start)
    _, same = improve(scorer, start, within_N=within_N, order_ratio=0.5, max_changes=500, seed=0)
    assert same.nodes_P.tolist() == start.nodes_P.tolist()


def test_it_stays_on_the_nodes_that_it_may_use_and_keeps_what_is_required() -> None:
    _, shares = found_from(Shares(np.array([0, 1, 4, 5]), np.full(4, 8)), within=8)
    assert max(shares.nodes_P.tolist()) < 8
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    _, shares = found_from(Shares(np.array([0, 1, 4, 5]), np.full(4, 8)), wish)
    scorer = scorer_of(wish)
    assert scorer.keeps_required(scorer.depths(*shares))


def test_a_seed_always_gives_the_same_answer_and_no_changes_give_none() -> None:
    one, other = found_from(SCATTERED, seed=3), found_from(SCATTERED, seed=3)
    assert one[1].nodes_P.tolist() == other[1].nodes_P.tolist()
    everywhere_N = np.ones(16, dtype=bool)
    score_s, shares = improve(scorer_of(), SCATTERED, within_N=everywhere_N, order_ratio=0.0, max_changes=0, seed=0)
    assert shares.nodes_P.tolist() == SCATTERED.nodes_P.tolist()
    assert score_s == scorer_of().total_s(*SCATTERED)


def test_a_limit_of_time_is_one_of_changes() -> None:
    scorer = scorer_of()
    assert num_changes(scorer, 32, 0.0) == 0
    assert num_changes(scorer, 32, 2.0) > num_changes(scorer, 16384, 2.0) > 0
