from __future__ import annotations

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.export.cells import Cells
from airflow_llmsched.planner.export.pods import MAX_LISTED, node_rank_words, pod_notes
from tests.support.tool_options import planned


@pytest.mark.parametrize(
    ("num_pods", "said"), [(1, "is 1 pod, each with 8"), (4, "is 4 pods, all or none, each with 8")]
)
def test_pods_are_counted_and_numbered_as_nodes_are(num_pods, said) -> None:
    (note, *_) = pod_notes(planned(ParallelLayout(dp=8)), Cells(num_pods=num_pods, ranks_per_pod=8))
    assert said in note
    assert "node rank" in note


def test_where_pipelines_are_together_the_note_says_which_node_rank_each_pod_has() -> None:
    cells = Cells(num_pods=8, ranks_per_pod=8, num_stages=2, turn=2)
    (note, *_) = pod_notes(planned(ParallelLayout(dp=8)), cells)
    assert "i // 2 % 2 * 4 + i // 4 * 2 + i % 2 where i is the index (by index: 0,1,4,5,2,3,6,7)" in note


@pytest.mark.parametrize(("num_pods", "stages", "turn"), [(8, 2, 2), (8, 4, 1), (24, 3, 4), (96, 4, 3)])
def test_the_formula_of_a_note_is_what_cells_mean(num_pods, stages, turn) -> None:
    cells = Cells(num_pods=num_pods, ranks_per_pod=8, num_stages=stages, turn=turn)
    words = node_rank_words(cells, index="the index")
    assert ("by index" in words) == (num_pods <= MAX_LISTED)
    formula = words.partition("of each is ")[2].partition(" where")[0]
    told = [eval(formula, {"i": pod}) for pod in range(num_pods)]
    assert told == [cells.node_rank(pod) for pod in range(num_pods)]
