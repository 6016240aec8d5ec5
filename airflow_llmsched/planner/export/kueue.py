"""Annotations for Kueue's topology-aware scheduling: what of a plan its own choice of nodes must keep.

Names and rules: KEP-2724 "Topology Aware Scheduling" of kubernetes-sigs/kueue, read 2026-11-30. A slice is a run of
pods by index; layers of slices are told largest first, each a multiple of the next, and lie inside the level that the
whole pod set requires or prefers.
"""

from __future__ import annotations

import json

from airflow_llmsched.planner.export.cells import Cells, cells_of, layers_beyond
from airflow_llmsched.planner.export.planned import PlannedRun
from airflow_llmsched.planner.export.pods import pod_notes
from airflow_llmsched.planner.export.text import yaml_text
from airflow_llmsched.planner.export.torchrun import UNEVEN_NODES

PREFIX = "kueue.x-k8s.io/"
_MAX_LAYERS = 3

GAPS = (UNEVEN_NODES, layers_beyond(_MAX_LAYERS, why=f"Kueue takes at most {_MAX_LAYERS} layers of slices"))


def pod_annotations(cells: Cells) -> dict[str, str]:
    """Return the annotations of the pod template."""
    found = {}
    if cells.whole is not None:
        found["podset-required-topology"] = cells.whole
    elif cells.preferred is not None:
        found["podset-preferred-topology"] = cells.preferred
    elif not cells.inner:
        found["podset-unconstrained-topology"] = "true"
    if len(cells.inner) == 1:
        found["podset-slice-required-topology"] = cells.inner[0].level
        found["podset-slice-size"] = str(cells.inner[0].num_pods)
    elif cells.inner:
        layers = [{"topology": each.level, "size": each.num_pods} for each in cells.inner]
        found["podset-slice-required-topology-constraints"] = json.dumps(layers)
    return {PREFIX + name: value for name, value in found.items()}


def render(run: PlannedRun) -> str:
    """Return the annotations as YAML."""
    return yaml_text({"annotations": pod_annotations(cells_of(run))})


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say where the annotations go and what they count on."""
    cells = cells_of(run)
    gate = "More than one layer of slices needs Kueue's feature gate TASMultiLayerTopology."
    return (
        "Put the annotations below metadata of the pod template; the job itself needs the label "
        "kueue.x-k8s.io/queue-name of a queue whose flavor names a Topology with these levels.",
        *pod_notes(run, cells),
        *([gate] if len(cells.inner) > 1 else []),
    )
