"""Annotations for the KAI scheduler: where the gang, and each segment of it, may be.

Names and places: KAI-Scheduler's user guides on topology and segments (docs/topology), read 2026-11-30. A segment is a
run of pods by index. Segments are told on the template of the pods, the level of the whole gang on the workload.
"""

from __future__ import annotations

from airflow_llmsched.planner.export.cells import Cells, cells_of, layers_beyond
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.planner.export.pods import pod_notes
from airflow_llmsched.planner.export.text import comments, yaml_text
from airflow_llmsched.planner.export.torchrun import UNEVEN_NODES

PREFIX = "kai.scheduler/"

GAPS = (UNEVEN_NODES, layers_beyond(1, why="KAI has one size of segments"))


def workload_annotations(cells: Cells) -> dict[str, str]:
    """Return the annotations of the workload, without the name of the Topology that it counts on."""
    found = {}
    if cells.whole is not None:
        found["topology-required-placement"] = cells.whole
    elif cells.preferred is not None:
        found["topology-preferred-placement"] = cells.preferred
    return {PREFIX + name: value for name, value in found.items()}


def pod_annotations(cells: Cells) -> dict[str, str]:
    """Return the annotations of the pod template."""
    found = {}
    for cell in cells.inner:
        found["segment-size"] = str(cell.num_pods)
        found["segment-topology-required-placement"] = cell.level
    return {PREFIX + name: value for name, value in found.items()}


def render(run: PlannedRun) -> str:
    """Return the annotations as YAML, one document for each place; none, and that, where the plan needs none."""
    cells = cells_of(run)
    places = (("of the workload", workload_annotations(cells)), ("of the pod template", pod_annotations(cells)))
    told = [comments([f"metadata {where}"]) + yaml_text({"annotations": found}) for where, found in places if found]
    return "---\n".join(told) or "# this plan may be placed anywhere\nannotations: {}\n"


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say where the annotations go and what they count on."""
    cells = cells_of(run)
    topology = (
        "The workload also needs kai.scheduler/topology, with the name of the Topology that has these levels, and the "
        "label kai.scheduler/queue."
    )
    anywhere = "The workload needs no annotation, only the label kai.scheduler/queue."
    segments = (
        "KAI makes segments of the workers of a PyTorchJob and of a LeaderWorkerSet only, and ignores them elsewhere: "
        "let all pods be such workers, without a master or leader beside them."
    )
    return (
        topology if workload_annotations(cells) or cells.inner else anywhere,
        *([segments] if cells.inner else []),
        *pod_notes(run, cells),
    )
