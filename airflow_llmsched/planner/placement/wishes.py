"""Whether a placement keeps the groups of a layout inside the domains that were wished for. Pure.

Axes: R = rank, G = group. Ranks are numbered with tp fastest, then cp, ep, the rest of dp, and pp slowest.
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import RankGroup
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.placement.feasible import NodeTable


def group_of_rank_R(layout: ParallelLayout, group: RankGroup) -> IntArray:
    """Return the number of the group that each rank belongs to."""
    ranks_R = np.arange(layout.world_size, dtype=np.int64)
    stride, size = {
        RankGroup.GANG: (1, layout.world_size),
        RankGroup.TP: (1, layout.tp),
        RankGroup.CP: (layout.tp, layout.cp),
        RankGroup.EP: (layout.tp * layout.cp, layout.ep),
        RankGroup.DP: (layout.tp * layout.cp, layout.dp),
        RankGroup.PP: (layout.tp * layout.cp * layout.dp, layout.pp),
    }[group]
    return ranks_R // (stride * size) * stride + ranks_R % stride


def num_split_groups(
    layout: ParallelLayout, placement: Placement, tree: TopologyTree, *, group: RankGroup, level: str
) -> int:
    """Count groups that span more than one domain of ``level``. Raises ``ValueError`` for an unknown level."""
    table = NodeTable.of(tree, group_size=1)
    domain_of_node = dict(zip(table.ids, table.domain_LN[table.depth(level)].tolist(), strict=True))
    domain_R = np.array([domain_of_node[slot.node] for slot in placement.slots], dtype=np.int64)
    pairs = np.unique(np.stack([group_of_rank_R(layout, group), domain_R]), axis=1)
    _, num_domains_G = np.unique(pairs[0], return_counts=True)
    return int(np.count_nonzero(num_domains_G > 1))
