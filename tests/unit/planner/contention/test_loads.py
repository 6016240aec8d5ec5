from __future__ import annotations

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.planner.contention.loads import LinkId, gang_load
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.graphs.exchanges import Exchange, Pattern
from airflow_llmsched.planner.graphs.job_graph import JobGraph
from tests.unit.planner.graphs.test_cluster_graph import H100, tree

RING = JobGraph(
    num_ranks=32, exchanges=(Exchange(group="dp", pattern=Pattern.RING, stride=1, size=32, bytes_per_rank=1e9),)
)
NODE, RACK, BLOCK = 2, 1, 0


def on(*nodes: int, job: JobGraph = RING) -> Placement:
    each = job.num_ranks // len(nodes)
    slots = (
        RankSlot(rank=at * each + local, node=NodeId(f"n{node}"), slot=local, local_rank=local)
        for at, node in enumerate(nodes)
        for local in range(each)
    )
    return Placement(slots=tuple(slots))


def test_a_ring_leaves_each_domain_once_and_only_those_it_leaves() -> None:
    found = gang_load("a", RING, on(0, 1, 2, 3), ClusterGraph(tree(), H100), step_s=2.0)
    assert {link: use.bytes_per_step for link, use in found.uses.items()} == {
        **{LinkId(depth=NODE, domain=node): 1e9 for node in range(4)},
        **{LinkId(depth=RACK, domain=rack): 1e9 for rank, rack in enumerate((0, 1))},
    }


def test_alone_a_gang_sends_as_fast_as_its_ranks_there_can() -> None:
    cluster = ClusterGraph(tree(), H100)
    found = gang_load("a", RING, on(0, 1, 4, 5), cluster, step_s=2.0)
    block = found.uses[LinkId(depth=BLOCK, domain=0)]
    assert block.alone_bytes_per_s == pytest.approx(16 * cluster.own_bytes_per_s)
    assert block.active_s == pytest.approx(1e9 / block.alone_bytes_per_s)
    assert found.duty_ratio(LinkId(depth=BLOCK, domain=0)) == pytest.approx(block.active_s / 2)


def test_a_thin_link_holds_a_gang_back_even_alone() -> None:
    network = (NetworkLevel(level=None, bandwidth_bytes_per_s=1e9, is_measured=True),)
    found = gang_load("a", RING, on(0, 1, 4, 5), ClusterGraph(tree(network=network), H100), step_s=2.0)
    assert found.uses[LinkId(depth=BLOCK, domain=0)].alone_bytes_per_s == 32 * 1e9


def test_a_gang_inside_one_node_uses_no_link() -> None:
    job = JobGraph(
        num_ranks=8, exchanges=(Exchange(group="tp", pattern=Pattern.RING, stride=1, size=8, bytes_per_rank=1.0),)
    )
    assert not gang_load("a", job, on(3, job=job), ClusterGraph(tree(), H100), step_s=1.0).uses


def test_a_placement_of_another_gang_is_refused() -> None:
    small = JobGraph(num_ranks=8, exchanges=())
    with pytest.raises(ValueError, match="32 ranks are placed, the job has 8"):
        gang_load("a", small, on(0, 1, 2, 3), ClusterGraph(tree(), H100), step_s=1.0)
