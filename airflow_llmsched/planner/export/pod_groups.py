"""PodGroups for the scheduler of Kubernetes itself: one for the gang, or one for each cell of it.

Names: ``scheduling.k8s.io/v1beta1`` of Kubernetes 1.37, "Topology-Aware Workload Scheduling" of its documentation, read
2026-11-30: all pods of a group are on nodes with one value of the label, and at least ``minCount`` start or none.
"""

from __future__ import annotations

from typing import Any

from airflow_llmsched.planner.export.cells import Cells, cells_of, is_uneven, layers_beyond
from airflow_llmsched.planner.export.gaps import Gap
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.planner.export.pods import pod_notes
from airflow_llmsched.planner.export.text import json_text
from airflow_llmsched.planner.export.torchrun import UNEVEN_NODES


def _both(run: PlannedRun) -> object | None:
    if is_uneven(run):
        return None
    cells = cells_of(run)
    return f"{cells.whole} around {cells.inner[0].level}" if cells.whole and cells.inner else None


GAPS = (
    UNEVEN_NODES,
    layers_beyond(1, why="a PodGroup has one level"),
    Gap(path="placement", why="a PodGroup has one level, and none around it", used=_both),
)


def pod_groups(cells: Cells) -> list[dict[str, Any]]:
    """Return the groups in the order of their pods."""
    size, level = (cells.inner[0].num_pods, cells.inner[0].level) if cells.inner else (cells.num_pods, cells.whole)
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": size}}}
    if level is not None:
        spec["schedulingConstraints"] = {"topology": [{"key": level}]}
    num = cells.num_pods // size
    names = [f"gang-{index}" for index in range(num)] if num > 1 else ["gang"]
    return [
        {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
        for name in names
    ]


def render(run: PlannedRun) -> str:
    """Return the groups as a List in JSON, which ``kubectl`` takes for YAML."""
    return json_text({"apiVersion": "v1", "kind": "List", "items": pod_groups(cells_of(run))})


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say which pod names which group, and what the scheduler does not promise."""
    cells = cells_of(run)
    size = cells.inner[0].num_pods if cells.inner else cells.num_pods
    which = f"gang-<index // {size}>" if cells.inner else "gang"
    apart = "Groups start by themselves: that all do or none, the launcher's barrier sees to, not this scheduler."
    gates = ["GenericWorkload", *(["TopologyAwareWorkloadScheduling"] if cells.whole or cells.inner else [])]
    return (
        f"The cluster needs Kubernetes 1.37 with the feature gates {' and '.join(gates)}, which are off by default.",
        f"Give each pod spec.schedulingGroup.podGroupName: {which}.",
        *([apart] if cells.inner else []),
        *pod_notes(run, cells),
    )
