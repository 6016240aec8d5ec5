"""Option names of the tools that plans are written out for, as listed in ``tests/fixtures/tool_options``.

Each file says which version of the tool it was read from and when. Names, types and choices are facts; nothing else of
the tools is here.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.export.planned import PlannedRun
from tests.support.fleets import workload
from tests.support.models import LLAMA31_8B

FOLDER = Path(__file__).parents[1] / "fixtures" / "tool_options"


@cache
def options(tool: str) -> dict[str, Any]:
    """Return the list of one tool."""
    return json.loads((FOLDER / f"{tool}.json").read_text("utf-8"))


def planned(
    layout: ParallelLayout,
    model: ModelShape | None = LLAMA31_8B,
    *,
    ranks_per_node: int = 8,
    sequence_length_tokens: int = 4096,
    **others: Any,
) -> PlannedRun:
    """Return a run of the layout on full nodes, its batch the layout's own."""
    asked = workload(
        model,
        sequence_length_tokens=sequence_length_tokens,
        num_sequences=layout.global_batch_size,
        **others,
    )
    num_nodes = max(1, layout.world_size // ranks_per_node)
    on_each = min(ranks_per_node, layout.world_size)
    slots = (
        RankSlot(rank=node * on_each + local, node=NodeId(f"node-{node}"), slot=local, local_rank=local)
        for node in range(num_nodes)
        for local in range(on_each)
    )
    return PlannedRun(
        workload=asked,
        layout=layout,
        ranks_on_nodes=(on_each,) * num_nodes,
        placement=Placement(slots=tuple(slots)),
        node_shape="p5.48xlarge",
        accelerator_vendor="nvidia",
    )
