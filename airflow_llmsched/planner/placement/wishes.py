"""Whether a placement keeps the groups of a layout inside the domains that were wished for. Pure.

Axes: R = rank, G = group. Ranks are numbered with tp fastest, then cp, dp, and pp slowest. To experts, the ranks of a
pipeline stage are in the same order, with expert-tp fastest, then ep (Megatron-LM, expert parallel groups).
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout, RankGroup
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.placement.feasible import NodeTable


def group_of_rank_R(layout: ParallelLayout, group: RankGroup) -> IntArray:
    """Return the number of the group that each rank belongs to."""
    ranks_R = np.arange(layout.world_size, dtype=np.int64)
    stride, size = stride_and_size(layout, group)
    return ranks_R // (stride * size) * stride + ranks_R % stride


def stride_and_size(layout: ParallelLayout, group: RankGroup) -> tuple[int, int]:
    """Return how far apart the ranks of each such group are numbered, and how many it has."""
    return {
        RankGroup.GANG: (1, layout.world_size),
        RankGroup.TP: (1, layout.tp),
        RankGroup.CP: (layout.tp, layout.cp),
        RankGroup.EP: (layout.tp if layout.expert_tp is None else layout.expert_tp, layout.ep),
        RankGroup.DP: (layout.tp * layout.cp, layout.dp),
        RankGroup.PP: (layout.tp * layout.cp * layout.dp, layout.pp),
    }[group]


def domain_of_rank_R(placement: Placement, tree: TopologyTree, *, level: str) -> IntArray:
    """Return the number of the domain that each rank is in. Raises ``ValueError`` for an unknown level."""
    table = NodeTable.of(tree, group_size=1)
    domain_of_node = dict(zip(table.ids, table.domain_LN[table.depth(level)].tolist(), strict=True))
    return np.array([domain_of_node[slot.node] for slot in placement.slots], dtype=np.int64)


def num_split_groups(layout: ParallelLayout, domain_R: IntArray, *, group: RankGroup) -> int:
    """Count groups that span more than one domain."""
    pairs = group_of_rank_R(layout, group) * (int(domain_R.max(initial=0)) + 1) + domain_R
    groups = np.unique(pairs) // (int(domain_R.max(initial=0)) + 1)
    _, num_domains_G = np.unique(groups, return_counts=True)
    return int(np.count_nonzero(num_domains_G > 1))
