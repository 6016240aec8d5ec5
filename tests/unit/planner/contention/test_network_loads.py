from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.placement import HelperSlot, Placement, RankSlot
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.contention import network_loads
from airflow_llmsched.planner.contention.loads import gang_load
from airflow_llmsched.planner.contention.network_loads import gang_loads, network_load
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.graphs.exchanges import Exchange, Pattern
from airflow_llmsched.planner.graphs.job_graph import JobGraph
from tests.unit.planner.contention.test_advice import NETWORK, RING, THIN
from tests.unit.planner.contention.test_loads import on
from tests.unit.planner.graphs.test_cluster_graph import H100, tree

TREE = tree(network=NETWORK)


def kept(placement: Placement, *, job: JobGraph = RING, step_s: float = 1.0) -> NetworkLoad | None:
    return network_load(gang_load("A", job, placement, THIN, step_s=step_s), placement, TREE, THIN)


def domains(load: NetworkLoad | None) -> set[tuple[str, ...]]:
    assert load is not None
    return {path for link in load.links for path in link.domains}


def test_what_is_kept_is_what_is_read_again_on_the_same_tree() -> None:
    placement = on(0, 4, job=RING)
    gang = gang_load("A", RING, placement, THIN, step_s=1.0)
    load = network_load(gang, placement, TREE, THIN)
    assert domains(load) == {("b0",), ("b0", "r0"), ("b1",), ("b1", "r0")}, "racks are called alike in both blocks"
    (found,) = gang_loads({"A": load}, TREE, THIN)
    assert (found.name, found.step_s) == ("A", 1.0)
    assert found.uses.keys() == {link for link in gang.uses if link.depth < 2}
    for link, use in found.uses.items():
        assert use.bytes_per_step == gang.uses[link].bytes_per_step == 8e9
        assert use.alone_bytes_per_s == pytest.approx(gang.uses[link].alone_bytes_per_s, rel=0.005)
    assert codec.from_json(NetworkLoad, codec.to_json(load)) == load


def test_links_that_nobody_else_can_use_are_left_out() -> None:
    wide = JobGraph(num_ranks=32, exchanges=RING.exchanges)
    rack_and_more = on(0, 1, 2, 4, job=wide)
    assert domains(
        kept(
            rack_and_more,
            job=JobGraph(
                num_ranks=32,
                exchanges=(Exchange(group="dp", pattern=Pattern.RING, stride=1, size=32, bytes_per_rank=1e9),),
            ),
        )
    ) == {("b0",), ("b0", "r1"), ("b1",), ("b1", "r0")}, "the first rack is all its own, and so are its nodes"


def test_a_node_that_is_held_in_part_shares_its_own_link() -> None:
    half = Placement(
        slots=tuple(
            RankSlot(rank=rank, node=NodeId(f"n{rank // 4}"), slot=rank % 4, local_rank=rank % 4) for rank in range(8)
        )
    )
    job = JobGraph(
        num_ranks=8, exchanges=(Exchange(group="dp", pattern=Pattern.RING, stride=1, size=8, bytes_per_rank=1e9),)
    )
    assert domains(kept(half, job=job)) == {("b0", "r0", "n0"), ("b0", "r0", "n1")}
    helper = HelperSlot(role=RoleKind.EVALUATOR, index=0, node=NodeId("n1"), slots=(4, 5, 6, 7))
    assert domains(kept(replace(half, helpers=(helper,)), job=job)) == {("b0", "r0", "n0")}, "helpers hold slots, too"


def test_numbers_have_three_digits_and_links_that_are_alike_stand_once() -> None:
    job = JobGraph(
        num_ranks=16,
        exchanges=(Exchange(group="dp", pattern=Pattern.RING, stride=1, size=16, bytes_per_rank=1.23456e9),),
    )
    load = kept(on(0, 4, job=job), job=job, step_s=1.23456)
    assert load.step_s == 1.23
    assert {link.bytes_per_step for link in load.links} == {1.23e9}
    assert sorted(len(link.domains) for link in load.links) == [2, 2], "racks, and blocks, have links of their own"


def test_only_so_many_links_are_kept_the_fullest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_loads, "MAX_LINKS", 2)
    assert domains(kept(on(0, 4, job=RING))) == {("b0",), ("b1",)}, "blocks have the thinnest links"


def test_on_another_tree_what_it_does_not_have_is_passed_over() -> None:
    load = kept(on(0, 4, job=RING))
    other = TopologyTree(
        levels=("block", "rack"),
        nodes=tuple(
            TopologyNode(id=NodeId(name), path=path, shape=H100.name, num_slots=8, num_free_slots=8)
            for name, path in (("x", ("b0", "r0")), ("y", ("b0", "r7")))
        ),
    )
    (found,) = gang_loads({"A": load}, other, ClusterGraph(other, H100))
    assert {link.depth for link in found.uses} == {0, 1}
    assert len(found.uses) == 2
    assert gang_loads({"A": replace(load, shape="other")}, other, ClusterGraph(other, H100)) == []


def test_gangs_come_in_the_order_of_their_names() -> None:
    load = kept(on(0, 4, job=RING))
    assert [each.name for each in gang_loads({"b": load, "a": load}, TREE, THIN)] == ["a", "b"]


def test_nothing_is_kept_of_a_gang_of_which_nobody_knows_how_long_a_step_takes() -> None:
    silent = JobGraph(num_ranks=16, exchanges=())
    assert kept(on(0, 4, job=silent), job=silent, step_s=0.0) is None
    load = kept(on(0, 4, job=silent), job=silent)
    assert load is not None
    assert load.links == ()


def test_nothing_is_kept_of_a_gang_whose_links_are_told_to_be_slower_than_any() -> None:
    assert kept(on(0, 4, job=RING), step_s=1e19) is None
    crawling = JobGraph(
        num_ranks=16,
        exchanges=(Exchange(group="dp", pattern=Pattern.RING, stride=1, size=16, bytes_per_rank=1e-12),),
    )
    load = kept(on(0, 4, job=crawling), job=crawling)
    assert load is not None
    assert load.links == ()
