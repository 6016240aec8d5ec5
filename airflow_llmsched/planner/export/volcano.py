"""The part of a Volcano Job that keeps its pods together: ``networkTopology`` and the partitions of its task.

Names: Volcano's Job API (batch.volcano.sh/v1alpha1), ``partitionPolicy`` and ``highestTierName``, read 2026-11-30. A
partition is a run of pods by index. Tiers are named as the levels of the topology are: ``tierName`` of HyperNodes, or
``tier2`` where they have only numbers, as the reader of HyperNodes names such levels.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_llmsched.planner.export.cells import Cells, cells_of, is_uneven, layers_beyond
from airflow_llmsched.planner.export.gaps import Gap
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.planner.export.pods import pod_notes
from airflow_llmsched.planner.export.text import json_text
from airflow_llmsched.planner.export.torchrun import UNEVEN_NODES

_NUMBERED = re.compile(r"tier([0-9]{1,9})")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_NAME = 253


def _unnameable(run: PlannedRun) -> object | None:
    if is_uneven(run):
        return None
    wrong = [each for each in _levels(cells_of(run)) if not _NAME.fullmatch(each) or len(each) > _MAX_NAME]
    return ", ".join(wrong) or None


def _levels(cells: Cells) -> list[str]:
    return [*filter(None, (cells.whole, cells.preferred)), *(cell.level for cell in cells.inner)]


GAPS = (
    UNEVEN_NODES,
    layers_beyond(1, why="a task of a Volcano Job has one size of partitions"),
    Gap(
        path="placement",
        why="the name of a Volcano tier is of small letters, digits, '-' and '.': plan on the cluster's HyperNodes "
        "(kubectl get nodes,pods,hypernodes -A -o json) instead of on labels",
        used=_unnameable,
    ),
)


def job(run: PlannedRun) -> dict[str, Any]:
    """Return what of a Job follows from the plan."""
    cells = cells_of(run)
    task: dict[str, Any] = {"name": "rank", "replicas": cells.num_pods, "minAvailable": cells.num_pods}
    for cell in cells.inner:
        num = cells.num_pods // cell.num_pods
        task["partitionPolicy"] = {
            "totalPartitions": num,
            "partitionSize": cell.num_pods,
            "minPartitions": num,
            "networkTopology": _within(cell.level, mode="hard"),
        }
    spec: dict[str, Any] = {"schedulerName": "volcano", "minAvailable": cells.num_pods}
    if cells.whole is not None:
        spec["networkTopology"] = _within(cells.whole, mode="hard")
    elif cells.preferred is not None:
        spec["networkTopology"] = _within(cells.preferred, mode="soft")
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {**spec, "tasks": [task]}}


def _within(level: str, *, mode: str) -> dict[str, str | int]:
    numbered = _NUMBERED.fullmatch(level)
    if numbered is not None:
        return {"mode": mode, "highestTierAllowed": int(numbered[1])}
    return {"mode": mode, "highestTierName": level}


def render(run: PlannedRun) -> str:
    """Return that part of the Job as JSON, which ``kubectl`` takes for YAML."""
    return json_text(job(run))


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what is to be added."""
    cells = cells_of(run)
    named = [each for each in dict.fromkeys(_levels(cells)) if not _NUMBERED.fullmatch(each)]
    tiers = f" HyperNodes must have the tierName {' and '.join(named)}." if named else ""
    return (f"Add metadata and the task's pod template.{tiers}", *pod_notes(run, cells))
