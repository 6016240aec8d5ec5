"""What any scheduler of pods has to be told besides where they may be."""

from __future__ import annotations

from airflow_llmsched.planner.export.cells import Cells
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes

MAX_LISTED = 32
"""Node ranks that a note lists beside the formula."""


def pod_notes(run: PlannedRun, cells: Cells) -> tuple[str, ...]:
    """Say how many pods there are, what each holds, and by which number."""
    pods = "1 pod" if cells.num_pods == 1 else f"{cells.num_pods} pods, all or none"
    return (
        f"The gang is {pods}, each with {cells.ranks_per_pod} accelerators; "
        f"{node_rank_words(cells, index='the index')} (an Indexed Job numbers its pods), or groups that belong "
        "together are not together.",
        *common_notes(run),
    )


def node_rank_words(cells: Cells, *, index: str) -> str:
    """Say which node rank the launcher is to have on the pod, or node, that a scheduler numbers with ``index``."""
    if cells.num_stages == 1:
        return f"{index} of each is its node rank"
    stage, turn = cells.num_pods // cells.num_stages, cells.turn
    ranks = ",".join(str(cells.node_rank(pod)) for pod in range(cells.num_pods))
    formula = f"i // {turn} % {cells.num_stages} * {stage} + i // {turn * cells.num_stages} * {turn} + i % {turn}"
    if turn == 1:
        formula = f"i % {cells.num_stages} * {stage} + i // {cells.num_stages}"
    listed = f" (by index: {ranks})" if cells.num_pods <= MAX_LISTED else ""
    return f"pipelines are together, so the node rank of each is {formula} where i is {index}{listed}"
