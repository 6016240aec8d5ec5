from __future__ import annotations

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import Placement, RankSlot


def _placement(*nodes: str) -> Placement:
    """Two ranks on each node, on slots 1 and 0."""
    return Placement(
        slots=tuple(
            RankSlot(rank=2 * index + local, node=NodeId(node), slot=1 - local, local_rank=local)
            for index, node in enumerate(nodes)
            for local in range(2)
        )
    )


def test_nodes_come_in_order_of_their_first_rank_and_once():
    placement = _placement("n9", "n1")
    assert placement.nodes == ("n9", "n1")
    assert placement.world_size == 4


def test_the_ranks_of_a_node_come_by_local_rank():
    assert [(each.rank, each.slot) for each in _placement("n9", "n1").on(NodeId("n1"))] == [(2, 1), (3, 0)]


def test_a_node_without_ranks_has_none():
    assert _placement("n9").on(NodeId("n1")) == ()
