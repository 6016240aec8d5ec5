from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.planner.graphs.exchanges import Exchange, Pattern
from airflow_llmsched.planner.graphs.job_graph import JobGraph


def exchange(pattern: Pattern, *, stride: int, size: int, sent: float = 12.0) -> Exchange:
    return Exchange(group="dp", pattern=pattern, stride=stride, size=size, bytes_per_rank=sent)


def told(job: JobGraph) -> set[tuple[int, int, float]]:
    edges = job.edges()
    return set(zip(edges.source_E.tolist(), edges.target_E.tolist(), edges.bytes_E.tolist(), strict=True))


def test_a_ring_goes_round() -> None:
    job = JobGraph(num_ranks=3, exchanges=(exchange(Pattern.RING, stride=1, size=3),))
    assert told(job) == {(0, 1, 12.0), (1, 2, 12.0), (2, 0, 12.0)}


def test_a_line_goes_both_ways_and_not_round() -> None:
    job = JobGraph(num_ranks=6, exchanges=(exchange(Pattern.LINE, stride=2, size=3),))
    there = {(0, 2), (2, 4), (1, 3), (3, 5)}
    assert told(job) == {(*pair, 6.0) for each in there for pair in (each, each[::-1])}


def test_all_to_all_splits_what_a_rank_sends() -> None:
    job = JobGraph(num_ranks=4, exchanges=(exchange(Pattern.ALL_TO_ALL, stride=1, size=4),))
    assert told(job) == {(one, other, 4.0) for one in range(4) for other in range(4) if one != other}


@pytest.mark.parametrize(
    ("pattern", "leaving"),
    [(Pattern.RING, [12.0, 12.0]), (Pattern.LINE, [6.0, 6.0]), (Pattern.ALL_TO_ALL, [16.0, 16.0])],
)
def test_what_leaves_a_domain_is_what_its_ranks_send_to_others(pattern, leaving) -> None:
    edges = JobGraph(num_ranks=4, exchanges=(exchange(pattern, stride=1, size=4),)).edges()
    assert edges.between(np.array([0, 0, 1, 1])).tolist() == pytest.approx(leaving)


def test_a_gang_that_exchanges_nothing_has_no_edges() -> None:
    edges = JobGraph(num_ranks=4, exchanges=()).edges()
    assert edges.source_E.size == 0
    assert edges.between(np.zeros(4, dtype=np.int64)).tolist() == [0.0]


def test_only_some_exchanges_can_be_asked_for() -> None:
    ring, line = exchange(Pattern.RING, stride=1, size=2), exchange(Pattern.LINE, stride=1, size=2)
    assert JobGraph(num_ranks=2, exchanges=(ring, line)).edges([line]).bytes_E.tolist() == [6.0, 6.0]
